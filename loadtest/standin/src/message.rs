//! gRPC on HTTP/2 by hand, since most of what is asked of the stand-in no library would send: messages in and out,
//! in pieces, late, cut short, and the trailers.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Pieces of a large response are gathered up to this many bytes.
const PIECE_BYTES: usize = 256 * 1_024;
/// Compression flag and length.
const PREFIX_BYTES: usize = 5;

/// The other side is gone, or a fault ended the stream on purpose.
#[derive(Debug)]
pub(crate) struct Gone;

/// Messages of a request's body.
pub(crate) struct Messages {
    body: RecvStream,
    buffer: BytesMut,
}

impl Messages {
    pub fn new(body: RecvStream) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// None where the client ended its side or is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(&[_, a, b, c, d]) = self.buffer.get(..PREFIX_BYTES) {
                let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
                if self.buffer.len() >= PREFIX_BYTES + length {
                    let mut message = self.buffer.split_to(PREFIX_BYTES + length);
                    return Some(message.split_off(PREFIX_BYTES).freeze());
                }
            }
            let data = self.body.data().await?.ok()?;
            self.buffer.extend_from_slice(&data);
            self.body.flow_control().release_capacity(data.len()).ok()?;
        }
    }
}

/// The answering side of a stream; headers go out with the first message, as grpc-go does it.
pub(crate) struct Answer {
    respond: SendResponse<Bytes>,
    send: Option<SendStream<Bytes>>,
}

/// Bytes in small pieces with pauses between.
#[derive(Clone, Copy, Debug)]
pub struct Trickle {
    pub bytes: usize,
    pub pause: Duration,
}

impl Answer {
    pub fn new(respond: SendResponse<Bytes>) -> Self {
        Self { respond, send: None }
    }

    /// One message, given in parts.
    pub async fn message(&mut self, parts: Vec<Bytes>, trickle: Option<Trickle>) -> Result<(), Gone> {
        let length = parts.iter().map(Bytes::len).sum();
        self.part_of_message(length, parts, trickle).await
    }

    /// A prefix that promises `length` bytes, and these.
    pub async fn part_of_message(
        &mut self,
        length: usize,
        parts: Vec<Bytes>,
        trickle: Option<Trickle>,
    ) -> Result<(), Gone> {
        let mut gathered = BytesMut::with_capacity(PIECE_BYTES.min(length) + PREFIX_BYTES);
        gathered.put_u8(0);
        gathered.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        for part in parts {
            gathered.extend_from_slice(&part);
            if gathered.len() >= PIECE_BYTES {
                self.bytes(gathered.split().freeze(), trickle).await?;
            }
        }
        self.bytes(gathered.freeze(), trickle).await
    }

    /// Ends the stream with a status, in the headers where nothing was sent before.
    pub fn end(&mut self, code: u16, message: &str) -> Result<(), Gone> {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(code));
        trailers.insert("grpc-message", HeaderValue::from_str(message).map_err(|_| Gone)?);
        match &mut self.send {
            Some(send) => send.send_trailers(trailers).map_err(|_| Gone),
            None => {
                let mut response = headers();
                response.headers_mut().extend(trailers);
                self.respond.send_response(response, true).map(drop).map_err(|_| Gone)
            }
        }
    }

    pub fn reset(&mut self) {
        self.respond.send_reset(Reason::INTERNAL_ERROR);
    }

    /// Until the client resets the stream or its connection ends.
    pub async fn abandoned(&mut self) {
        let respond = &mut self.respond;
        match &mut self.send {
            Some(send) => drop(poll_fn(|context| send.poll_reset(context)).await),
            None => drop(poll_fn(|context| respond.poll_reset(context)).await),
        }
    }

    async fn bytes(&mut self, mut bytes: Bytes, trickle: Option<Trickle>) -> Result<(), Gone> {
        if self.send.is_none() {
            self.send = Some(self.respond.send_response(headers(), false).map_err(|_| Gone)?);
        }
        let send = self.send.as_mut().ok_or(Gone)?;
        while !bytes.is_empty() {
            let wanted = trickle.map_or(bytes.len(), |trickle| trickle.bytes.clamp(1, bytes.len()));
            send.reserve_capacity(wanted);
            while send.capacity() == 0 {
                poll_fn(|context| send.poll_capacity(context)).await.ok_or(Gone)?.map_err(|_| Gone)?;
            }
            let piece = bytes.split_to(wanted.min(send.capacity()));
            send.send_data(piece, false).map_err(|_| Gone)?;
            if let Some(trickle) = trickle {
                tokio::time::sleep(trickle.pause).await;
            }
        }
        Ok(())
    }
}

fn headers() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// A `DeltaDiscoveryResponse` in parts, its resources encoded before: a million of them are never copied at once.
pub(crate) fn response(
    system_version: &str,
    type_url: &str,
    nonce: &str,
    resources: impl IntoIterator<Item = Bytes>,
    removed: &[String],
) -> Vec<Bytes> {
    let mut parts = vec![field(1, system_version.as_bytes())];
    for resource in resources {
        parts.push(field_key(2, resource.len()));
        parts.push(resource);
    }
    parts.push(field(4, type_url.as_bytes()));
    parts.push(field(5, nonce.as_bytes()));
    parts.extend(removed.iter().map(|name| field(6, name.as_bytes())));
    parts
}

/// A length-delimited field.
pub(crate) fn field(tag: u32, value: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(field_key(tag, value.len()));
    bytes.extend_from_slice(value);
    bytes.freeze()
}

fn field_key(tag: u32, length: usize) -> Bytes {
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    let mut bytes = BytesMut::with_capacity(key_len(tag) + encoded_len_varint(length));
    encode_key(tag, WireType::LengthDelimited, &mut bytes);
    encode_varint(length, &mut bytes);
    bytes.freeze()
}
