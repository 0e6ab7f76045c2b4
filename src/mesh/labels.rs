//! The labels of a connection: who talked to whom, as metrics and access log both tell it.
//! Derived once from workloads and services; of what a peer says only its attested identity, and, through another
//! network's gateway, its baggage (cut to `limits::LABEL_BYTES`, and bounded in number by `limits::LABEL_SETS`).

use std::sync::Arc;

use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::mesh::service::Service;
use crate::mesh::workload::Workload;

/// Which side of the connection tells the story.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reporter {
    Source,
    Destination,
}

impl Reporter {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// `connection_security_policy`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Security {
    Unknown,
    MutualTls,
}

impl Security {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::MutualTls => "mutual_tls",
        }
    }
}

/// `response_flags`: how a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flag {
    None,
    Deny,
    Connect,
    TlsFailure,
    Http2Handshake,
    NetworkPolicy,
    Identity,
    CertificateRevoked,
}

impl Flag {
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Deny,
        Self::Connect,
        Self::TlsFailure,
        Self::Http2Handshake,
        Self::NetworkPolicy,
        Self::Identity,
        Self::CertificateRevoked,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::Deny => "DENY",
            Self::Connect => "CONNECT",
            Self::TlsFailure => "TLS_FAILURE",
            Self::Http2Handshake => "H2_HANDSHAKE_FAILURE",
            Self::NetworkPolicy => "NETWORK_POLICY",
            Self::Identity => "IDENTITY_ERROR",
            Self::CertificateRevoked => "CERT_REVOKED",
        }
    }
}

/// What metrics tell of one party. Empty text is rendered as `unknown`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Party {
    pub workload: Text,
    pub canonical_service: Text,
    pub canonical_revision: Text,
    pub namespace: Text,
    pub app: Text,
    pub cluster: Text,
    pub region: Text,
    pub zone: Text,
    /// Attested for a source on the inbound side, configured otherwise.
    pub principal: Option<Identity>,
}

impl Party {
    /// The party that a known workload is; the principal is the caller's to set.
    pub fn of(workload: &Workload) -> Self {
        Self {
            workload: workload.workload_name.clone(),
            canonical_service: workload.canonical_name.clone(),
            canonical_revision: workload.canonical_revision.clone(),
            namespace: workload.namespace.clone(),
            app: workload.canonical_name.clone(),
            cluster: workload.cluster_id.clone(),
            region: workload.locality.region.clone(),
            zone: workload.locality.zone.clone(),
            principal: None,
        }
    }
}

/// The service that the client meant.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ServiceLabels {
    pub hostname: Text,
    pub namespace: Text,
    pub name: Text,
}

impl ServiceLabels {
    pub fn of(service: &Service) -> Self {
        Self {
            hostname: service.key.hostname.clone(),
            namespace: service.key.namespace.clone(),
            name: service.name.clone(),
        }
    }
}

/// One label set: all labels but `response_flags`, which only closed and failed connections vary.
/// `locality` of the reference is rendered whenever a source or destination is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Labels {
    pub reporter: Reporter,
    pub source: Option<Party>,
    pub destination: Option<Party>,
    pub service: Option<ServiceLabels>,
    pub security: Security,
}

impl Labels {
    /// The same without anything that tells one party from another: where all further ones are counted when too
    /// many label sets are known.
    pub fn without_parties(self) -> Self {
        Self {
            source: self.source.map(|_| Party::default()),
            destination: self.destination.map(|_| Party::default()),
            service: None,
            ..self
        }
    }
}

/// Interned by shards, summed by the control thread.
pub type LabelSet = Arc<Labels>;
