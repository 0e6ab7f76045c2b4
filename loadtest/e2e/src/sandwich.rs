//! A waypoint without HBONE of its own: the node's proxy ends the tunnels and tells by the PROXY header who calls whom.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use ringway::demo::topology::Pod;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::serve::Server;
use crate::world::STEP;

/// What a PROXY header says: caller, whom it called, the caller's identity.
pub type Told = (SocketAddr, SocketAddr, String);

/// A waypoint behind the node's proxy: reads the header, goes on to where `route` says, captured like any other.
pub fn start(
    pod: &Pod,
    port: u16,
    heard: Arc<Mutex<Vec<Told>>>,
    route: impl Fn(SocketAddr) -> SocketAddr + Clone + Send + 'static,
) -> Server {
    let space = pod.space.clone();
    Server::start(pod, port, move |mut stream: TcpStream| {
        let (space, heard, route) = (space.clone(), heard.clone(), route.clone());
        async move {
            let Some(told) = read_header(&mut stream).await else { return };
            let onward = space.connect(route(told.1), STEP);
            heard.lock().expect("what was heard").push(told);
            let Ok(onward) = onward else { return };
            onward.set_nonblocking(true).expect("a connection");
            let mut onward = TcpStream::from_std(onward).expect("a connection");
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut onward).await;
        }
    })
}

/// PROXY protocol 2 over IPv4, with the identity as type 0xd0.
async fn read_header(stream: &mut TcpStream) -> Option<Told> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await.ok()?;
    assert_eq!(&head[..14], b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let mut rest = vec![0; u16::from_be_bytes([head[14], head[15]]).into()];
    stream.read_exact(&mut rest).await.ok()?;
    let address = |at: usize, port: usize| {
        let ip = Ipv4Addr::new(rest[at], rest[at + 1], rest[at + 2], rest[at + 3]);
        SocketAddr::from((ip, u16::from_be_bytes([rest[port], rest[port + 1]])))
    };
    assert_eq!(rest[12], 0xd0);
    Some((address(0, 8), address(4, 10), String::from_utf8_lossy(&rest[15..]).into_owned()))
}
