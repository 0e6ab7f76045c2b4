//! The client against an authority that signs, and one that answers everything else that can be answered.

use std::sync::Mutex as Shelf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use hyper::Request;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair,
    SanType,
};
use rustls::version::TLS13;
use tokio::net::TcpListener;

use super::super::testing::{Handler, Root, Server, options, server_config, target};
use super::super::{Options, Roots};
use super::*;
use crate::bridge::identities::{Identities, Standing};
use crate::control::ca::Ca;
use crate::control::signing::Desk;
use crate::tls::config::Exchange;

const DAY: Duration = Duration::from_secs(86_400);
const SAN: &str = "spiffe://cluster.local/ns/default/sa/web";

fn web() -> Identity {
    SAN.parse().unwrap()
}

/// Certificate authority as PEM and as issuer.
struct Signatory {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority(name: &str, above: Option<&Signatory>) -> Signatory {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = match above {
        Some(above) => params.signed_by(&key, &above.issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let pem = certificate.pem();
    Signatory { issuer: Issuer::from_ca_cert_pem(&pem, key).unwrap(), pem }
}

impl Signatory {
    /// What the request asks for, with another name and validity (hours from now) where given.
    fn sign(&self, csr: &str, name: Option<&str>, hours: (i64, i64)) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr).unwrap();
        if let Some(name) = name {
            request.params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        }
        let at = |hours: i64| time::OffsetDateTime::from(SystemTime::now()) + time::Duration::hours(hours);
        (request.params.not_before, request.params.not_after) = (at(hours.0), at(hours.1));
        request.signed_by(&self.issuer).unwrap().pem()
    }
}

type Answering = dyn Fn(IstioCertificateRequest) -> Result<Vec<String>, Status> + Send + Sync;

/// A server of one function, which also counts the calls.
fn handler(answering: Arc<Answering>, calls: Arc<AtomicUsize>) -> Handler {
    struct Say(Arc<Answering>);
    impl tonic::server::UnaryService<IstioCertificateRequest> for Say {
        type Response = IstioCertificateResponse;
        type Future = std::future::Ready<Result<tonic::Response<IstioCertificateResponse>, Status>>;
        fn call(&mut self, request: tonic::Request<IstioCertificateRequest>) -> Self::Future {
            let answer = (self.0)(request.into_inner());
            let response = |cert_chain| tonic::Response::new(IstioCertificateResponse { cert_chain });
            std::future::ready(answer.map(response))
        }
    }
    Arc::new(move |request: Request<_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        let say = Say(answering.clone());
        Box::pin(async move {
            let codec = ProstCodec::<IstioCertificateResponse, IstioCertificateRequest>::default();
            let mut server = tonic::server::Grpc::new(codec);
            server.unary(say, request).await
        })
    })
}

struct Scene {
    root: Root,
    server: Server,
    calls: Arc<AtomicUsize>,
}

async fn scene(
    answering: impl Fn(IstioCertificateRequest) -> Result<Vec<String>, Status> + Send + Sync + 'static,
) -> Scene {
    let (root, calls) = (Root::new("root"), Arc::<AtomicUsize>::default());
    let tls = tls(&root);
    let server = Server::start(tls, handler(Arc::new(answering), calls.clone())).await;
    Scene { root, server, calls }
}

fn tls(root: &Root) -> Arc<rustls::ServerConfig> {
    server_config(&root.server(&["127.0.0.1"], (-1, 24)), &[&TLS13], Exchange::Default)
}

impl Scene {
    fn options(&self) -> Options {
        options(self.server.address, &self.root)
    }

    fn client(&self) -> CertificateClient {
        client(self.options())
    }
}

fn client(options: Options) -> CertificateClient {
    CertificateClient::with_deadline(target(options), true, Duration::from_secs(5))
}

async fn refusal(
    answering: impl Fn(IstioCertificateRequest) -> Result<Vec<String>, Status> + Send + Sync + 'static,
) -> Unsigned {
    let scene = scene(answering).await;
    scene.client().issue(web(), DAY).await.err().expect("a certificate that must be refused")
}

#[tokio::test]
async fn a_certificate_is_asked_in_the_workloads_name_and_comes_with_its_chain_and_roots() {
    let (top, twin) = (authority("mesh", None), authority("mesh", None));
    let middle = authority("middle", Some(&top));
    let roots = format!("{}{}{}", top.pem, twin.pem, top.pem.trim_end());
    let seen = Arc::<Shelf<Vec<IstioCertificateRequest>>>::default();
    let remembered = seen.clone();
    let scene = scene(move |request| {
        let leaf = middle.sign(&request.csr, None, (-1, 24));
        remembered.lock().unwrap().push(request);
        Ok(vec![leaf.trim_end().to_owned(), middle.pem.trim_end().to_owned(), roots.clone()])
    })
    .await;
    let credential = scene.client().issue(web(), DAY).await.unwrap();
    assert_eq!(credential.identity(), &web());
    assert_eq!((credential.chain().len(), credential.roots().len()), (2, 3));
    assert_eq!(credential.chain()[0].uris, [SAN]);
    let request = seen.lock().unwrap().pop().unwrap();
    assert_eq!(request.validity_duration, 86_400);
    let metadata = request.metadata.unwrap();
    let Some(Kind::StringValue(name)) = &metadata.fields["ImpersonatedIdentity"].kind else {
        panic!("no text")
    };
    assert_eq!((name.as_str(), metadata.fields.len()), (SAN, 1));
    assert!(request.csr.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));

    // A proxy of one workload asks in its own name; which that is, only the authority knows.
    let own = CertificateClient::with_deadline(target(scene.options()), false, Duration::from_secs(5));
    assert!(own.issue("spiffe://other.domain/ns/a/sa/b".parse().unwrap(), Duration::MAX).await.is_ok());
    let request = seen.lock().unwrap().pop().unwrap();
    assert_eq!((request.metadata, request.validity_duration), (None, 86_400));
}

#[tokio::test]
async fn every_wrong_answer_is_refused_with_its_reason() {
    let root = || Arc::new(authority("mesh", None));
    let signed =
        |request: &IstioCertificateRequest, root: &Signatory| root.sign(&request.csr, None, (-1, 24));
    let said = |unsigned: Unsigned, part: &str| {
        println!("{unsigned}");
        assert!(unsigned.why.contains(part) && !unsigned.denied, "{part:?} is missing in: {unsigned}");
    };
    said(refusal(|_| Ok(vec![])).await, &format!("chain returned from CA is empty for: {SAN}"));
    let mesh = root();
    said(
        refusal(move |request| Ok(vec![signed(&request, &mesh)])).await,
        "invalid root certificate: no root certificate present",
    );
    let mesh = root();
    let wrong = refusal(move |request| {
        let other = "spiffe://cluster.local/ns/default/sa/other";
        Ok(vec![mesh.sign(&request.csr, Some(other), (-1, 24)), mesh.pem.clone()])
    });
    said(
        wrong.await,
        &format!(
            "did not find expected SAN: {SAN} (the certificate is for spiffe://cluster.local/ns/default/sa/other)"
        ),
    );
    let mesh = root();
    let key = refusal(move |_| {
        let other = csr::request(&web()).unwrap();
        Ok(vec![mesh.sign(&other.csr_pem, None, (-1, 24)), mesh.pem.clone()])
    });
    said(key.await, "tls error: ");
    said(refusal(|_| Ok(vec!["garbage".into(), "garbage".into()])).await, "chain returned from CA is empty");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    said(
        refusal(move |_| Ok(vec![broken.into(), broken.into()])).await,
        "certificate 1 of the chain: not an X.509",
    );
    let cut = "-----BEGIN CERTIFICATE-----\nAAAA";
    said(refusal(move |_| Ok(vec![cut.into(), cut.into()])).await, "chain isn't PEM");
    let mesh = root();
    said(
        refusal(move |request| Ok(vec![signed(&request, &mesh), format!("{}{broken}", mesh.pem)])).await,
        "certificate 2 of the roots: not an X.509",
    );
    let mesh = root();
    let long = refusal(move |request| {
        let mut chain = vec![signed(&request, &mesh)];
        chain.extend(std::iter::repeat_n(mesh.pem.clone(), 11));
        Ok(chain)
    });
    said(long.await, "has 11 certificates, more than 10");
    said(refusal(|_| Ok(vec!["x".repeat(100_000), String::new()])).await, "bytes of certificates, more than");
    let mesh = root();
    said(
        refusal(move |request| Ok(vec![signed(&request, &mesh), mesh.pem.repeat(1_025)])).await,
        "has 1025 roots, more than 1024",
    );
    said(refusal(|_| Ok(vec!["x".repeat(5 * 1024 * 1024)])).await, "OutOfRange");
}

#[tokio::test]
async fn statuses_become_reasons_and_a_denial_is_told_apart() {
    let said = refusal(|_| Err(Status::permission_denied("not you"))).await;
    assert!(said.denied && said.why.contains("not authorized: not you"), "{said}");
    let said =
        refusal(|_| Err(Status::unauthenticated("request impersonation authentication failure"))).await;
    assert!(!said.denied && said.why.contains("a pod with this identity must run on this node"), "{said}");
    let said = refusal(|_| Err(Status::unavailable("starting"))).await;
    assert!(said.why.contains("Unavailable: starting"), "{said}");
}

#[tokio::test]
async fn one_connection_serves_until_its_roots_change_or_it_dies() {
    let mesh = authority("mesh", None);
    let answer = move |request: IstioCertificateRequest| {
        Ok(vec![mesh.sign(&request.csr, None, (-1, 24)), mesh.pem.clone()])
    };
    let Scene { root, server, calls } = scene(answer).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("root-cert.pem");
    std::fs::write(&file, &root.pem).unwrap();
    let mut options = options(server.address, &root);
    options.roots = Roots::File(file.clone());
    let client = client(options);
    for _ in 0..3 {
        client.issue(web(), DAY).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
    // Another root is put beside the old one: believed from the next request on.
    std::fs::write(&file, format!("{}{}", root.pem, Root::new("next").pem)).unwrap();
    client.issue(web(), DAY).await.unwrap();
    assert_eq!(server.connections(), 2);
    // Without the server's own root there is no way on, although a connection is there.
    std::fs::write(&file, Root::new("next").pem).unwrap();
    let said = client.issue(web(), DAY).await.err().unwrap();
    assert!(said.why.contains("isn't trusted"), "{said}");
    std::fs::write(&file, &root.pem).unwrap();
    client.issue(web(), DAY).await.unwrap();
    assert_eq!((server.connections(), calls.load(Ordering::Relaxed)), (4, 5));
    // The server ends its connections as a new version of it would: nobody notices.
    server.hang_up();
    client.issue(web(), DAY).await.unwrap();
    assert_eq!(server.connections(), 5);
}

#[tokio::test]
async fn an_authority_that_is_silent_is_given_up_and_called_anew() {
    let mesh = authority("mesh", None);
    let calls = Arc::<AtomicUsize>::default();
    let answer = handler(
        Arc::new(move |request: IstioCertificateRequest| {
            Ok(vec![mesh.sign(&request.csr, None, (-1, 24)), mesh.pem.clone()])
        }),
        calls.clone(),
    );
    let root = Root::new("root");
    let first = Arc::new(AtomicUsize::new(0));
    let mute: Handler = Arc::new(move |request| match first.fetch_add(1, Ordering::Relaxed) {
        0 => Box::pin(std::future::pending()),
        _ => answer(request),
    });
    let server = Server::start(tls(&root), mute).await;
    let target = target(options(server.address, &root));
    let client = CertificateClient::with_deadline(target, true, Duration::from_millis(200));
    let said = client.issue(web(), DAY).await.err().unwrap();
    assert!(said.why.contains("no answer within 200ms"), "{said}");
    client.issue(web(), DAY).await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn those_who_wait_for_a_connection_share_its_failure() {
    let root = Root::new("root");
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(options(silent.local_addr().unwrap(), &root));
    let begun = Instant::now();
    let issues: Vec<_> = (0..8).map(|_| tokio::spawn(client.issue(web(), DAY))).collect();
    for issue in issues {
        let said = issue.await.unwrap().err().unwrap();
        assert!(said.why.contains("tls handshake timeout"), "{said}");
    }
    assert!(begun.elapsed() < Duration::from_millis(900), "each dialled for itself: {:?}", begun.elapsed());
}

#[tokio::test]
async fn pods_of_one_account_share_a_request_and_those_that_left_get_nothing() {
    let mesh = authority("mesh", None);
    let scene = scene(move |request| {
        let metadata = request.metadata.unwrap();
        let Some(Kind::StringValue(name)) = &metadata.fields["ImpersonatedIdentity"].kind else {
            return Err(Status::invalid_argument("no name"));
        };
        Ok(vec![mesh.sign(&request.csr, Some(name), (-1, 24)), mesh.pem.clone()])
    })
    .await;
    let identities = Arc::<Identities>::default();
    let keeper = Ca::new(identities.clone(), fastrand::Rng::new());
    let mut desk = Desk::new(keeper, Arc::new(scene.client()), DAY);
    let gone: Identity = "spiffe://cluster.local/ns/default/sa/gone".parse().unwrap();
    let now = SystemTime::now();
    for pod in 0..5 {
        desk.keeper.local(format!("uid{pod}").into(), Some(web()), true, now);
    }
    desk.keeper.local("gone".into(), Some(gone.clone()), true, now);
    desk.keeper.want(web(), now);
    desk.start(now);
    desk.keeper.local("gone".into(), None, true, now);
    while identities.lookup(&web(), now).is_none_or(|standing| matches!(standing, Standing::Initializing)) {
        desk.finished().await;
    }
    assert!(matches!(identities.lookup(&web(), now), Some(Standing::Available(_))));
    assert!(identities.lookup(&gone, now).is_none());
    assert!(scene.calls.load(Ordering::Relaxed) <= 2);
    desk.start(SystemTime::now());
    assert_eq!(identities.all().len(), 1);
}
