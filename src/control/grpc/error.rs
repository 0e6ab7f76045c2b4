//! Why the control plane can't be reached or doesn't answer. Each text names host, port and what to look at; five
//! different faults of a start-up give five different texts.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::base::limits::{ROOTS_BYTES, TOKEN_BYTES};
use crate::base::text::Text;

/// An address, header or name that can't be used: the configuration is wrong, trying again is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{variable}={address}: {wanted}")]
    Address { variable: &'static str, address: String, wanted: &'static str },
    #[error("{variable}={name}: neither a DNS name nor an IP address")]
    AlternativeName { variable: &'static str, name: String },
    #[error("the {what} can't be sent in a header: it holds other characters than visible ASCII")]
    Header { what: String },
}

/// No connection. Trying again may help in every case.
#[derive(Debug, thiserror::Error)]
#[error("gRPC connection error connecting to {at}: {failure}")]
pub struct ConnectError {
    /// `https://host:port`.
    pub at: Text,
    pub failure: Box<Failure>,
}

/// What went wrong on the way.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the roots that {variable} names can't be used: {error}")]
    Roots { variable: &'static str, error: RootsError },
    #[error(
        "dns error: {error} (hint: is the DNS server reachable? {variable} must be a name that it knows)"
    )]
    Dns { variable: &'static str, error: io::Error },
    #[error("dns error: no answer within {after:?} (hint: is the DNS server reachable?)")]
    DnsSilent { after: Duration },
    #[error(
        "tcp connect error: {tried}: {error} (hint: is the control plane running, and is {variable} its address \
         and port?)"
    )]
    Tcp { variable: &'static str, tried: String, error: io::Error },
    #[error(
        "tcp connect timeout: no answer from {tried} within {after:?} (hint: does a firewall or a network policy \
         drop the packets?)"
    )]
    TcpSilent { tried: String, after: Duration },
    #[error("its certificate isn't trusted: {error} (hint: {hint})")]
    Trust { error: rustls::Error, hint: String },
    #[error("tls handshake error: {error} (hint: {hint})")]
    Tls { error: io::Error, hint: &'static str },
    #[error("tls handshake timeout: no answer within {after:?} (hint: does the port speak TLS?)")]
    TlsSilent { after: Duration },
    #[error("http2 error: {0}")]
    Http2(String),
}

/// Root certificates that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{from}: larger than {ROOTS_BYTES} bytes")]
    TooLarge { from: String },
    #[error("{from}: not PEM: {error}")]
    Pem { from: String, error: rustls::pki_types::pem::Error },
    #[error("{from}: no certificate in it")]
    Empty { from: String },
    #[error("{from}: none of its {count} certificates can be a root: {error}")]
    Unusable { from: String, count: usize, error: rustls::Error },
    #[error("the roots of the operating system: {0}")]
    System(String),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// A bearer token that can't be sent.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("can't read the token file {}: {error} (hint: AUTH_TOKEN names it)", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("token file exists, but was empty: {}", .0.display())]
    Empty(PathBuf),
    #[error("the token in {from} is larger than {TOKEN_BYTES} bytes")]
    TooLarge { from: String },
    #[error("the token in {from} isn't text: byte {offset} is no visible ASCII character")]
    NotText { from: String, offset: usize },
}

/// A call that came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// UNAUTHENTICATED: who we are isn't believed.
    #[error(
        "gRPC error from {at}: authentication failure: {message} (hint: check the control plane logs for more \
         information; {hint})"
    )]
    Authentication { at: Text, message: String, hint: String },
    /// PERMISSION_DENIED: we are believed, but may not do this.
    #[error(
        "gRPC error from {at}: not authorized: {message} (hint: does the control plane trust this proxy's service \
         account in its namespace, CA_TRUSTED_NODE_ACCOUNTS?)"
    )]
    Authorisation { at: Text, message: String },
    #[error("gRPC error from {at}: the connection broke: {message}")]
    Broken { at: Text, message: String },
    #[error("gRPC error from {at}: no answer within {after:?}")]
    Silent { at: Text, after: Duration },
    #[error("gRPC error from {at}: {code:?}: {message}")]
    Status { at: Text, code: tonic::Code, message: String },
}
