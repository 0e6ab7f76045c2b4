//! Request and response over TLS 1.3 on monoio with monoio-rustls, server and client: a second event loop and
//! record layer to hold figures against. Without HTTP/2, where monoio-rustls fails.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use monoio::io::{AsyncReadRentExt, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};
use monoio_rustls::{ServerTlsStream, TlsAcceptor, TlsConnector};
use rustls::{ClientConfig, ServerConfig};

use super::outcome::{Outcome, Tally};
use super::protocol::{ANSWER_BYTES, OPENING_BYTES, Opening, decode_answer, encode_answer};
use super::requests::Requests;

/// Serves exchanges over TLS until the process ends.
pub fn serve(port: u16, config: ServerConfig) -> Result<()> {
    on_monoio(async move {
        let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        loop {
            let (stream, from) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let acceptor = acceptor.clone();
            let seen = *crate::sockets::v4(from)?.ip();
            monoio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    // The client counts what fails.
                    let _ = serve_exchanges(stream, seen).await;
                }
            });
        }
    })
}

async fn serve_exchanges(mut stream: ServerTlsStream<TcpStream>, seen: Ipv4Addr) -> Result<()> {
    let (read, opening) = stream.read_exact(vec![0; OPENING_BYTES]).await;
    read?;
    let opening = opening.first_chunk().and_then(Opening::decode).context("not an opening")?;
    stream.write_all(encode_answer(seen).to_vec()).await.0?;
    let Opening::Exchange { request_bytes, response_bytes } = opening else { return Ok(()) };
    let mut request = vec![0; request_bytes as usize];
    let mut response = vec![0x5a; response_bytes as usize];
    loop {
        let read;
        (read, request) = stream.read_exact(request).await;
        read?;
        let written;
        (written, response) = stream.write_all(response).await;
        written?;
    }
}

/// The client: kept connections, closed loop.
pub fn rr(requests: &Requests, config: ClientConfig) -> Result<()> {
    let outcome = on_monoio(measure(requests.clone(), config))?;
    requests.target.report(&outcome)
}

async fn measure(requests: Requests, config: ClientConfig) -> Result<Outcome> {
    let tally = Rc::new(RefCell::new(Tally::new()?));
    let connector = TlsConnector::from(Arc::new(config));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..requests.connections)
        .map(|_| {
            let (requests, connector, tally) = (requests.clone(), connector.clone(), Rc::clone(&tally));
            monoio::spawn(async move {
                if let Err(fault) = exchanges(&requests, connector, &tally).await {
                    tally.borrow_mut().error(fault);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
    let outcome = tally.borrow_mut().finish(begun.elapsed());
    Ok(outcome)
}

async fn exchanges(requests: &Requests, connector: TlsConnector, tally: &RefCell<Tally>) -> Result<()> {
    let stream = TcpStream::connect(requests.target.to).await?;
    stream.set_nodelay(true)?;
    let name = rustls_pki_types::ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into());
    let mut stream = connector.connect(name, stream).await?;
    let Requests { request_bytes, response_bytes, .. } = *requests;
    let opening = Opening::Exchange { request_bytes, response_bytes };
    stream.write_all(opening.encode().to_vec()).await.0?;
    let (read, answer) = stream.read_exact(vec![0; ANSWER_BYTES]).await;
    read?;
    let seen = answer.first_chunk().and_then(decode_answer).context("not a load server")?;
    tally.borrow_mut().outcome.seen_as = Some(seen.to_string());
    let mut request = vec![0xa5; request_bytes as usize];
    let mut response = vec![0; response_bytes as usize];
    let end = Instant::now() + requests.target.duration();
    while Instant::now() < end {
        let begun = Instant::now();
        let written;
        (written, request) = stream.write_all(request).await;
        written?;
        let read;
        (read, response) = stream.read_exact(response).await;
        read?;
        tally.borrow_mut().operation(begun.elapsed());
    }
    Ok(())
}

fn on_monoio<T>(load: impl Future<Output = Result<T>>) -> Result<T> {
    let mut runtime = monoio::RuntimeBuilder::<monoio::FusionDriver>::new().enable_timer().build()?;
    runtime.block_on(load)
}
