//! The `h2` crate as the other end, in both roles, over an in-memory pipe with random chunking.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::super::{Code, ConnectHead, Connection, Event, RequestHead, Settings, StreamId};
use super::{HEAD, seeded, settings};

/// One stream as a simple application sees it.
#[derive(Default)]
struct Flow {
    /// To be sent; a server puts what it got here.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    status: Option<u16>,
    baggage: Option<Vec<u8>>,
    ended: bool,
    finished: bool,
    reset: Option<Code>,
}

/// Our end: a connection, a pipe, and applications that echo (server) or send and collect (client).
struct Tunnel {
    connection: Connection,
    echo: bool,
    flows: HashMap<StreamId, Flow>,
    requests: Vec<RequestHead>,
    goaway: Option<(StreamId, Code)>,
    /// A server resets requests to this authority instead of answering.
    refuse: Option<&'static str>,
    random: fastrand::Rng,
}

impl Tunnel {
    fn server(settings: &Settings, seed: u64) -> Self {
        Self::new(Connection::server(settings, Instant::now()), true, seed)
    }

    fn client(settings: &Settings, seed: u64) -> Self {
        Self::new(Connection::client(settings, Instant::now()), false, seed)
    }

    fn new(connection: Connection, echo: bool, seed: u64) -> Self {
        let (flows, requests, random) = (HashMap::new(), Vec::new(), seeded(seed));
        Self { connection, echo, flows, requests, goaway: None, refuse: None, random }
    }

    fn open(&mut self, head: &ConnectHead<'_>, outgoing: Vec<u8>) -> StreamId {
        let stream = self.connection.open(head).unwrap();
        self.flows.insert(stream, Flow { outgoing, ..Flow::default() });
        stream
    }

    /// Runs until the far end hangs up, or `done` says so.
    async fn run(&mut self, io: &mut DuplexStream, mut done: impl FnMut(&mut Self) -> bool) {
        let (mut reader, mut writer) = tokio::io::split(io);
        let mut buffer = vec![0; 64 * 1024];
        let mut out: Vec<u8> = Vec::new();
        loop {
            out.append(self.connection.output());
            self.pump(&mut out);
            let over = done(self);
            out.append(self.connection.output());
            if over && out.is_empty() {
                return;
            }
            let chunk = self.random.usize(1..=buffer.len());
            tokio::select! {
                read = reader.read(&mut buffer[..chunk]) => {
                    let Ok(length @ 1..) = read else { return };
                    self.feed(&buffer[..length]);
                }
                written = writer.write(&out), if !out.is_empty() => {
                    let Ok(written) = written else { return };
                    out.drain(..written);
                }
            }
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let mut events = Vec::new();
        self.connection.receive(bytes, Instant::now(), &mut events).unwrap();
        for event in events {
            match event {
                Event::Request { stream, head, end } => {
                    if self.refuse.is_some() && head.authority.as_deref() == self.refuse {
                        self.connection.reset(stream, Code::REFUSED_STREAM);
                    } else {
                        self.connection.respond(stream, 200, Some("cloud.region=r1"), false);
                        self.flows.insert(stream, Flow { ended: end, ..Flow::default() });
                    }
                    self.requests.push(*head);
                }
                Event::Response { stream, status, baggage, end } => {
                    let flow = self.flows.get_mut(&stream).unwrap();
                    (flow.status, flow.baggage, flow.ended) = (Some(status), baggage, end);
                }
                Event::Data { stream, payload } => {
                    let flow = self.flows.get_mut(&stream).unwrap();
                    let length = payload.len();
                    let into = if self.echo { &mut flow.outgoing } else { &mut flow.incoming };
                    into.extend_from_slice(&bytes[payload]);
                    if !self.echo {
                        self.connection.consumed(stream, length);
                    }
                }
                Event::End { stream } => self.flows.get_mut(&stream).unwrap().ended = true,
                Event::Reset { stream, code } => self.flows.get_mut(&stream).unwrap().reset = Some(code),
                Event::GoAway { last, code } => self.goaway = Some((last, code)),
                Event::Settings | Event::Writable { .. } | Event::Pong => {}
            }
        }
    }

    /// Sends what the windows allow; keeps the pipe's backlog small, as the product does.
    fn pump(&mut self, out: &mut Vec<u8>) {
        for (stream, flow) in &mut self.flows {
            while flow.sent < flow.outgoing.len() && out.len() < 256 * 1024 {
                let capacity = self.connection.capacity(*stream).min(self.connection.peer_frame_bytes());
                let length = capacity.min(flow.outgoing.len() - flow.sent).min(self.random.usize(1..40_000));
                if length == 0 {
                    break;
                }
                out.extend_from_slice(&self.connection.data(*stream, length, false));
                out.extend_from_slice(&flow.outgoing[flow.sent..flow.sent + length]);
                flow.sent += length;
                if self.echo {
                    self.connection.consumed(*stream, length);
                }
            }
            let all = flow.sent == flow.outgoing.len() && (flow.ended || !self.echo);
            if all && !flow.finished && flow.reset.is_none() {
                flow.finished = true;
                self.connection.finish(*stream);
                out.append(self.connection.output());
            }
        }
    }
}

fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut random = seeded(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

async fn send_all(mut body: SendStream<Bytes>, bytes: Vec<u8>) {
    let mut rest = Bytes::from(bytes);
    while !rest.is_empty() {
        body.reserve_capacity(rest.len().min(50_000));
        let capacity = std::future::poll_fn(|context| body.poll_capacity(context)).await.unwrap().unwrap();
        body.send_data(rest.split_to(capacity.min(rest.len())), false).unwrap();
    }
    body.send_data(Bytes::new(), true).unwrap();
}

async fn receive_all(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

fn request(authority: &str) -> http::Request<()> {
    let builder = http::Request::builder().method("CONNECT").uri(authority).version(http::Version::HTTP_2);
    builder.header("baggage", "k8s.pod.name=client").header("traceparent", "00-1-2-01").body(()).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let limit = std::time::Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, future).await.expect("it hangs") })
}

/// Settings of ours, from generous to as small as HTTP/2 allows, and the peer's windows.
fn cases() -> impl Iterator<Item = (u64, Settings, u32, u32)> {
    let seed = std::env::var("H2_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("seeds from {first}; set H2_SEED to repeat");
    let sizes = [(256 << 10, 4 << 20, 1 << 20), (1_000, 1_000, 65_535), (20_000, 200_000, 65_535)];
    (first..first + 6).zip(sizes.into_iter().cycle()).map(|(seed, (start, stream, peer))| {
        let connection_window_bytes = if start < 10_000 { 65_535 } else { 16 << 20 };
        let ours = Settings {
            start_window_bytes: start,
            stream_window_bytes: stream,
            connection_window_bytes,
            ..settings()
        };
        (seed, ours, peer, if seed % 2 == 0 { 65_535 } else { 1 << 20 })
    })
}

#[test]
fn an_h2_client_gets_every_byte_back() {
    for (seed, ours, window, whole) in cases() {
        block_on(async {
            let (mut near, far) = tokio::io::duplex(64 * 1024);
            let mut tunnel = Tunnel::server(&ours, seed);
            let peer = async move {
                let mut builder = h2::client::Builder::new();
                builder.initial_window_size(window).initial_connection_window_size(whole);
                let (client, connection) = builder.handshake::<_, Bytes>(far).await.unwrap();
                tokio::spawn(async move { connection.await.unwrap() });
                let mut tasks = Vec::new();
                for number in 0..5 {
                    let mut client = client.clone().ready().await.unwrap();
                    let (response, body) = client.send_request(request("web.default:80"), false).unwrap();
                    let bytes = text(seed + number, 300_000 * usize::try_from(number).unwrap() + 1);
                    let expected = bytes.clone();
                    let sending = tokio::spawn(send_all(body, bytes));
                    tasks.push(tokio::spawn(async move {
                        let response = response.await.unwrap();
                        assert_eq!(response.status(), 200);
                        assert_eq!(response.headers()["baggage"], "cloud.region=r1");
                        let got = receive_all(response.into_body()).await.unwrap();
                        assert!(got == expected, "seed {seed}: {} of {}", got.len(), expected.len());
                        sending.await.unwrap();
                    }));
                }
                drop(client);
                for task in tasks {
                    task.await.unwrap();
                }
            };
            tokio::join!(tunnel.run(&mut near, |_| false), peer);
            assert_eq!(tunnel.connection.active_streams(), 0, "seed {seed}");
            assert_eq!(tunnel.requests.len(), 5);
            assert_eq!(tunnel.requests[4].authority.as_deref(), Some("web.default:80"));
            assert_eq!(tunnel.requests[4].baggage, [b"k8s.pod.name=client"]);
            assert_eq!(tunnel.requests[4].traceparent.as_deref(), Some(&b"00-1-2-01"[..]));
        });
    }
}

/// An h2 server: echoes, refuses `refuse:1`, answers 503 to `fail:1`, resets `break:1` in mid-stream.
async fn h2_server(far: DuplexStream, window: u32, whole: u32, streams: u32) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(whole).max_concurrent_streams(streams);
    let mut connection = builder.handshake::<_, Bytes>(far).await.unwrap();
    while let Some(accepted) = connection.accept().await {
        let Ok((request, mut respond)) = accepted else { return };
        assert_eq!(request.method(), "CONNECT");
        let authority = request.uri().authority().unwrap().to_string();
        tokio::spawn(async move {
            let answer =
                |status| http::Response::builder().status(status).header("baggage", "a=1").body(()).unwrap();
            match authority.as_str() {
                "refuse:1" => respond.send_reset(Reason::REFUSED_STREAM),
                "fail:1" => drop(respond.send_response(answer(503), true).unwrap()),
                "break:1" => respond.send_response(answer(200), false).unwrap().send_reset(Reason::CANCEL),
                _ => {
                    let body = respond.send_response(answer(200), false).unwrap();
                    let (sender, mut chunks) = tokio::sync::mpsc::channel::<Vec<u8>>(4);
                    let reading = async move {
                        let mut stream = request.into_body();
                        while let Some(Ok(chunk)) = stream.data().await {
                            stream.flow_control().release_capacity(chunk.len()).unwrap();
                            sender.send(chunk.to_vec()).await.unwrap();
                        }
                    };
                    let writing = async move {
                        let mut body = body;
                        while let Some(chunk) = chunks.recv().await {
                            let mut rest = Bytes::from(chunk);
                            while !rest.is_empty() {
                                body.reserve_capacity(rest.len());
                                let some = std::future::poll_fn(|context| body.poll_capacity(context)).await;
                                let Some(Ok(some)) = some else { return };
                                body.send_data(rest.split_to(some.min(rest.len())), false).unwrap();
                            }
                        }
                        body.send_data(Bytes::new(), true).unwrap();
                    };
                    tokio::join!(reading, writing);
                }
            }
        });
    }
}

#[test]
fn an_h2_server_gives_every_byte_back() {
    for (seed, ours, window, whole) in cases() {
        block_on(async {
            let (mut near, far) = tokio::io::duplex(64 * 1024);
            let peer = tokio::spawn(h2_server(far, window, whole, 100));
            let mut tunnel = Tunnel::client(&Settings { header_list_bytes: 16_384, ..ours }, seed);
            let head = ConnectHead { baggage: Some("b=2"), forwarded: Some("for=x"), ..HEAD };
            let streams: Vec<StreamId> = (0..5)
                .map(|number| {
                    tunnel.open(&head, text(seed + number, 250_000 * usize::try_from(number).unwrap()))
                })
                .collect();
            tunnel.run(&mut near, |tunnel| tunnel.connection.active_streams() == 0).await;
            drop(near);
            peer.await.unwrap();
            for stream in streams {
                let flow = &tunnel.flows[&stream];
                assert_eq!((flow.status, flow.baggage.as_deref()), (Some(200), Some(&b"a=1"[..])));
                assert!(flow.ended && flow.incoming == flow.outgoing, "seed {seed}: stream {stream}");
            }
        });
    }
}

#[test]
fn refusals_failures_and_resets_of_an_h2_server() {
    block_on(async {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let peer = tokio::spawn(h2_server(far, 65_535, 65_535, 3));
        let mut tunnel = Tunnel::client(&settings(), 1);
        let refused = tunnel.open(&ConnectHead { authority: "refuse:1", ..HEAD }, text(1, 200_000));
        let failed = tunnel.open(&ConnectHead { authority: "fail:1", ..HEAD }, Vec::new());
        let broken = tunnel.open(&ConnectHead { authority: "break:1", ..HEAD }, text(1, 200_000));
        let mut more = None;
        tunnel
            .run(&mut near, |tunnel| {
                if tunnel.connection.active_streams() == 0 && more.is_none() {
                    assert_eq!(tunnel.connection.peer_max_streams(), 3);
                    more = Some(tunnel.open(&HEAD, text(1, 200_000)));
                    return false;
                }
                more.is_some_and(|stream| tunnel.flows[&stream].ended && tunnel.flows[&stream].finished)
            })
            .await;
        drop(near);
        peer.await.unwrap();
        assert_eq!(tunnel.flows[&refused].reset, Some(Code::REFUSED_STREAM));
        assert_eq!(tunnel.flows[&failed].status, Some(503));
        assert_eq!(tunnel.flows[&broken].reset, Some(Code::CANCEL));
        let last = &tunnel.flows[&more.unwrap()];
        assert!(last.incoming == last.outgoing);
    });
}

#[test]
fn an_h2_client_sees_refusals_and_a_graceful_end() {
    block_on(async {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let mut tunnel = Tunnel::server(&settings(), 2);
        tunnel.refuse = Some("refuse:1");
        let peer = async move {
            let (client, connection) = h2::client::handshake(far).await.unwrap();
            let driver = tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let (response, _body) = client.send_request(request("refuse:1"), false).unwrap();
            assert_eq!(response.await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
            let mut client = client.ready().await.unwrap();
            let (response, mut cancelled) = client.send_request(request("web:80"), false).unwrap();
            response.await.unwrap();
            cancelled.send_reset(Reason::CANCEL);
            let mut client = client.ready().await.unwrap();
            let (response, body) = client.send_request(request("last:80"), false).unwrap();
            let response = response.await.unwrap();
            // The tunnel says goodbye now; this stream still gets everything.
            let bytes = text(3, 1_000_000);
            let sending = tokio::spawn(send_all(body, bytes.clone()));
            assert!(receive_all(response.into_body()).await.unwrap() == bytes);
            sending.await.unwrap();
            assert!(client.ready().await.is_err(), "no new streams after a GOAWAY");
            driver.await.unwrap().unwrap();
        };
        let serve = tunnel.run(&mut near, |tunnel| {
            if tunnel.requests.len() == 3 && !tunnel.connection.is_draining() {
                tunnel.connection.goaway();
            }
            false
        });
        tokio::join!(serve, peer);
        let resets: Vec<Code> = tunnel.flows.values().filter_map(|flow| flow.reset).collect();
        assert_eq!(resets, [Code::CANCEL]);
        assert_eq!(tunnel.connection.active_streams(), 0);
    });
}

#[test]
fn our_violations_reach_an_h2_peer() {
    block_on(async {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        let mut tunnel = Tunnel::server(&settings(), 3);
        let peer = async move {
            let (client, connection) = h2::client::handshake::<_>(far).await.unwrap();
            let driver = tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            let (response, _body): (_, SendStream<Bytes>) =
                client.send_request(request("web:80"), false).unwrap();
            let ended = match response.await {
                Ok(response) => receive_all(response.into_body()).await.map(drop),
                Err(error) => Err(error),
            };
            assert!(ended.is_err());
            let error = driver.await.unwrap().unwrap_err();
            assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
        };
        let serve = async {
            tunnel
                .run(&mut near, |tunnel| {
                    let asked = !tunnel.requests.is_empty();
                    if asked && !tunnel.connection.is_draining() {
                        tunnel.connection.abort(Code::ENHANCE_YOUR_CALM);
                    }
                    asked
                })
                .await;
            near.shutdown().await.unwrap();
        };
        tokio::join!(serve, peer);
    });
}
