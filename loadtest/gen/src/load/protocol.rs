//! The first bytes of a load connection: what the client wants, and the server's answer with the client's
//! address as it saw it. Fixed sizes, so that neither end parses.

use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAGIC: u32 = 0x5269_6e67;
pub const OPENING_BYTES: usize = 24;
pub const ANSWER_BYTES: usize = 8;
/// What ends a transfer either way: the bytes counted and whether they were the pattern's.
pub const TRAILER_BYTES: usize = 16;
/// Largest request or response of an exchange.
pub const EXCHANGE_BYTES_MAX: u32 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The client sends the pattern and finishes; the server answers with a trailer.
    Sink,
    /// The server sends the pattern until the client finishes, then a trailer.
    Source,
    /// Exchanges of so many bytes each way until the client finishes.
    Exchange { request_bytes: u32, response_bytes: u32 },
}

impl Opening {
    pub fn encode(self) -> [u8; OPENING_BYTES] {
        let (operation, first, second) = match self {
            Self::Sink => (1_u32, 0, 0),
            Self::Source => (2, 0, 0),
            Self::Exchange { request_bytes, response_bytes } => (3, request_bytes, response_bytes),
        };
        let mut bytes = [0; OPENING_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip([MAGIC, operation, first, second]) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; OPENING_BYTES]) -> Option<Self> {
        let mut words =
            bytes.chunks_exact(4).filter_map(|word| Some(u32::from_be_bytes(word.try_into().ok()?)));
        let (magic, operation) = (words.next()?, words.next()?);
        let (first, second) = (words.next()?, words.next()?);
        match (magic, operation) {
            (MAGIC, 1) => Some(Self::Sink),
            (MAGIC, 2) => Some(Self::Source),
            (MAGIC, 3) if first.max(second) <= EXCHANGE_BYTES_MAX && first.min(second) > 0 => {
                Some(Self::Exchange { request_bytes: first, response_bytes: second })
            }
            _ => None,
        }
    }
}

/// Sends the opening and returns the address that the server saw.
pub async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    opening: Opening,
) -> io::Result<Ipv4Addr> {
    stream.write_all(&opening.encode()).await?;
    let mut answer = [0; ANSWER_BYTES];
    stream.read_exact(&mut answer).await?;
    decode_answer(&answer).ok_or_else(|| io::Error::other("the far end is not a load server"))
}

pub fn encode_answer(seen: Ipv4Addr) -> [u8; ANSWER_BYTES] {
    ((u64::from(MAGIC) << 32) | u64::from(seen.to_bits())).to_be_bytes()
}

pub fn decode_answer(answer: &[u8; ANSWER_BYTES]) -> Option<Ipv4Addr> {
    let word = u64::from_be_bytes(*answer);
    let seen = u32::try_from(word & u64::from(u32::MAX)).ok()?;
    (word >> 32 == u64::from(MAGIC)).then(|| Ipv4Addr::from_bits(seen))
}

pub fn encode_trailer(bytes: u64, intact: bool) -> [u8; TRAILER_BYTES] {
    ((u128::from(bytes) << 64) | u128::from(intact)).to_be_bytes()
}

/// The count, if the transfer was intact.
pub fn decode_trailer(trailer: &[u8; TRAILER_BYTES]) -> Option<u64> {
    let word = u128::from_be_bytes(*trailer);
    (word & u128::from(u64::MAX) == 1).then(|| u64::try_from(word >> 64).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_come_back_and_junk_does_not() {
        for opening in
            [Opening::Sink, Opening::Source, Opening::Exchange { request_bytes: 64, response_bytes: 1_024 }]
        {
            assert_eq!(Opening::decode(&opening.encode()), Some(opening));
        }
        assert_eq!(Opening::decode(b"GET / HTTP/1.1\r\nHost: x\r"), None);
        let huge = Opening::Exchange { request_bytes: EXCHANGE_BYTES_MAX + 1, response_bytes: 1 };
        assert_eq!(Opening::decode(&huge.encode()), None);
    }

    #[test]
    fn a_spoilt_transfer_has_no_count() {
        assert_eq!(decode_trailer(&encode_trailer(1 << 40, true)), Some(1 << 40));
        assert_eq!(decode_trailer(&encode_trailer(5, false)), None);
        let seen = Ipv4Addr::new(10, 81, 1, 10);
        assert_eq!(decode_answer(&encode_answer(seen)), Some(seen));
    }
}
