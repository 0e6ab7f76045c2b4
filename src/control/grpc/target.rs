//! One service of the control plane: its address, what its certificate must look like, and what each request carries.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use rustls::pki_types::ServerName;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::{Code, Status};

use super::channel::Deadlines;
use super::error::{CallError, TargetError, TokenError};
use super::trust::{Roots, read_bounded};
use crate::base::limits::TOKEN_BYTES;
use crate::base::text::Text;
use crate::tls::config::Exchange;

/// Which of the two services; says how the variables are named that configure it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    Discovery,
    Certificates,
}

impl Service {
    pub fn address_variable(self) -> &'static str {
        match self {
            Self::Discovery => "XDS_ADDRESS",
            Self::Certificates => "CA_ADDRESS",
        }
    }

    pub fn roots_variable(self) -> &'static str {
        match self {
            Self::Discovery => "XDS_ROOT_CA",
            Self::Certificates => "CA_ROOT_CA",
        }
    }

    pub fn alternative_variable(self) -> &'static str {
        match self {
            Self::Discovery => "ALT_XDS_HOSTNAME",
            Self::Certificates => "ALT_CA_HOSTNAME",
        }
    }
}

/// What the configuration says of a service.
#[derive(Clone, Debug)]
pub struct Options {
    pub service: Service,
    /// `https://host[:port]`; the port is 443 unless given.
    pub address: String,
    /// One more name that the server's certificate may carry.
    pub alternative_host: Option<String>,
    pub roots: Roots,
    pub token: Token,
    pub cluster_id: String,
    /// Extra headers of each request.
    pub headers: Vec<(String, String)>,
    pub protection: Protection,
}

/// `AUTH_TOKEN`. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    None,
    /// Read anew for each request.
    File(PathBuf),
    Fixed(String),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.from())
    }
}

/// What TLS may be towards the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Protection {
    /// TLS 1.2 as well; without effect where the key exchange must be a hybrid one.
    pub tls12: bool,
    pub exchange: Exchange,
}

/// A service that can be connected to.
#[derive(Debug)]
pub struct Target {
    pub(super) service: Service,
    pub(super) uri: Uri,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) name: ServerName<'static>,
    pub(super) alternative: Option<ServerName<'static>>,
    pub(super) roots: Roots,
    pub(super) protection: Protection,
    pub(super) deadlines: Deadlines,
    at: Text,
    token: Token,
    cluster_id: MetadataValue<Ascii>,
    headers: Vec<(MetadataKey<Ascii>, MetadataValue<Ascii>)>,
}

impl Target {
    pub fn new(options: Options) -> Result<Self, TargetError> {
        let Options { service, address, alternative_host, roots, token, cluster_id, headers, protection } =
            options;
        let variable = service.address_variable();
        let refuse = |wanted| TargetError::Address { variable, address: address.clone(), wanted };
        let uri: Uri = address.parse().map_err(|_| refuse("not https://host[:port]"))?;
        if uri.scheme_str() != Some("https") {
            return Err(refuse("the control plane is spoken to by TLS only; write https://"));
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone())
            .map_err(|_| refuse("the host is neither a DNS name nor an IP address"))?;
        let port = uri.port_u16().unwrap_or(443);
        let alternative = alternative_host.filter(|name| !name.is_empty()).map(|name| {
            let refuse = |_| TargetError::AlternativeName {
                variable: service.alternative_variable(),
                name: name.clone(),
            };
            ServerName::try_from(name.clone()).map_err(refuse)
        });
        let cluster_id = cluster_id
            .parse()
            .map_err(|_| TargetError::Header { what: format!("cluster id {cluster_id:?}") })?;
        let headers = headers.into_iter().map(|(key, value)| {
            let refuse = || TargetError::Header { what: format!("header {key}") };
            let parsed: MetadataKey<Ascii> = key.parse().map_err(|_| refuse())?;
            Ok((parsed, value.parse().map_err(|_| refuse())?))
        });
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        Ok(Self {
            at: format!("https://{shown}:{port}").into(),
            alternative: alternative.transpose()?,
            headers: headers.collect::<Result<_, _>>()?,
            cluster_id,
            service,
            uri,
            host,
            port,
            name,
            roots,
            protection,
            deadlines: Deadlines::default(),
            token,
        })
    }

    /// `https://host:port`, for texts.
    pub fn at(&self) -> &Text {
        &self.at
    }

    /// Where requests go, and so their origin.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Puts into a request what each one carries: the extra headers, the cluster's id, and the token as it is now.
    pub fn headers(&self, metadata: &mut MetadataMap) -> Result<(), TokenError> {
        for (key, value) in &self.headers {
            metadata.insert(key.clone(), value.clone());
        }
        metadata.insert("clusterid", self.cluster_id.clone());
        if let Some(value) = self.token.bearer()? {
            metadata.insert("authorization", value);
        }
        Ok(())
    }

    /// What a status means that ended a call.
    pub fn explain(&self, status: &Status) -> CallError {
        let at = self.at.clone();
        let message = told(status);
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "seventeen codes, of which two have a meaning here"
        )]
        match status.code() {
            Code::Unauthenticated => {
                CallError::Authentication { at, message, hint: self.authentication_hint() }
            }
            Code::PermissionDenied => CallError::Authorisation { at, message },
            _ if status.source().is_some() => CallError::Broken { at, message },
            code => CallError::Status { at, code, message },
        }
    }

    /// istiod's authority answers like this also where it knows the caller, but no pod of that identity on the
    /// caller's node (reference section C.6).
    fn authentication_hint(&self) -> String {
        let token = self.token.from();
        match self.service {
            Service::Discovery => format!("the token comes from {token}"),
            Service::Certificates => format!(
                "the token comes from {token}; a pod with this identity must run on this node, and the control plane \
                 must trust this proxy's service account, CA_TRUSTED_NODE_ACCOUNTS"
            ),
        }
    }

    /// A call that nobody answered in time.
    pub fn silent(&self, after: Duration) -> CallError {
        CallError::Silent { at: self.at.clone(), after }
    }
}

/// The message, and what lies below it where the connection was the cause.
fn told(status: &Status) -> String {
    let mut text = if status.message().is_empty() {
        status.code().description().to_owned()
    } else {
        status.message().to_owned()
    };
    let mut cause = status.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

impl Token {
    /// Where it comes from; never what it is.
    fn from(&self) -> String {
        match self {
            Self::None => "nowhere: AUTH_TOKEN isn't set and there is no token file".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Fixed(_) => "AUTH_TOKEN".to_owned(),
        }
    }

    fn bearer(&self) -> Result<Option<MetadataValue<Ascii>>, TokenError> {
        let token = match self {
            Self::None => return Ok(None),
            Self::Fixed(token) => token.clone().into_bytes(),
            Self::File(path) => {
                let failed = |error| TokenError::File { path: path.clone(), error };
                read_bounded(path, TOKEN_BYTES)
                    .map_err(failed)?
                    .ok_or_else(|| TokenError::TooLarge { from: self.from() })?
            }
        };
        // An editor's line end isn't part of a token; the reference sends it, and so an invalid header.
        let token = token.trim_ascii();
        if let Self::File(path) = self
            && token.is_empty()
        {
            return Err(TokenError::Empty(path.clone()));
        }
        if let Some(offset) = token.iter().position(|byte| !byte.is_ascii_graphic()) {
            return Err(TokenError::NotText { from: self.from(), offset });
        }
        let bearer = [b"Bearer ", token].concat();
        let mut value = MetadataValue::try_from(bearer)
            .map_err(|_| TokenError::NotText { from: self.from(), offset: 0 })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}
