//! What can be wrong with a configuration. Each error names the variable or file, the value and what was
//! expected.

use std::io;
use std::path::PathBuf;

use super::parse::Reason;
use super::reader::Origin;
use super::table::Kind;
use crate::control::logs::LogsError;
use crate::mesh::identity::NotATrustDomain;

/// One thing to put right. The first words are those of the reference (ztunnel-behaviour 2.1).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("invalid env var {name}={value} ({reason}); expected {expected}")]
    Variable { name: &'static str, value: String, reason: Reason, expected: Kind },
    #[error("invalid uri: {reason}, in the environment variable {name}={value}; expected {}", Kind::Uri)]
    Uri { name: &'static str, value: String, reason: Reason },
    #[error("invalid uri: {reason}, in discoveryAddress {value:?} of {origin}; expected {}", Kind::Uri)]
    DiscoveryAddress { origin: Origin, value: String, reason: Reason },
    #[error("PROXY_MODE must be one of dedicated, shared; the environment says {0:?}")]
    ProxyMode(String),
    #[error("PROXY_MODE=dedicated needs PROXY_WORKLOAD_INFO=namespace/name/service-account; \
             {}", given(.0.as_deref()))]
    WorkloadInfo(Option<String>),
    #[error("error parsing proxy config: failed parsing mesh config file {}: {reason}", .path.display())]
    MeshFile { path: PathBuf, reason: DocumentError },
    #[error("error parsing proxy config: failed parsing proxy config env: {0} (PROXY_CONFIG)")]
    ProxyConfig(DocumentError),
    #[error("failed to parse header key: {name} gives the header name {key:?}")]
    HeaderKey { name: String, key: String },
    /// Header values may be secrets, so they aren't shown.
    #[error("failed to parse header value: the value of {name} holds characters other than visible ASCII")]
    HeaderValue { name: String },
    #[error("invalid configuration: failed to parse DNS_PROXY_ADDR: {value} ({reason})")]
    DnsProxyAddr { value: String, reason: &'static str },
    #[error(
        "invalid configuration: DNS proxy does not currently support on-demand mode (XDS_ON_DEMAND=true; set \
             ISTIO_META_DNS_CAPTURE=false or leave XDS_ON_DEMAND out)"
    )]
    DnsOnDemand,
    #[error(
        "invalid configuration: ztunnel run without any servers enabled \
             (ENABLE_PROXY=false and the DNS proxy is off)"
    )]
    Nothing,
    #[error(
        "invalid configuration: LOCAL_XDS_PATH={path} and LOCAL_XDS are both set; only one of them can hold"
    )]
    TwoLocalSources { path: String },
    #[error("invalid configuration: {variable}: {error}")]
    LocalMesh { variable: &'static str, error: String },
    #[error(transparent)]
    Logs(LogsError),
    #[error("invalid configuration: RINGWAY_TRUST_DOMAIN_ALIASES={value}: {reason}")]
    TrustDomainAliases { value: String, reason: NotATrustDomain },
    #[error(
        "invalid configuration: {name}={address}: the control plane is spoken to by TLS only; write https:// and its \
             TLS port (15012)"
    )]
    Plaintext { name: &'static str, address: String },
}

/// Why a document of the mesh or proxy configuration can't be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("{0}")]
    Unreadable(#[from] io::Error),
    #[error("{0}")]
    Yaml(String),
}

fn given(value: Option<&str>) -> String {
    match value {
        Some(value) => format!("it is {value:?}"),
        None => "it is unset".to_owned(),
    }
}
