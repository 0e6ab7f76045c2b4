//! HTTP/2 frames by hand, right or wrong.

use std::io::Result;

use tokio::io::{AsyncRead, AsyncReadExt};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// ACK of SETTINGS and PING, END_STREAM of DATA and HEADERS.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

/// A frame as it is told to be (RFC 9113 section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length");
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block of literals without indexing or Huffman code (RFC 7541 section 6.2.2); strings below 127 bytes.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| [&[u8::try_from(text.len()).expect("a length")], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [&[0][..], &string(name), &string(value)].concat()).collect()
}

/// A CONNECT that opens this stream.
pub fn connect(stream: u32, authority: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&[(":method", "CONNECT"), (":authority", authority)]))
}

/// A frame that came in.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let [length @ .., kind, flags, s0, s1, s2, s3] = head;
        let mut payload = vec![0; length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))];
        from.read_exact(&mut payload).await?;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]);
        Ok(Self { kind, flags, stream, payload })
    }

    /// The code of a RST_STREAM or GOAWAY.
    pub fn code(&self) -> Option<u32> {
        let at = match self.kind {
            RST_STREAM => 0,
            GOAWAY => 4,
            _ => return None,
        };
        self.payload.get(at..at + 4).map(|code| u32::from_be_bytes(code.try_into().expect("four bytes")))
    }
}
