//! Two tunnels that talk to each other over loopback TCP and TLS, and applications at both of their ends, all on
//! the test's own thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use monoio::task::JoinHandle;
use socket2::SockRef;

use crate::mesh::identity::Identity;
use crate::shard::buffers::Buffers;
use crate::shard::closer::Closer;
use crate::shard::ending::Ending;
use crate::shard::gate::Gate;
use crate::shard::link::exchange;
use crate::shard::meter::Meter;
use crate::shard::relay::StreamRelay;
use crate::shard::rt::{EventLoop, block_on};
use crate::shard::signal::Signal;
use crate::shard::socket::Socket;
use crate::shard::stream::Stream;
use crate::shard::tunnel::{Parts, Tunnel, TunnelEnd};
use crate::tls::cert::Authority;
use crate::tls::config::{Credential, Profile};
use crate::tls::handshake::Handshake;
use crate::wire::h2::{ConnectHead, Connection, Settings};

const MIB: u32 = 1 << 20;

/// Runs a test on io_uring and on epoll; one that hangs fails.
pub fn on_both_loops(work: impl AsyncFn()) {
    for event_loop in [EventLoop::IoUring, EventLoop::Epoll] {
        let deadline = Duration::from_secs(60);
        let done = block_on(event_loop, async { monoio::time::timeout(deadline, work()).await }).unwrap();
        assert!(done.is_ok(), "hangs on {}", event_loop.as_str());
    }
}

/// Lets all other tasks of the thread run that are ready now, and those that they wake.
pub async fn turn() {
    for _ in 0..3 {
        // It runs behind them.
        monoio::spawn(async {}).await;
    }
}

/// Looks every millisecond until it is so.
pub async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        monoio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn random_bytes(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// One end of a connection, as an application has it.
#[derive(Clone)]
pub struct App(pub Rc<Socket>);

impl App {
    pub async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.0.send(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends in pieces of any size, now and then letting others run.
    pub async fn send_in_pieces(&self, mut bytes: &[u8], random: &mut fastrand::Rng) -> io::Result<()> {
        while !bytes.is_empty() {
            let most = if random.bool() { 200 } else { 200_000 };
            let (piece, rest) = bytes.split_at(random.usize(1..=most).min(bytes.len()));
            self.send(piece).await?;
            bytes = rest;
            if random.u8(..) < 8 {
                turn().await;
            }
        }
        Ok(())
    }

    pub async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.receive(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.readable().await?,
                outcome => return outcome,
            }
        }
    }

    pub async fn read_exactly(&self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.read(&mut bytes[filled..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => filled += got,
            }
        }
        Ok(bytes)
    }

    pub async fn read_to_end(&self) -> io::Result<Vec<u8>> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 100_000]);
        loop {
            match self.read(&mut buffer).await? {
                0 => return Ok(bytes),
                got => bytes.extend_from_slice(&buffer[..got]),
            }
        }
    }

    /// Whether it ends by a reset, whatever comes before.
    pub async fn is_reset(&self) -> bool {
        let outcome = self.read_to_end().await;
        matches!(outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset)
    }
}

/// Both ends of a loopback connection; `buffer_bytes` bounds what the kernel keeps of it.
pub fn connected(buffer_bytes: Option<usize>) -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tune = |socket: &SockRef<'_>| {
        if let Some(bytes) = buffer_bytes {
            socket.set_recv_buffer_size(bytes).unwrap();
            socket.set_send_buffer_size(bytes).unwrap();
        }
    };
    tune(&SockRef::from(&listener));
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    tune(&SockRef::from(&near));
    [&near, &far].iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    (Socket::new(near.into()).unwrap(), Socket::new(far.into()).unwrap())
}

pub fn meter() -> Rc<Meter> {
    Meter::new(Rc::default(), Instant::now())
}

pub fn identity(name: &str) -> Identity {
    format!("spiffe://cluster.local/ns/default/sa/{name}").parse().unwrap()
}

fn credentials() -> &'static (Arc<Credential>, Arc<Credential>) {
    static BOTH: OnceLock<(Arc<Credential>, Arc<Credential>)> = OnceLock::new();
    BOTH.get_or_init(|| {
        let authority = Authority::new("cluster.local").unwrap();
        let make = |name| {
            let hour = Duration::from_secs(3_600);
            Arc::new(authority.credential(&identity(name), hour, Profile::default()).unwrap())
        };
        (make("client"), make("server"))
    })
}

/// As the product's defaults.
pub fn settings() -> Settings {
    Settings {
        stream_window_bytes: 4 * MIB,
        connection_window_bytes: 16 * MIB,
        frame_bytes: MIB,
        max_streams: 200,
        header_list_bytes: 16 * 1024,
        start_window_bytes: MIB / 4,
    }
}

/// One relayed end: the application, and what became of its relay.
pub struct End {
    pub app: App,
    pub stream: Rc<Stream>,
    pub closer: Closer,
    pub ending: JoinHandle<Option<Ending>>,
}

/// A client's and a server's tunnel, both driven.
pub struct Pair {
    pub client: Rc<Tunnel>,
    pub server: Rc<Tunnel>,
    pub client_end: JoinHandle<TunnelEnd>,
    pub server_end: JoinHandle<TunnelEnd>,
    /// The server's end of the wire, to cut it.
    pub wire: OwnedFd,
    /// Relays of both sides are inside.
    pub gate: Rc<Gate>,
    arrived: Rc<(RefCell<VecDeque<Rc<Stream>>>, Signal)>,
}

impl Pair {
    pub async fn new() -> Self {
        Box::pin(Self::with(&settings(), &settings())).await
    }

    /// A tunnel between these two, a client and `server`.
    pub async fn between(client: &Credential, server: &Credential) -> Self {
        Box::pin(Self::made(&settings(), &settings(), client, server)).await
    }

    pub async fn with(client: &Settings, server: &Settings) -> Self {
        let (client_credential, server_credential) = credentials();
        Box::pin(Self::made(client, server, client_credential, server_credential)).await
    }

    async fn made(
        client: &Settings,
        server: &Settings,
        client_credential: &Credential,
        server_credential: &Credential,
    ) -> Self {
        let (client_socket, server_socket) = connected(None);
        let wire = server_socket.fd().try_clone_to_owned().unwrap();
        let buffers = Rc::<Buffers>::default();
        let http2 = Connection::server(server, Instant::now());
        let handshake = Handshake::server(server_credential).unwrap();
        let shaking = monoio::spawn(assemble(server_socket, handshake, http2, buffers.clone()));
        let http2 = Connection::client(client, Instant::now());
        let handshake = Handshake::client(client_credential, [identity("server")].as_slice().into()).unwrap();
        let client = Box::pin(assemble(client_socket, handshake, http2, buffers)).await;
        let server = shaking.await;
        let arrived = Rc::new((RefCell::new(VecDeque::new()), Signal::default()));
        let driven = client.clone();
        let client_end = monoio::spawn(async move { driven.drive(&|_, _| panic!("a request")).await });
        let (driven, arriving) = (server.clone(), arrived.clone());
        let server_end = monoio::spawn(async move {
            let take = |stream, _| {
                arriving.0.borrow_mut().push_back(stream);
                arriving.1.raise();
            };
            driven.drive(&take).await
        });
        Self { client, server, client_end, server_end, wire, gate: Rc::default(), arrived }
    }

    /// A CONNECT of the client.
    pub fn open(&self) -> Rc<Stream> {
        self.client.open(&head()).unwrap()
    }

    /// The next stream that has come to the server.
    pub async fn arrival(&self) -> Rc<Stream> {
        loop {
            if let Some(stream) = self.arrived.0.borrow_mut().pop_front() {
                return stream;
            }
            self.arrived.1.wait().await;
        }
    }

    /// Relays a client's stream that has its answer.
    pub fn relay_near(&self, stream: Rc<Stream>, buffer_bytes: Option<usize>) -> End {
        self.relay(&self.client, stream, buffer_bytes)
    }

    /// Answers a stream with 200 and relays it.
    pub fn relay_far(&self, stream: Rc<Stream>, buffer_bytes: Option<usize>) -> End {
        self.server.respond(&stream, 200, None, false);
        self.relay(&self.server, stream, buffer_bytes)
    }

    fn relay(&self, tunnel: &Rc<Tunnel>, stream: Rc<Stream>, buffer_bytes: Option<usize>) -> End {
        let (inner, outer) = connected(buffer_bytes);
        let closer = Closer::default();
        closer.wake(stream.signal.clone());
        let relay = Box::new(StreamRelay {
            app: Rc::new(inner),
            stream: stream.clone(),
            tunnel: tunnel.clone(),
            meter: meter(),
            closer: closer.clone(),
            clean: Cell::new(false),
        });
        let gate = self.gate.clone();
        let ending = monoio::spawn(async move { gate.run(relay.run()).await });
        End { app: App(Rc::new(outer)), stream, closer, ending }
    }

    /// A connection through both tunnels: its near and its far end.
    pub async fn through(&self) -> (End, End) {
        self.through_sized(None, None).await
    }

    pub async fn through_sized(&self, near: Option<usize>, far: Option<usize>) -> (End, End) {
        let stream = self.open();
        let far = self.relay_far(self.arrival().await, far);
        answered(&stream).await;
        (self.relay_near(stream, near), far)
    }
}

pub fn head() -> ConnectHead<'static> {
    ConnectHead { authority: "10.0.0.2:80", ..ConnectHead::default() }
}

async fn answered(stream: &Stream) {
    loop {
        if let Some(answer) = stream.take_answer() {
            assert_eq!(answer.status, 200);
            return;
        }
        assert_eq!(stream.cut(), None);
        stream.signal.wait().await;
    }
}

async fn assemble(
    socket: Socket,
    handshake: Handshake,
    http2: Connection,
    buffers: Rc<Buffers>,
) -> Rc<Tunnel> {
    let (established, tail) = exchange(&socket, handshake).await.unwrap();
    let local = socket.local().unwrap();
    let remote = TcpStream::from(socket.fd().as_fd().try_clone_to_owned().unwrap()).peer_addr().unwrap();
    Tunnel::new(Parts { socket, local, remote, established, tail, http2 }, buffers, Rc::default())
}
