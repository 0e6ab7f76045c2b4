//! Applications inside pods: each on a thread of its own in the pod's namespace, any number of connections.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringway::demo::topology::Pod;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A server that runs until it is dropped; its connections end with it.
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    peers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Server {
    /// Every connection is handled by `handle`, on one thread.
    pub fn start<H, F>(pod: &Pod, port: u16, handle: H) -> Self
    where
        H: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        Self::start_on(pod, (Ipv6Addr::UNSPECIFIED, port).into(), handle)
    }

    pub fn start_on<H, F>(pod: &Pod, on: SocketAddr, handle: H) -> Self
    where
        H: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let listener = pod.space.listen(on).expect("listening in a pod");
        let listener = Self::deepen(listener);
        let peers = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let (up, is_up) = mpsc::channel();
        let seen = peers.clone();
        let thread = std::thread::spawn(move || {
            crate::block_on(async move {
                let tasks = tokio::task::LocalSet::new();
                listener.set_nonblocking(true).expect("a non-blocking listener");
                let listener = TcpListener::from_std(listener).expect("a tokio listener");
                up.send(()).expect("the starter waits");
                let accept = async {
                    loop {
                        // Too many open files, or a connection that has gone again: the next may do.
                        let Ok((stream, peer)) = listener.accept().await else {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                            continue;
                        };
                        seen.lock().expect("the peers").push(canonical(peer));
                        tokio::task::spawn_local(handle(stream));
                    }
                };
                tasks
                    .run_until(async {
                        tokio::select! { () = accept => {}, _ = stopped => {} }
                    })
                    .await;
            });
        });
        is_up.recv().expect("the server's thread");
        Self { stop: Some(stop), thread: Some(thread), peers }
    }

    /// Where connections came from, in order.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.peers.lock().expect("the peers").clone()
    }

    pub fn peer_addresses(&self) -> Vec<IpAddr> {
        self.peers().iter().map(SocketAddr::ip).collect()
    }

    /// std listens with a queue of 128; a burst of 2,000 needs more.
    fn deepen(listener: std::net::TcpListener) -> std::net::TcpListener {
        rustix::net::listen(&listener, 4_096).expect("a longer queue");
        listener
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Sends back what comes, then its end.
pub async fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; 16 * 1_024];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if stream.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = stream.shutdown().await;
}

/// Reads everything, then answers with how much it was and what it hashed to (8 bytes each).
pub async fn digest(mut stream: TcpStream) {
    let (mut buffer, mut total, mut hash) = (vec![0; 256 * 1_024], 0_u64, Digest::default());
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => break,
            Ok(count) => {
                hash.add(&buffer[..count]);
                total += u64::try_from(count).expect("a count");
            }
            Err(_) => return,
        }
    }
    let _ = stream.write_all(&[total.to_be_bytes(), hash.value().to_be_bytes()].concat()).await;
    let _ = stream.shutdown().await;
}

/// Reads a count (8 bytes), sends that many bytes of the pattern, then its end.
pub async fn source(mut stream: TcpStream) {
    let Ok(total) = stream.read_u64().await else { return };
    let (mut buffer, mut sent) = (vec![0; 64 * 1_024], 0);
    while sent < total {
        let size = usize::try_from(total - sent).expect("a size").min(buffer.len());
        crate::pattern(total, sent, &mut buffer[..size]);
        if stream.write_all(&buffer[..size]).await.is_err() {
            return;
        }
        sent += u64::try_from(size).expect("a size");
    }
    let _ = stream.shutdown().await;
    // Until the client's end, so that nothing of ours is cut short.
    let _ = stream.read(&mut buffer).await;
}

/// Speaks first, then echoes.
pub async fn banner(mut stream: TcpStream) {
    if stream.write_all(b"220 hello\n").await.is_ok() {
        echo(stream).await;
    }
}

/// Takes connections and keeps them open without reading.
pub fn holder() -> impl Fn(TcpStream) -> std::future::Ready<()> + Send + 'static {
    thread_local! {
        static HELD: Rc<RefCell<Vec<TcpStream>>> = Rc::default();
    }
    |stream| {
        HELD.with(|held| held.borrow_mut().push(stream));
        std::future::ready(())
    }
}

/// An order-sensitive hash, independent of how the bytes were cut.
#[derive(Clone, Copy)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    pub fn value(self) -> u64 {
        self.0
    }
}
