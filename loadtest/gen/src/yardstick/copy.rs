//! The copy loop of the usual design: a buffer for each direction that grows with what went through it, and
//! bytes handed to HTTP/2 without copying.

use std::future::poll_fn;
use std::io;

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

const FIRST_BYTES: usize = 1_024;
const GROWN_BYTES: usize = 16 * 1024 - 64;
const LARGE_BYTES: usize = 256 * 1024 - 64;
const GROWS_AFTER_BYTES: u64 = 128 * 1024;
const LARGE_AFTER_BYTES: u64 = 10 * 1024 * 1024;

/// Relays between a socket and a stream of a tunnel until both directions are over: (socket to tunnel, tunnel
/// to socket).
pub async fn tunnel(
    mut socket: TcpStream,
    mut send: SendStream<Bytes>,
    mut receive: RecvStream,
) -> io::Result<(u64, u64)> {
    let (mut reader, mut writer) = socket.split();
    let (up, down) = tokio::join!(to_tunnel(&mut reader, &mut send), from_tunnel(&mut receive, &mut writer));
    Ok((normal_end(up)?, normal_end(down)?))
}

/// Relays between two sockets.
pub async fn sockets(mut left: TcpStream, mut right: TcpStream) -> io::Result<(u64, u64)> {
    let ((mut left_reader, mut left_writer), (mut right_reader, mut right_writer)) =
        (left.split(), right.split());
    let (up, down) = tokio::join!(
        between(&mut left_reader, &mut right_writer),
        between(&mut right_reader, &mut left_writer)
    );
    Ok((normal_end(up)?, normal_end(down)?))
}

async fn to_tunnel(reader: &mut ReadHalf<'_>, send: &mut SendStream<Bytes>) -> io::Result<u64> {
    let (mut buffer, mut moved) = (BytesMut::new(), 0);
    loop {
        buffer.reserve(room(moved));
        let length = reader.read_buf(&mut buffer).await?;
        if length == 0 {
            send.send_data(Bytes::new(), true).map_err(fault)?;
            return Ok(moved);
        }
        moved += length as u64;
        let mut chunk = buffer.split().freeze();
        while !chunk.is_empty() {
            send.reserve_capacity(chunk.len());
            while send.capacity() == 0 {
                poll_fn(|context| send.poll_capacity(context))
                    .await
                    .ok_or(io::ErrorKind::BrokenPipe)?
                    .map_err(fault)?;
            }
            let piece = chunk.split_to(chunk.len().min(send.capacity()));
            send.send_data(piece, false).map_err(fault)?;
        }
    }
}

async fn from_tunnel(receive: &mut RecvStream, writer: &mut WriteHalf<'_>) -> io::Result<u64> {
    let mut moved = 0;
    while let Some(data) = receive.data().await {
        let data = match data {
            Ok(data) => data,
            Err(reset) if matches!(reset.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => break,
            Err(reset) => return Err(fault(reset)),
        };
        writer.write_all(&data).await?;
        receive.flow_control().release_capacity(data.len()).map_err(fault)?;
        moved += data.len() as u64;
    }
    writer.shutdown().await?;
    Ok(moved)
}

async fn between(reader: &mut ReadHalf<'_>, writer: &mut WriteHalf<'_>) -> io::Result<u64> {
    let (mut buffer, mut moved) = (BytesMut::new(), 0);
    loop {
        buffer.reserve(room(moved));
        let length = reader.read_buf(&mut buffer).await?;
        if length == 0 {
            writer.shutdown().await?;
            return Ok(moved);
        }
        writer.write_all_buf(&mut buffer).await?;
        moved += length as u64;
    }
}

fn room(moved: u64) -> usize {
    match moved {
        0..GROWS_AFTER_BYTES => FIRST_BYTES,
        GROWS_AFTER_BYTES..LARGE_AFTER_BYTES => GROWN_BYTES,
        _ => LARGE_BYTES,
    }
}

fn normal_end(direction: io::Result<u64>) -> io::Result<u64> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    match direction {
        Err(fault) if matches!(fault.kind(), BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof) => {
            Ok(0)
        }
        other => other,
    }
}

fn fault(reset: h2::Error) -> io::Error {
    match reset.reason() {
        Some(Reason::STREAM_CLOSED) => io::ErrorKind::BrokenPipe.into(),
        _ if reset.is_io() => reset.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        _ => io::Error::other(reset),
    }
}
