//! The stand-in before an independent client (tonic) and the product's own reading of certificates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use prost::Message;
use prost_types::value::Kind as Value;
use ringway::mesh::identity::Identity;
use ringway::tls::config::{Credential, Profile};
use ringway::wire::pb::ca::{IstioCertificateRequest, IstioCertificateResponse};
use ringway::wire::pb::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Payload, Resource, Status as Detail,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::behaviour::{Door, Fault, Trickle, code};
use crate::certificates::Outcome;
use crate::generate::{Fleet, pod};
use crate::heard::Kind;
use crate::mesh::{ADDRESS, AUTHORIZATION, Change};
use crate::{Closing, NAME, Plan, Standin};

const STEP: Duration = Duration::from_secs(20);
/// How long nothing must happen.
const QUIET: Duration = Duration::from_millis(100);
const FLEET: Fleet = Fleet { workloads: 40, services: 4, seed: 1 };

struct Client {
    ask: mpsc::Sender<DeltaDiscoveryRequest>,
    answers: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    async fn open(channel: Channel, first: DeltaDiscoveryRequest) -> Result<Self, Status> {
        let (ask, asked) = mpsc::channel(8);
        ask.send(first).await.unwrap();
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::default());
        let stream = Request::new(ReceiverStream::new(asked));
        let answers =
            timeout(STEP, grpc.streaming(stream, path, codec)).await.expect("headers")?.into_inner();
        Ok(Self { ask, answers })
    }

    async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        timeout(STEP, self.answers.message()).await.expect("an answer in time")
    }

    async fn say(&self, request: DeltaDiscoveryRequest) {
        self.ask.send(request).await.unwrap();
    }

    async fn is_silent(&mut self) -> bool {
        timeout(QUIET, self.answers.message()).await.is_err()
    }
}

fn plain() -> Standin {
    let standin = Standin::start(Plan { plain: true, ..Plan::at("127.0.0.1:0".parse().unwrap()) });
    standin.mesh().apply(FLEET.everything(0));
    standin
}

async fn channel(standin: &Standin) -> Channel {
    Endpoint::from_shared(format!("http://{}", standin.address())).unwrap().connect().await.unwrap()
}

fn first(type_url: &str) -> DeltaDiscoveryRequest {
    let node =
        Node { id: "ztunnel~10.0.0.1~ztunnel-1.istio-system~cluster.local".to_owned(), metadata: None };
    DeltaDiscoveryRequest { node: Some(node), type_url: type_url.to_owned(), ..Default::default() }
}

fn later(nonce: &str, subscribe: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: ADDRESS.to_owned(),
        response_nonce: nonce.to_owned(),
        resource_names_subscribe: subscribe.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
}

fn names(response: &DeltaDiscoveryResponse) -> Vec<&str> {
    response.resources.iter().map(|resource| resource.name.as_str()).collect()
}

fn versions(response: &DeltaDiscoveryResponse) -> BTreeMap<String, String> {
    response.resources.iter().map(|one| (one.name.clone(), one.version.clone())).collect()
}

#[tokio::test]
async fn a_wildcard_stream_gets_everything_then_changes_and_its_answers_are_told_apart() {
    let standin = plain();
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    let all = client.next().await.unwrap().unwrap();
    assert_eq!((all.resources.len(), all.removed_resources.len()), (44, 0));
    assert_eq!(names(&all), standin.mesh().names(ADDRESS));
    assert_eq!(
        DeltaDiscoveryResponse::decode(standin.mesh().response(ADDRESS)).unwrap().resources,
        all.resources
    );
    let mut nack = later(&all.nonce, &[]);
    nack.error_detail = Some(Detail { code: 3, message: "no".to_owned() });
    client.say(nack).await;
    client.say(later(&all.nonce, &[])).await;
    client.say(later("nonce-0", &[])).await;
    assert!(client.is_silent().await);

    client.say(first(AUTHORIZATION)).await;
    let policies = client.next().await.unwrap().unwrap();
    assert_eq!((policies.type_url.as_str(), policies.resources.len()), (AUTHORIZATION, 1));
    assert_eq!(policies.resources[0].version, "");

    let changed = FLEET.workload(3, 1);
    standin.mesh().put([changed.clone()]);
    let push = client.next().await.unwrap().unwrap();
    assert_eq!((names(&push), push.type_url.as_str()), (vec![changed.uid.as_str()], ADDRESS));
    assert_ne!(Some(&push.resources[0].version), versions(&all).get(&changed.uid));
    standin.mesh().remove_addresses(&[&changed.uid]);
    let push = client.next().await.unwrap().unwrap();
    assert_eq!((push.resources.len(), push.removed_resources), (0, vec![changed.uid]));
    let kinds: Vec<Kind> = standin.heard().iter().map(|heard| heard.kind).collect();
    assert_eq!(kinds, [Kind::First, Kind::Nack, Kind::Ack, Kind::Stale, Kind::First]);
    assert_eq!((standin.connections(), standin.accepted(), standin.responses()), (1, 1, 4));
}

#[tokio::test]
async fn a_client_that_comes_back_gets_what_changed_and_what_went_or_else_everything() {
    let standin = plain();
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    let all = client.next().await.unwrap().unwrap();
    drop(client);
    let (gone, changed) = (FLEET.workload(1, 0).uid, FLEET.workload(2, 1));
    standin.mesh().remove_addresses(&[&gone]);
    standin.mesh().put([changed.clone()]);
    let again = DeltaDiscoveryRequest { initial_resource_versions: versions(&all), ..first(ADDRESS) };
    let mut client = Client::open(channel(&standin).await, again.clone()).await.unwrap();
    let difference = client.next().await.unwrap().unwrap();
    assert_eq!(names(&difference), [&changed.uid]);
    assert_eq!(difference.removed_resources, [gone]);
    standin.behave(|how| how.omits_nothing = true);
    let mut client = Client::open(channel(&standin).await, again).await.unwrap();
    let everything = client.next().await.unwrap().unwrap();
    assert_eq!((everything.resources.len(), everything.removed_resources.len()), (43, 0));
}

#[tokio::test]
async fn on_demand_names_are_looked_up_and_told_of_changes() {
    let standin = plain();
    let mut request = first(ADDRESS);
    request.resource_names_subscribe = vec!["*".to_owned()];
    request.resource_names_unsubscribe = vec!["*".to_owned()];
    let mut client = Client::open(channel(&standin).await, request).await.unwrap();
    let nothing = client.next().await.unwrap().unwrap();
    assert_eq!((nothing.resources.len(), nothing.removed_resources.len()), (0, 0));
    let (one, service) = (FLEET.workload(5, 0), FLEET.service(2));
    let host = format!("{}/{}", service.namespace, service.hostname);
    client.say(later("", &["/100.64.0.5", "/10.9.9.9"])).await;
    let found = client.next().await.unwrap().unwrap();
    assert_eq!(names(&found), [&one.uid]);
    assert_eq!(found.resources[0].aliases, ["/100.64.0.5"]);
    assert_eq!(found.removed_resources, ["/10.9.9.9"]);
    client.say(later("", &[&host])).await;
    let found = client.next().await.unwrap().unwrap();
    assert_eq!(found.resources.len(), 11);
    assert!(names(&found).contains(&host.as_str()));

    standin.mesh().put([FLEET.workload(3, 1)]);
    assert!(client.is_silent().await, "nobody asked for it");
    standin.mesh().put([FLEET.workload(2, 1), FLEET.workload(3, 2)]);
    assert_eq!(names(&client.next().await.unwrap().unwrap()), [&FLEET.workload(2, 0).uid]);
    standin.mesh().put([pod("late", "demo", "node1", &["10.9.9.9".parse().unwrap()])]);
    assert_eq!(names(&client.next().await.unwrap().unwrap()), ["Kubernetes//Pod/demo/late"]);
    standin.mesh().remove_addresses(&[&one.uid]);
    assert_eq!(client.next().await.unwrap().unwrap().removed_resources, [one.uid]);
}

#[tokio::test]
async fn each_fault_strikes_once() {
    let standin = plain();
    let odd = Resource {
        name: "odd".to_owned(),
        resource: Some(Payload { type_url: ADDRESS.to_owned(), value: Bytes::from_static(b"\xff") }),
        ..Resource::default()
    };
    let failing = [
        Fault::Half,
        Fault::Status(code::UNAVAILABLE, "later".to_owned()),
        Fault::Reset,
        Fault::Close,
        Fault::Message(Bytes::from_static(b"\x0a\xff\xff\xff\xff\xff")),
    ];
    for fault in failing {
        standin.behave(|how| how.faults.push_back(fault.clone()));
        let outcome = match Client::open(channel(&standin).await, first(ADDRESS)).await {
            Ok(mut client) => client.next().await.map(|answer| answer.is_some()),
            Err(status) => Err(status),
        };
        let status = outcome.expect_err(&format!("{fault:?}"));
        assert!(
            matches!(fault, Fault::Status(..))
                == (status.code() == Code::Unavailable && status.message() == "later")
        );
    }
    let answered = [
        (Fault::Also(vec![odd]), 45, 0, ADDRESS),
        (Fault::Twice, 88, 0, ADDRESS),
        (Fault::Removed(vec!["nobody".to_owned()]), 44, 1, ADDRESS),
        (Fault::TypeUrl("other".to_owned()), 44, 0, "other"),
        (Fault::Padded(9 * 1_024 * 1_024), 44, 0, ADDRESS),
    ];
    for (fault, resources, removed, type_url) in answered {
        standin.behave(|how| how.faults.push_back(fault.clone()));
        let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
        let answer = client.next().await.unwrap().unwrap();
        assert_eq!(
            (answer.resources.len(), answer.removed_resources.len()),
            (resources, removed),
            "{fault:?}"
        );
        assert_eq!(answer.type_url, type_url);
    }
    for fault in [Fault::Swallow, Fault::Stall, Fault::Promised(u32::MAX)] {
        standin.behave(|how| how.faults.push_back(fault));
        let opening = Client::open(channel(&standin).await, first(ADDRESS));
        let answer = timeout(QUIET, async { opening.await.unwrap().next().await }).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap().resources.len(), 44);
}

#[tokio::test]
async fn switches_delay_withhold_and_refuse() {
    let standin = plain();
    let slow = Trickle { bytes: 1_000, pause: Duration::from_millis(1) };
    standin.behave(|how| (how.delay, how.trickle) = (QUIET, Some(slow)));
    let begun = std::time::Instant::now();
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    client.next().await.unwrap().unwrap();
    let bytes = standin.mesh().response(ADDRESS).len() / slow.bytes;
    assert!(begun.elapsed() >= QUIET + slow.pause * u32::try_from(bytes).unwrap());
    standin.behave(|how| *how = Default::default());

    standin.behave(|how| how.withheld = vec![AUTHORIZATION]);
    client.say(first(AUTHORIZATION)).await;
    standin.mesh().put([FLEET.policy(0)]);
    assert!(client.is_silent().await);
    standin.end_streams(code::UNAVAILABLE, "moving on");
    assert_eq!(client.next().await.unwrap_err().message(), "moving on");
    standin.behave(|how| {
        how.refuse_discovery = Some((code::PERMISSION_DENIED, "authorization failed".to_owned()))
    });
    let refused = Client::open(channel(&standin).await, first(ADDRESS)).await.err().unwrap();
    assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, "authorization failed"));
    let nameless = DeltaDiscoveryRequest { node: None, ..first(ADDRESS) };
    standin.behave(|how| *how = Default::default());
    let refused = Client::open(channel(&standin).await, nameless).await.err().unwrap();
    assert_eq!(refused.message(), "missing node information");
}

#[tokio::test]
async fn connections_freeze_age_close_and_come_back_after_a_restart() {
    let mut standin = plain();
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    client.next().await.unwrap().unwrap();
    standin.freeze(true);
    standin.mesh().put([FLEET.workload(3, 1)]);
    assert!(client.is_silent().await);
    standin.freeze(false);
    assert_eq!(client.next().await.unwrap().unwrap().resources.len(), 1);
    for how in [Closing::Reset, Closing::Close] {
        standin.close(how);
        assert!(client.next().await.is_err(), "{how:?}");
        client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
        client.next().await.unwrap().unwrap();
    }
    standin.stop();
    assert!(client.next().await.is_err());
    standin.restart();
    standin.behave(|how| (how.max_age, how.grace) = (Some(QUIET), QUIET));
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    client.next().await.unwrap().unwrap();
    assert!(client.next().await.is_err(), "aged");
    standin.behave(|how| *how = Default::default());
    standin.eventually("no connection is left", STEP, |standin| standin.connections() == 0);

    standin.behave(|how| how.door = Door::SilentTcp);
    let socket = tokio::net::TcpStream::connect(standin.address()).await.unwrap();
    assert!(timeout(QUIET, socket.readable()).await.is_err());
    standin.behave(|how| how.door = Door::Shut);
    let socket = tokio::net::TcpStream::connect(standin.address()).await.unwrap();
    timeout(STEP, socket.readable()).await.unwrap().unwrap();
    standin.behave(|how| how.door = Door::SilentRequests);
    let opening = Client::open(channel(&standin).await, first(ADDRESS));
    assert!(timeout(QUIET, opening).await.is_err());
}

#[tokio::test]
async fn silent_changes_are_seen_by_new_streams_only() {
    let standin = plain();
    let mut client = Client::open(channel(&standin).await, first(ADDRESS)).await.unwrap();
    client.next().await.unwrap().unwrap();
    let gone = FLEET.workload(1, 0).uid;
    standin.mesh().apply_silently(Change { put: vec![], remove: vec![(ADDRESS, gone.clone())] });
    assert!(client.is_silent().await);
    standin.mesh().put([FLEET.workload(2, 1)]);
    assert_eq!(client.next().await.unwrap().unwrap().resources.len(), 1);
    assert!(!standin.mesh().names(ADDRESS).contains(&gone));
}

/// TLS towards the stand-in, for tonic.
async fn secure(standin: &Standin) -> Channel {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(standin.root_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, address) = (tokio_rustls::TlsConnector::from(Arc::new(config)), standin.address());
    let connect = Connect(move || -> Connecting {
        let connector = connector.clone();
        Box::pin(async move {
            let socket = tokio::net::TcpStream::connect(address).await?;
            let stream = connector.connect(ServerName::try_from(NAME).unwrap(), socket).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Ok(TokioIo::new(stream))
        })
    });
    Endpoint::from_static("http://istiod").connect_with_connector(connect).await.unwrap()
}

type Tls = TokioIo<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>;
type Connecting = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Tls>> + Send>>;

struct Connect<F>(F);

impl<F: Fn() -> Connecting> tower_service::Service<Uri> for Connect<F> {
    type Response = Tls;
    type Error = std::io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Connecting {
        (self.0)()
    }
}

async fn certificate(
    channel: &Channel,
    identity: &str,
    csr: &str,
    token: &str,
) -> Result<IstioCertificateResponse, Status> {
    let identity = prost_types::Value { kind: Some(Value::StringValue(identity.to_owned())) };
    let fields = BTreeMap::from([("ImpersonatedIdentity".to_owned(), identity)]);
    let mut request = Request::new(IstioCertificateRequest {
        csr: csr.to_owned(),
        validity_duration: 86_400,
        metadata: Some(prost_types::Struct { fields }),
    });
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/istio.v1.auth.IstioCertificateService/CreateCertificate");
    let answer = grpc.unary(request, path, ProstCodec::default()).await?;
    Ok(answer.into_inner())
}

const WEB: &str = "spiffe://cluster.local/ns/demo/sa/web";

#[tokio::test]
async fn certificates_are_what_the_product_takes_and_wrong_ones_what_it_refuses() {
    let standin = Standin::start(Plan::at("127.0.0.1:0".parse().unwrap()));
    standin.behave(|how| how.token = Some("secret".to_owned()));
    let channel = secure(&standin).await;
    let identity: Identity = WEB.parse().unwrap();
    let request = ringway::tls::csr::request(&identity).unwrap();
    let refused = certificate(&channel, WEB, &request.csr_pem, "other").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let take = |chain: &[String]| {
        let (roots, leaf) = chain.split_last().unwrap();
        let key = request.key_pem.as_bytes();
        Credential::new(identity.clone(), leaf.concat().as_bytes(), key, roots.as_bytes(), Profile::default())
    };
    let proper = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
    assert_eq!(proper.cert_chain.len(), 2);
    take(&proper.cert_chain).unwrap();
    standin.authority(|authority| {
        let other = authority.add_root("Stand-in root");
        authority.hand_out(&[0, other]);
        authority.sign_with(other, 2);
    });
    let long = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
    assert_eq!(long.cert_chain.len(), 4);
    assert_eq!(long.cert_chain[3].matches("BEGIN CERTIFICATE").count(), 2);
    take(&long.cert_chain).unwrap();

    let read = |pem: &str| {
        let leaf = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        ringway::tls::cert::CertificateInfo::read(&leaf).unwrap()
    };
    standin.sign(|how| how.next.push_back(Outcome::WrongKey));
    let answer = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
    assert!(take(&answer.cert_chain).is_err());
    let other = WEB.replace("web", "other");
    standin.sign(|how| how.next.push_back(Outcome::WrongIdentity(other.clone())));
    let answer = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
    assert_eq!(read(&answer.cert_chain[0]).uris, [other]);
    for (outcome, is_over) in [(Outcome::Expired, true), (Outcome::NotYetValid, false)] {
        standin.sign(|how| how.next.push_back(outcome));
        let answer = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
        let (now, leaf) = (std::time::SystemTime::now(), read(&answer.cert_chain[0]));
        assert_eq!((leaf.not_after < now, leaf.not_before > now), (is_over, !is_over));
    }
    for (outcome, length) in [(Outcome::Empty, 0), (Outcome::LeafOnly, 1), (Outcome::UnknownRoot, 2)] {
        standin.sign(|how| how.next.push_back(outcome));
        let answer = certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap();
        assert_eq!(answer.cert_chain.len(), length);
    }
    let failing = [
        Outcome::Status(code::UNAVAILABLE, "x".to_owned()),
        Outcome::Reset,
        Outcome::Message(Bytes::from_static(b"\xff")),
    ];
    for outcome in failing {
        standin.sign(|how| drop(how.by_identity.insert(WEB.to_owned(), outcome.clone())));
        certificate(&channel, WEB, &request.csr_pem, "secret").await.unwrap_err();
    }
    standin.sign(|how| (how.by_identity, how.delay) = (BTreeMap::new(), QUIET));
    let both = tokio::join!(
        certificate(&channel, WEB, &request.csr_pem, "secret"),
        certificate(&channel, WEB, &request.csr_pem, "secret")
    );
    assert!(both.0.is_ok() && both.1.is_ok());
    assert_eq!(standin.most_certificates_at_once(), 2);
    assert!(standin.asked().iter().all(|asked| asked.identity == WEB && asked.validity_s == 86_400));
    assert!(standin.streams().iter().any(|stream| stream.header("authorization") == Some("Bearer other")));
}
