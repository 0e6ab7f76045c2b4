//! The client of the mesh's certificate authority (reference sections 13.2 and A.4): one key, one request, one answer,
//! on a connection that is kept while it works and while its roots are still the ones to believe.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use prost_types::{Struct, Value, value::Kind};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::chain::{self, ChainError};
use super::error::{CallError, ConnectError, TokenError};
use super::target::Target;
use super::trust::RootsNow;
use crate::base::limits::{CA_ANSWER_BYTES, CA_CALL_DEADLINE_MS};
use crate::control::signing::{Signer, Signing, Unsigned};
use crate::mesh::identity::Identity;
use crate::tls::config::{Credential, Profile};
use crate::tls::csr::{self, RequestError};
use crate::wire::pb::ca::{IstioCertificateRequest, IstioCertificateResponse};

const CREATE_CERTIFICATE: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
/// Asked for where SECRET_TTL doesn't fit (the reference's value).
const TTL_ELSE_S: i64 = 86_400;

/// Signs by asking the mesh's authority.
pub struct CertificateClient(Arc<Inner>);

struct Inner {
    target: Target,
    /// Certificates are for others than the caller: true for the proxy of a node.
    impersonates: bool,
    profile: Profile,
    deadline: Duration,
    connection: Mutex<Connection>,
}

/// The one connection, or why there is none.
#[derive(Default)]
struct Connection {
    open: Option<Open>,
    failed: Option<(Instant, Arc<ConnectError>)>,
    dialled: u64,
}

#[derive(Clone)]
struct Open {
    channel: Channel,
    roots: RootsNow,
    number: u64,
    /// Nobody has used it before.
    fresh: bool,
}

#[derive(Debug, thiserror::Error)]
enum IssueError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Connect(Arc<ConnectError>),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Call(CallError),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

impl CertificateClient {
    /// `impersonates`: the caller is a node's proxy and asks in its workloads' names.
    pub fn new(target: Target, impersonates: bool, profile: Profile) -> Self {
        let deadline = Duration::from_millis(CA_CALL_DEADLINE_MS);
        Self(Arc::new(Inner { target, impersonates, profile, deadline, connection: Mutex::default() }))
    }

    #[cfg(test)]
    pub(super) fn with_deadline(target: Target, impersonates: bool, deadline: Duration) -> Self {
        let (profile, connection) = (Profile::default(), Mutex::default());
        Self(Arc::new(Inner { target, impersonates, profile, deadline, connection }))
    }
}

impl Signer for CertificateClient {
    fn issue(&self, identity: Identity, ttl: Duration) -> Signing {
        let inner = self.0.clone();
        Box::pin(async move { inner.issue(&identity, ttl).await.map_err(unsigned) })
    }
}

fn unsigned(error: IssueError) -> Unsigned {
    match error {
        IssueError::Call(CallError::Authorisation { .. }) => Unsigned::denied(error),
        IssueError::Request(_)
        | IssueError::Connect(_)
        | IssueError::Token(_)
        | IssueError::Call(_)
        | IssueError::Chain(_) => Unsigned::failed(error),
    }
}

impl Inner {
    async fn issue(&self, identity: &Identity, ttl: Duration) -> Result<Credential, IssueError> {
        let csr::Request { csr_pem, key_pem } = csr::request(identity)?;
        let request = IstioCertificateRequest {
            csr: csr_pem,
            validity_duration: i64::try_from(ttl.as_secs()).unwrap_or(TTL_ELSE_S),
            metadata: self.impersonates.then(|| impersonated(identity)),
        };
        let answer = self.ask(request).await?;
        Ok(chain::credential(identity, &answer, &key_pem, self.profile.clone(), self.impersonates)?)
    }

    /// Once more on a new connection where the one that was there had died unnoticed.
    async fn ask(&self, request: IstioCertificateRequest) -> Result<Vec<String>, IssueError> {
        let open = self.open().await?;
        let (number, fresh) = (open.number, open.fresh);
        match Box::pin(self.call(open.channel, request.clone())).await {
            Err(IssueError::Call(CallError::Broken { .. })) if !fresh => {
                self.close(number).await;
                let open = self.open().await?;
                Box::pin(self.call(open.channel, request)).await
            }
            Err(error) => {
                if let IssueError::Call(CallError::Broken { .. } | CallError::Silent { .. }) = error {
                    self.close(number).await;
                }
                Err(error)
            }
            answer => answer,
        }
    }

    async fn call(
        &self,
        channel: Channel,
        message: IstioCertificateRequest,
    ) -> Result<Vec<String>, IssueError> {
        let origin: Uri = self.target.uri().clone();
        let mut client = Grpc::with_origin(channel, origin).max_decoding_message_size(CA_ANSWER_BYTES);
        let mut request = tonic::Request::new(message);
        self.target.headers(request.metadata_mut())?;
        let called = async {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
            client.unary(request, PathAndQuery::from_static(CREATE_CERTIFICATE), codec).await
        };
        match timeout(self.deadline, called).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().cert_chain),
            Ok(Err(status)) => Err(IssueError::Call(self.target.explain(&status))),
            Err(_) => Err(IssueError::Call(self.target.silent(self.deadline))),
        }
    }

    /// The connection, made anew where there is none or its roots are no longer the ones to believe. Whoever waits
    /// while another dials shares what comes of it.
    async fn open(&self) -> Result<Open, IssueError> {
        let asked = Instant::now();
        let mut connection = self.connection.lock().await;
        let roots = self.target.roots_now().map_err(|error| IssueError::Connect(Arc::new(error)))?;
        if let Some(open) = connection.open.as_mut().filter(|open| open.roots == roots) {
            open.fresh = false;
            return Ok(open.clone());
        }
        if let Some((at, error)) = &connection.failed
            && *at >= asked
        {
            return Err(IssueError::Connect(error.clone()));
        }
        connection.open = None;
        match Box::pin(self.target.connect_with(roots.clone())).await {
            Ok(channel) => {
                connection.dialled += 1;
                let open = Open { channel, roots, number: connection.dialled, fresh: true };
                Ok(connection.open.insert(open).clone())
            }
            Err(error) => {
                let error = Arc::new(error);
                connection.failed = Some((Instant::now(), error.clone()));
                Err(IssueError::Connect(error))
            }
        }
    }

    /// Unless it is another one by now.
    async fn close(&self, number: u64) {
        let mut connection = self.connection.lock().await;
        connection.open.take_if(|open| open.number == number);
    }
}

/// In whose name the caller asks.
fn impersonated(identity: &Identity) -> Struct {
    let value = Value { kind: Some(Kind::StringValue(identity.to_string())) };
    Struct { fields: BTreeMap::from([("ImpersonatedIdentity".to_owned(), value)]) }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
