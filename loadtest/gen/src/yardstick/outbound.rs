//! A pod's captured connections, each onto a stream of a tunnel to the destination's proxy.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use h2::{RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::log::Connection;
use super::pool::{Place, Pool};
use super::{HBONE_PORT, OUTBOUND_PORT, Pod, copy};
use crate::sockets::{listen_in, original_destination, tune, v4};

const BAGGAGE: &str = "k8s.cluster.name=Kubernetes,k8s.namespace.name=default,k8s.deployment.name=client,\
                       service.name=client,service.version=v1";

pub async fn run(pod: Arc<Pod>) -> Result<()> {
    let listener = listen_in(&pod.namespace, OUTBOUND_PORT)?;
    let pool = Arc::new(Pool::new(Arc::clone(&pod))?);
    loop {
        let (socket, from) = listener.accept().await?;
        let (pod, pool) = (Arc::clone(&pod), Arc::clone(&pool));
        tokio::spawn(async move {
            // A connection that was reset before we looked has nothing to tell.
            let Ok(from) = tune(&SockRef::from(&socket)).and_then(|()| v4(from)) else { return };
            let Ok(to) = original_destination(&socket) else { return };
            let begun = Instant::now();
            pod.log.opened();
            let outcome = Box::pin(connection(socket, from, to, &pool)).await.map_err(io::Error::other);
            let connection = Connection {
                from,
                to: SocketAddrV4::new(*to.ip(), HBONE_PORT),
                destination: to,
                direction: "outbound",
                source_identity: &pod.identity,
                destination_identity: &pod.peer_identity,
                begun,
            };
            pod.log.closed(&connection, &outcome);
        });
    }
}

async fn connection(
    socket: TcpStream,
    from: SocketAddrV4,
    to: SocketAddrV4,
    pool: &Pool,
) -> Result<(u64, u64)> {
    let mut place = pool.place(*from.ip(), *to.ip()).await?;
    let (send, receive) = connect(&mut place, from, to).await?;
    Ok(copy::tunnel(socket, send, receive).await?)
}

async fn connect(
    place: &mut Place,
    from: SocketAddrV4,
    to: SocketAddrV4,
) -> Result<(SendStream<bytes::Bytes>, RecvStream)> {
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri(to.to_string())
        .header("baggage", BAGGAGE)
        .header("forwarded", format!("for=\"{from}\""))
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .body(())?;
    let (response, send) = place.requests.send_request(request, false).context("h2 failed")?;
    let response = response.await.context("h2 failed")?;
    ensure!(response.status() == StatusCode::OK, "http status: {}", response.status());
    Ok((send, response.into_body()))
}
