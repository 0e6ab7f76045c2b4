//! A control plane for tests: plain HTTP/2, each stream in the hands of the test.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Endpoint;

pub use super::frames::Frames;
use super::frames::framed;
use super::{Dial, Dialing};
use crate::wire::pb::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Payload, Resource};
use crate::wire::pb::{security, workload};
use crate::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

/// Accepts streams until dropped.
pub struct Plane {
    pub address: SocketAddr,
    streams: mpsc::Receiver<Dialogue>,
    task: tokio::task::JoinHandle<()>,
}

/// One stream.
pub struct Dialogue {
    pub head: hyper::Request<()>,
    requests: RecvStream,
    read: BytesMut,
    answer: Option<h2::server::SendResponse<Bytes>>,
    send: Option<SendStream<Bytes>>,
    nonces: usize,
}

impl Plane {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, streams) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let tell = tell.clone();
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(tcp).await else { return };
                    while let Some(Ok((request, answer))) = connection.accept().await {
                        let (head, requests) = request.into_parts();
                        let head = hyper::Request::from_parts(head, ());
                        let answer = Some(answer);
                        let read = BytesMut::new();
                        let stream = Dialogue { head, requests, read, answer, send: None, nonces: 0 };
                        if tell.send(stream).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, streams, task }
    }

    pub async fn stream(&mut self) -> Dialogue {
        soon(self.streams.recv()).await.unwrap()
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Dialogue {
    /// The next request of the client; none where it has closed its side.
    pub async fn request(&mut self) -> Option<DeltaDiscoveryRequest> {
        loop {
            if let Some(length) = self.read.get(1..5) {
                let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
                if self.read.len() >= 5 + length {
                    self.read.advance(5);
                    return Some(DeltaDiscoveryRequest::decode(self.read.split_to(length)).unwrap());
                }
            }
            let chunk = soon(self.requests.data()).await?.ok()?;
            self.requests.flow_control().release_capacity(chunk.len()).unwrap();
            self.read.extend_from_slice(&chunk);
        }
    }

    /// Both first requests.
    pub async fn opening(&mut self) -> [DeltaDiscoveryRequest; 2] {
        [self.request().await.unwrap(), self.request().await.unwrap()]
    }

    pub fn raw(&mut self, bytes: Bytes) {
        let answer = &mut self.answer;
        let send = self.send.get_or_insert_with(|| {
            let head = hyper::Response::builder().header("content-type", "application/grpc").body(());
            answer.take().unwrap().send_response(head.unwrap(), false).unwrap()
        });
        send.send_data(bytes, false).unwrap();
    }

    /// Sends a response; returns its nonce.
    pub fn say(&mut self, type_url: &str, resources: Vec<Resource>, removed: &[&str]) -> String {
        self.nonces += 1;
        let nonce = format!("nonce-{}", self.nonces);
        self.raw(framed(&message(type_url, &nonce, resources, removed)));
        nonce
    }

    /// Sends it and waits for the answer; returns the text of a refusal.
    pub async fn told(
        &mut self,
        type_url: &str,
        resources: Vec<Resource>,
        removed: &[&str],
    ) -> Option<String> {
        let nonce = self.say(type_url, resources, removed);
        let answer = self.request().await.unwrap();
        assert_eq!((&*answer.type_url, &answer.response_nonce), (type_url, &nonce));
        assert!(answer.node.is_none() && answer.initial_resource_versions.is_empty());
        answer.error_detail.map(|status| status.message)
    }

    /// Ends the stream with a status, before or after the head.
    pub fn end(mut self, code: u16, message: &str) {
        let mut trailers = hyper::HeaderMap::new();
        trailers.insert("grpc-status", code.into());
        trailers.insert("grpc-message", message.parse().unwrap());
        match (self.answer.take(), self.send) {
            (_, Some(mut send)) => send.send_trailers(trailers).unwrap(),
            (Some(mut answer), None) => {
                let mut head = hyper::Response::new(());
                *head.headers_mut() = trailers;
                answer.send_response(head, true).unwrap();
            }
            (None, None) => unreachable!("one of them is there"),
        }
    }
}

fn message(
    type_url: &str,
    nonce: &str,
    resources: Vec<Resource>,
    removed: &[&str],
) -> DeltaDiscoveryResponse {
    DeltaDiscoveryResponse {
        system_version_info: "v".into(),
        resources,
        type_url: type_url.into(),
        nonce: nonce.into(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
    }
}

/// The bytes of a response, without a frame.
pub fn response(type_url: &str, nonce: &str, resources: Vec<Resource>, removed: &[&str]) -> Bytes {
    message(type_url, nonce, resources, removed).encode_to_vec().into()
}

/// What shall happen within a moment.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("nothing happens")
}

/// Reaches a `Plane`.
pub struct Plain(pub SocketAddr);

impl Dial for Plain {
    fn at(&self) -> &str {
        "http://plane"
    }

    fn dial(&self) -> Dialing<'_> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.0)).unwrap();
        Box::pin(async move {
            let failed = |error| format!("gRPC connection error connecting to {}: {error}", self.at());
            let mut headers = MetadataMap::new();
            headers.insert("clusterid", "Kubernetes".parse().unwrap());
            Ok((endpoint.connect().await.map_err(failed)?, headers))
        })
    }

    fn explain(&self, status: &Status) -> String {
        format!("{:?}: {}", status.code(), status.message())
    }
}

fn resource(name: &str, version: &str, type_url: &str, message: &impl Message) -> Resource {
    Resource {
        name: name.into(),
        version: version.into(),
        resource: Some(Payload { type_url: type_url.into(), value: message.encode_to_vec().into() }),
        aliases: Vec::new(),
    }
}

pub fn uid(name: &str) -> String {
    format!("Kubernetes//Pod/default/{name}")
}

/// A pod of namespace `default` at 10.0.0.`last`, on node `here`, for HBONE.
pub fn pod(name: &str, version: &str, last: u8) -> Resource {
    let pod = workload::Workload {
        uid: uid(name),
        name: name.into(),
        namespace: "default".into(),
        service_account: name.into(),
        addresses: vec![vec![10, 0, 0, last].into()],
        node: "here".into(),
        tunnel_protocol: workload::TunnelProtocol::Hbone.into(),
        ..workload::Workload::default()
    };
    let address = workload::Address { r#type: Some(workload::address::Type::Workload(pod)) };
    let mut resource = resource(&uid(name), version, ADDRESS_TYPE, &address);
    resource.aliases = vec![format!("/10.0.0.{last}")];
    resource
}

/// A pod whose address has 3 bytes.
pub fn bad_pod(name: &str, version: &str) -> Resource {
    let pod = workload::Workload {
        uid: uid(name),
        addresses: vec![vec![10, 0, 0].into()],
        ..workload::Workload::default()
    };
    let address = workload::Address { r#type: Some(workload::address::Type::Workload(pod)) };
    resource(&uid(name), version, ADDRESS_TYPE, &address)
}

/// `default/{name}.default.svc` at 10.1.0.`last`.
pub fn service(name: &str, version: &str, last: u8) -> Resource {
    let hostname = format!("{name}.default.svc");
    let service = workload::Service {
        name: name.into(),
        namespace: "default".into(),
        hostname: hostname.clone(),
        addresses: vec![workload::NetworkAddress {
            address: vec![10, 1, 0, last].into(),
            ..workload::NetworkAddress::default()
        }],
        ..workload::Service::default()
    };
    let address = workload::Address { r#type: Some(workload::address::Type::Service(service)) };
    resource(&format!("default/{hostname}"), version, ADDRESS_TYPE, &address)
}

/// A policy of namespace `default` that denies all. No version, as istiod sends them.
pub fn policy(name: &str) -> Resource {
    let policy = security::Authorization {
        name: name.into(),
        namespace: "default".into(),
        scope: security::Scope::Namespace.into(),
        action: security::Action::Deny.into(),
        ..security::Authorization::default()
    };
    resource(&format!("default/{name}"), "", AUTHORIZATION_TYPE, &policy)
}
