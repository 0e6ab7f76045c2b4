//! The far end of every load: sink, source and exchanges on one port, on one thread.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::protocol::{OPENING_BYTES, Opening, encode_answer, encode_trailer};
use crate::pattern::{CHUNK_BYTES, Pattern};
use crate::sockets::v4;

const BACKLOG: u32 = 4_096;
/// Written at once by a source: enough to keep the socket full, little enough to stop soon.
const SOURCE_WRITE_BYTES: usize = 128 * 1024;

/// Serves until the process ends.
pub async fn serve(port: u16) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    accept(socket.listen(BACKLOG)?).await
}

async fn accept(listener: TcpListener) -> Result<()> {
    let pattern = Arc::new(Pattern::new());
    loop {
        let (stream, from) = listener.accept().await?;
        let pattern = Arc::clone(&pattern);
        tokio::spawn(async move {
            // The client counts what fails; here a broken connection is just over.
            let _ = Box::pin(connection(stream, from, &pattern)).await;
        });
    }
}

async fn connection(mut stream: TcpStream, from: SocketAddr, pattern: &Pattern) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut opening = [0; OPENING_BYTES];
    stream.read_exact(&mut opening).await?;
    let opening = Opening::decode(&opening).ok_or(io::ErrorKind::InvalidData)?;
    stream.write_all(&encode_answer(*v4(from)?.ip())).await?;
    match opening {
        Opening::Sink => sink(stream, pattern).await,
        Opening::Source => source(stream, pattern).await,
        Opening::Exchange { request_bytes, response_bytes } => {
            exchange(stream, request_bytes as usize, response_bytes as usize).await
        }
    }
}

async fn sink(mut stream: TcpStream, pattern: &Pattern) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut count, mut intact) = (0, true);
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            break;
        }
        intact &= buffer.get(..length).is_some_and(|bytes| pattern.matches(count, bytes));
        count += length as u64;
    }
    stream.write_all(&encode_trailer(count, intact)).await?;
    stream.shutdown().await
}

async fn source(mut stream: TcpStream, pattern: &Pattern) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut count = 0;
    let mut wish = [0; 1];
    loop {
        tokio::select! {
            biased;
            _ = reader.read(&mut wish) => break,
            written = writer.write(pattern.at(count, SOURCE_WRITE_BYTES)) => count += written? as u64,
        }
    }
    writer.write_all(&encode_trailer(count, true)).await?;
    writer.shutdown().await
}

async fn exchange(mut stream: TcpStream, request_bytes: usize, response_bytes: usize) -> io::Result<()> {
    let mut request = vec![0; request_bytes];
    let response = vec![0x5a; response_bytes];
    while read_or_end(&mut stream, &mut request).await? {
        stream.write_all(&response).await?;
    }
    stream.shutdown().await
}

/// Fills `buffer`; false if the client finished before its first byte.
async fn read_or_end(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let first = stream.read(buffer).await?;
    if first == 0 {
        return Ok(false);
    }
    if let Some(rest) = buffer.get_mut(first..) {
        stream.read_exact(rest).await?;
    }
    Ok(true)
}
