//! Two plain relays on the captured path: the price of the hops alone. The first tells the second the
//! destination in six bytes.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use anyhow::Result;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{HBONE_PORT, OUTBOUND_PORT, Pod, copy};
use crate::sockets::{dial_from, listen_in, original_destination, tune, v4};

pub async fn outbound(pod: Arc<Pod>) -> Result<()> {
    let listener = listen_in(&pod.namespace, OUTBOUND_PORT)?;
    loop {
        let (socket, _) = listener.accept().await?;
        let pod = Arc::clone(&pod);
        tokio::spawn(async move {
            // The client sees a closed connection; there is no log here.
            let _ = Box::pin(first(socket, &pod)).await;
        });
    }
}

pub async fn inbound(pod: Arc<Pod>) -> Result<()> {
    let listener = listen_in(&pod.namespace, HBONE_PORT)?;
    loop {
        let (socket, from) = listener.accept().await?;
        let pod = Arc::clone(&pod);
        tokio::spawn(async move {
            let _ = Box::pin(async { second(socket, *v4(from)?.ip(), &pod).await }).await;
        });
    }
}

async fn first(socket: TcpStream, pod: &Pod) -> io::Result<(u64, u64)> {
    tune(&SockRef::from(&socket))?;
    let to = original_destination(&socket)?;
    let mut next = dial_from(&pod.namespace, SocketAddrV4::new(*to.ip(), HBONE_PORT), None).await?;
    next.write_u32(to.ip().to_bits()).await?;
    next.write_u16(to.port()).await?;
    copy::sockets(socket, next).await
}

async fn second(mut socket: TcpStream, from: Ipv4Addr, pod: &Pod) -> io::Result<(u64, u64)> {
    tune(&SockRef::from(&socket))?;
    let to = SocketAddrV4::new(Ipv4Addr::from_bits(socket.read_u32().await?), socket.read_u16().await?);
    let application = dial_from(&pod.namespace, to, Some(from)).await?;
    copy::sockets(socket, application).await
}
