//! The certificate service (istio-control-plane.md C.6), and every way in which its answer can be wrong.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use prost::Message;
use prost_types::value::Kind;
use rcgen::{CertificateSigningRequestParams, SanType};
use ringway::wire::pb::ca::{IstioCertificateRequest, IstioCertificateResponse};

use crate::authority::{Authority, BACKDATE, new_key};
use crate::behaviour::code;
use crate::heard::Asked;
use crate::message::{Answer, Messages};
use crate::serve::{Link, Shared};

/// Holds until changed.
#[derive(Clone, Debug)]
pub struct Signing {
    /// How long certificates are valid from now, whatever was asked.
    pub ttl: Duration,
    /// Before each answer.
    pub delay: Duration,
    pub outcome: Outcome,
    /// For one identity (SPIFFE URI), in place of `outcome`.
    pub by_identity: BTreeMap<String, Outcome>,
    /// For one request each, before all else.
    pub next: VecDeque<Outcome>,
}

impl Default for Signing {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 3_600),
            delay: Duration::ZERO,
            outcome: Outcome::Proper,
            by_identity: BTreeMap::new(),
            next: VecDeque::new(),
        }
    }
}

/// What a request is answered with.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum Outcome {
    /// The leaf, intermediates one by one, at last the bundle of roots: `Authority` says which.
    #[default]
    Proper,
    Status(u16, String),
    /// No answer.
    Silent,
    /// RST_STREAM.
    Reset,
    /// A response without certificates.
    Empty,
    LeafOnly,
    /// For this SPIFFE URI.
    WrongIdentity(String),
    /// For another key than the request's.
    WrongKey,
    /// Ended an hour ago.
    Expired,
    /// Begins in an hour.
    NotYetValid,
    /// These, whatever they are, as the chain.
    Chain(Vec<String>),
    /// These bytes as the message.
    Message(Bytes),
    /// Signed by a root that is not handed out.
    UnknownRoot,
}

pub(crate) async fn serve(shared: Arc<Shared>, link: Link, body: RecvStream, respond: SendResponse<Bytes>) {
    let (mut answer, mut messages) = (Answer::new(respond), Messages::new(body));
    let Some(request) = messages.next().await else { return };
    let Ok(request) = IstioCertificateRequest::decode(request) else {
        return drop(answer.end(code::INTERNAL, "the request can't be decoded"));
    };
    let identity = identity(&request);
    let _counted = Counted::new(
        &shared,
        Asked {
            at: Instant::now(),
            connection: link.number,
            identity: identity.clone(),
            csr: request.csr.clone(),
            validity_s: request.validity_duration,
        },
    );
    let (ttl, delay, outcome) = {
        let mut signing = shared.signing();
        let next = signing.next.pop_front();
        let outcome = next.or_else(|| signing.by_identity.get(&identity).cloned());
        (signing.ttl, signing.delay, outcome.unwrap_or_else(|| signing.outcome.clone()))
    };
    tokio::select! {
        () = tokio::time::sleep(delay) => {}
        () = answer.abandoned() => return,
    }
    let sent = match outcome {
        Outcome::Status(code, text) => return drop(answer.end(code, &text)),
        Outcome::Silent => {
            tokio::select! {
                () = answer.abandoned() => return,
                never = pending() => never,
            }
        }
        Outcome::Reset => return answer.reset(),
        Outcome::Message(bytes) => answer.message(vec![bytes], None).await,
        Outcome::Proper
        | Outcome::Empty
        | Outcome::LeafOnly
        | Outcome::WrongIdentity(_)
        | Outcome::WrongKey
        | Outcome::Expired
        | Outcome::NotYetValid
        | Outcome::Chain(_)
        | Outcome::UnknownRoot => {
            let Ok(cert_chain) = outcome.chain(&shared.authority(), &request.csr, &identity, ttl) else {
                return drop(answer.end(code::INVALID_ARGUMENT, "the certificate request can't be read"));
            };
            let response = IstioCertificateResponse { cert_chain };
            answer.message(vec![response.encode_to_vec().into()], None).await
        }
    };
    if sent.is_ok() {
        let _ = answer.end(0, "");
    }
}

impl Outcome {
    fn chain(
        &self,
        authority: &Authority,
        csr: &str,
        identity: &str,
        ttl: Duration,
    ) -> Result<Vec<String>, rcgen::Error> {
        const HOUR: Duration = Duration::from_secs(3_600);
        if let Self::Chain(chain) = self {
            return Ok(chain.clone());
        }
        if *self == Self::Empty {
            return Ok(vec![]);
        }
        let now = SystemTime::now();
        let validity = if *self == Self::Expired {
            (now - 2 * HOUR, now - HOUR)
        } else if *self == Self::NotYetValid {
            (now + HOUR, now + 2 * HOUR)
        } else {
            (now - BACKDATE.min(ttl), now + ttl)
        };
        let identity = if let Self::WrongIdentity(other) = self { other } else { identity };
        let names = vec![SanType::URI(identity.try_into()?)];
        let request = CertificateSigningRequestParams::from_pem(csr)?;
        let mut chain = if *self == Self::WrongKey {
            authority.chain(&new_key(), names, validity)
        } else if *self == Self::UnknownRoot {
            Authority::new().chain(&request.public_key, names, validity)
        } else {
            authority.chain(&request.public_key, names, validity)
        };
        if *self == Self::LeafOnly {
            chain.truncate(1);
        } else {
            chain.push(authority.bundle_pem());
        }
        Ok(chain)
    }
}

fn identity(request: &IstioCertificateRequest) -> String {
    let value = request.metadata.as_ref().and_then(|metadata| metadata.fields.get("ImpersonatedIdentity"));
    match value.and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(identity)) => identity.clone(),
        _ => String::new(),
    }
}

/// A request that is being answered.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>, asked: Asked) -> Self {
        let mut log = shared.record.lock();
        log.asked.push(asked);
        log.certificates_at_once += 1;
        log.most_certificates_at_once = log.most_certificates_at_once.max(log.certificates_at_once);
        Self(Arc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.record.lock().certificates_at_once -= 1;
    }
}
