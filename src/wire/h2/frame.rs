//! The frame layout (RFC 9113 section 4) and the writers of the small frames. No state, no rules about order.

use super::Code;

/// What a client sends first (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The window every connection and stream starts with.
pub const DEFAULT_WINDOW: u32 = 65_535;
/// The largest window, and the largest stream number.
pub const LARGEST: u32 = 0x7fff_ffff;
/// The smallest SETTINGS_MAX_FRAME_SIZE, also the one before any SETTINGS.
pub const SMALLEST_FRAME: u32 = 16_384;
/// The largest SETTINGS_MAX_FRAME_SIZE.
pub const LARGEST_FRAME: u32 = 0x00ff_ffff;

/// Frame types (section 6).
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Frame flags; ACK and END_STREAM share a bit.
pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Setting numbers (section 6.5.2).
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The nine bytes in front of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Payload bytes, below 2^24.
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    /// Below 2^31; the reserved bit is dropped.
    pub stream: u32,
}

impl Header {
    pub const BYTES: usize = 9;

    pub fn parse(bytes: [u8; Self::BYTES]) -> Self {
        let [high, middle, low, kind, flags, first, second, third, fourth] = bytes;
        Self {
            length: u32::from_be_bytes([0, high, middle, low]),
            kind,
            flags,
            stream: u32::from_be_bytes([first, second, third, fourth]) & LARGEST,
        }
    }

    pub fn bytes(self) -> [u8; Self::BYTES] {
        let [_, high, middle, low] = self.length.to_be_bytes();
        let [first, second, third, fourth] = self.stream.to_be_bytes();
        [high, middle, low, self.kind, self.flags, first, second, third, fourth]
    }

    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// SETTINGS with these pairs, in order.
pub fn settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    head(out, pairs.len() * 6, kind::SETTINGS, 0, 0);
    for (setting, value) in pairs {
        out.extend_from_slice(&setting.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// The acknowledgement of the peer's SETTINGS.
pub fn settings_ack(out: &mut Vec<u8>) {
    head(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// PING; `flags` is ACK or nothing.
pub fn ping(out: &mut Vec<u8>, flags: u8, opaque: [u8; 8]) {
    head(out, 8, kind::PING, flags, 0);
    out.extend_from_slice(&opaque);
}

/// GOAWAY without debug data.
pub fn goaway(out: &mut Vec<u8>, last: u32, code: Code) {
    head(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// RST_STREAM.
pub fn reset(out: &mut Vec<u8>, stream: u32, code: Code) {
    head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// WINDOW_UPDATE; `increment` is 1 to 2^31-1.
pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// HEADERS, and CONTINUATION where the block is longer than the peer's frames.
pub fn headers(out: &mut Vec<u8>, stream: u32, end: bool, block: &[u8], frame_bytes: usize) {
    let first = block.len().min(frame_bytes);
    let (mut part, mut rest) = block.split_at_checked(first).unwrap_or((block, &[]));
    let mut kind = kind::HEADERS;
    let mut flags = if end { flag::END_STREAM } else { 0 };
    loop {
        if rest.is_empty() {
            flags |= flag::END_HEADERS;
        }
        head(out, part.len(), kind, flags, stream);
        out.extend_from_slice(part);
        if rest.is_empty() {
            return;
        }
        (part, rest) = rest.split_at_checked(frame_bytes).unwrap_or((rest, &[]));
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}

/// Lengths here are made by us and below 2^24.
fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let length = u32::try_from(length).unwrap_or(LARGEST_FRAME);
    out.extend_from_slice(&Header { length, kind, flags, stream }.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_bytes_and_back() {
        let header = Header { length: 0x01_0203, kind: 9, flags: 0x2d, stream: 0x7fff_fffe };
        assert_eq!(header.bytes(), [1, 2, 3, 9, 0x2d, 0x7f, 0xff, 0xff, 0xfe]);
        assert_eq!(Header::parse(header.bytes()), header);
        assert_eq!(Header::parse([0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).stream, LARGEST);
    }

    #[test]
    fn a_long_block_is_continued_and_only_the_last_frame_ends_it() {
        let block: Vec<u8> = (0..25).collect();
        let mut out = Vec::new();
        headers(&mut out, 3, true, &block, 10);
        let mut seen = Vec::new();
        let mut rest = out.as_slice();
        let mut heads = Vec::new();
        while let Some((head, tail)) = rest.split_first_chunk::<9>() {
            let head = Header::parse(*head);
            let (payload, tail) = tail.split_at(head.length as usize);
            seen.extend_from_slice(payload);
            heads.push((head.kind, head.flags, payload.len()));
            rest = tail;
        }
        assert_eq!(seen, block);
        assert_eq!(heads, [(kind::HEADERS, 1, 10), (kind::CONTINUATION, 0, 10), (kind::CONTINUATION, 4, 5)]);
        let mut exact = Vec::new();
        headers(&mut exact, 1, false, &block, 25);
        assert_eq!(exact.len(), 34);
    }
}
