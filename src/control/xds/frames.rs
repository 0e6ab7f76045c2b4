//! gRPC's framing of the discovery stream, sans-IO. A message is handed on in parts while it arrives: a protobuf
//! message cut between two of its top-level fields is two messages that say the same together. So a push of a
//! gigabyte is decoded with a part's memory, and the rest waits in the sender's socket.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use crate::base::limits::{XDS_MESSAGE_BYTES, XDS_PART_BYTES};

/// Whole top-level fields of one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    pub bytes: Bytes,
    /// The message ends with it.
    pub last: bool,
}

/// What arrives isn't what it should be; the stream can't go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a message is compressed, which was not offered")]
    Compressed,
    #[error("a message of {0} bytes is larger than {XDS_MESSAGE_BYTES}")]
    TooLarge(u32),
    #[error("a message is no protobuf: {what} at byte {at}")]
    NoProtobuf { what: &'static str, at: u64 },
    #[error("the stream ends within a message: {missing} bytes are missing")]
    Cut { missing: u64 },
}

/// Bytes of a stream in, parts of its messages out.
#[derive(Default)]
pub struct Frames {
    head: BytesMut,
    /// Bytes of the message that haven't arrived; `None` between messages.
    missing: Option<u64>,
    buffer: BytesMut,
    /// Of the buffer: whole fields.
    whole: usize,
    /// Bytes of the message before the buffer, for errors.
    passed: u64,
}

/// Compressed-flag and length.
const HEAD_BYTES: usize = 5;

impl Frames {
    /// Takes from `chunk` until a part is there or the chunk is used up.
    pub fn next(&mut self, chunk: &mut Bytes) -> Result<Option<Part>, FrameError> {
        loop {
            let Some(missing) = self.missing else {
                if !self.begin(chunk)? {
                    return Ok(None);
                }
                continue;
            };
            // One field may be larger than a part.
            let room = XDS_PART_BYTES.checked_sub(self.buffer.len()).filter(|room| *room > 0);
            let room = room.unwrap_or(chunk.len());
            let fits = usize::try_from(missing).unwrap_or(usize::MAX).min(room).min(chunk.len());
            self.buffer.extend_from_slice(chunk.get(..fits).unwrap_or_default());
            chunk.advance(fits);
            let missing = missing.saturating_sub(fits as u64);
            self.missing = Some(missing);
            self.scan()?;
            if missing == 0 {
                return self.end().map(Some);
            }
            if self.buffer.len() >= XDS_PART_BYTES && self.whole > 0 {
                let bytes = self.buffer.split_to(self.whole).freeze();
                self.passed += bytes.len() as u64;
                self.whole = 0;
                return Ok(Some(Part { bytes, last: false }));
            }
            if chunk.is_empty() {
                return Ok(None);
            }
        }
    }

    /// The stream is over; fine between two messages.
    pub fn finish(&self) -> Result<(), FrameError> {
        match self.missing {
            Some(missing) => Err(FrameError::Cut { missing }),
            None if self.head.is_empty() => Ok(()),
            None => Err(FrameError::Cut { missing: (HEAD_BYTES - self.head.len()) as u64 }),
        }
    }

    fn begin(&mut self, chunk: &mut Bytes) -> Result<bool, FrameError> {
        let fits = HEAD_BYTES.saturating_sub(self.head.len()).min(chunk.len());
        self.head.extend_from_slice(chunk.get(..fits).unwrap_or_default());
        chunk.advance(fits);
        if self.head.len() < HEAD_BYTES {
            return Ok(false);
        }
        let compressed = self.head.get_u8() != 0;
        let length = self.head.get_u32();
        if compressed {
            return Err(FrameError::Compressed);
        }
        if length > XDS_MESSAGE_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        (self.missing, self.passed) = (Some(length.into()), 0);
        Ok(true)
    }

    fn end(&mut self) -> Result<Part, FrameError> {
        if self.whole < self.buffer.len() {
            return Err(self.wrong("the last field is cut off"));
        }
        self.missing = None;
        self.whole = 0;
        // A buffer that had to grow for one field goes with it.
        Ok(Part { bytes: std::mem::take(&mut self.buffer).freeze(), last: true })
    }

    /// Counts whole fields off.
    fn scan(&mut self) -> Result<(), FrameError> {
        while let Some(length) = self.field()? {
            if self.buffer.len() - self.whole < length {
                break;
            }
            self.whole += length;
        }
        Ok(())
    }

    /// The length of the field that begins after the whole ones, `None` where too little of it is there to say.
    fn field(&self) -> Result<Option<usize>, FrameError> {
        let field = self.buffer.get(self.whole..).unwrap_or_default();
        let Some((tag, tag_bytes)) = self.varint(field)? else { return Ok(None) };
        let value = field.get(tag_bytes..).unwrap_or_default();
        let length = match tag & 7 {
            0 => self.varint(value)?.map(|(_, bytes)| bytes as u64),
            1 => Some(8),
            2 => self.varint(value)?.map(|(length, bytes)| length.saturating_add(bytes as u64)),
            5 => Some(4),
            _ => return Err(self.wrong("a field has no wire type of proto3")),
        };
        let Some(length) = length.map(|length| length.saturating_add(tag_bytes as u64)) else {
            return Ok(None);
        };
        let left = (field.len() as u64).saturating_add(self.missing.unwrap_or_default());
        match usize::try_from(length) {
            Ok(length) if length as u64 <= left => Ok(Some(length)),
            _ => Err(self.wrong("a field is longer than its message")),
        }
    }

    fn varint(&self, bytes: &[u8]) -> Result<Option<(u64, usize)>, FrameError> {
        let mut value = 0;
        for (index, byte) in bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(Some((value, index + 1)));
            }
        }
        if bytes.len() < 10 { Ok(None) } else { Err(self.wrong("a varint has no end")) }
    }

    fn wrong(&self, what: &'static str) -> FrameError {
        FrameError::NoProtobuf { what, at: self.passed + self.whole as u64 }
    }
}

/// A message as it goes over the wire.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + length);
    bytes.put_u8(0);
    // What we say is far smaller than 4 GiB; a receiver refuses what isn't.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Can't fail: a `BytesMut` grows.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::pb::discovery::{DeltaDiscoveryResponse, Payload, Resource};

    fn resource(name: &str, bytes: usize) -> Resource {
        let value = vec![7; bytes].into();
        let resource = Some(Payload { type_url: "t".into(), value });
        Resource { name: name.into(), resource, ..Resource::default() }
    }

    fn response(sizes: &[usize]) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse {
            resources: sizes.iter().enumerate().map(|(at, size)| resource(&at.to_string(), *size)).collect(),
            type_url: "type".into(),
            nonce: "nonce".into(),
            removed_resources: vec!["gone".into()],
            ..DeltaDiscoveryResponse::default()
        }
    }

    fn parts(frames: &mut Frames, mut chunk: Bytes) -> Result<Vec<Part>, FrameError> {
        let mut parts = Vec::new();
        while let Some(part) = frames.next(&mut chunk)? {
            parts.push(part);
        }
        assert!(chunk.is_empty());
        Ok(parts)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn parts_joined_are_the_messages_whatever_the_chunks(
            sizes in proptest::collection::vec(0..XDS_PART_BYTES / 2, 0..9),
            chunk in 1..3 * XDS_PART_BYTES / 2,
        ) {
            let messages = [response(&sizes), DeltaDiscoveryResponse::default(), response(&[1])];
            let stream = messages.iter().map(|message| framed(message).to_vec()).collect::<Vec<_>>().concat();
            let mut frames = Frames::default();
            let mut all = Vec::new();
            for chunk in stream.chunks(chunk) {
                all.extend(parts(&mut frames, Bytes::copy_from_slice(chunk)).unwrap());
            }
            prop_assert_eq!(frames.finish(), Ok(()));
            let mut read = Vec::new();
            for message in all.split_inclusive(|part| part.last) {
                let mut merged = DeltaDiscoveryResponse::default();
                for part in message {
                    prop_assert!(part.bytes.len() <= 2 * XDS_PART_BYTES, "{}", part.bytes.len());
                    merged.merge(part.bytes.clone()).unwrap();
                }
                read.push(merged);
            }
            prop_assert_eq!(read, messages);
        }

        #[test]
        fn garbage_is_an_error_or_parts_and_nothing_is_lost(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let length = u8::try_from(bytes.len()).unwrap();
            let stream = [&[0, 0, 0, 0, length], &bytes[..]].concat();
            if let Ok(parts) = parts(&mut Frames::default(), stream.into()) {
                prop_assert_eq!(parts.iter().map(|part| part.bytes.to_vec()).collect::<Vec<_>>().concat(), bytes);
            }
        }
    }

    #[test]
    fn one_resource_may_be_larger_than_a_part() {
        let message = response(&[10, 3 * XDS_PART_BYTES, 10]);
        let stream = framed(&message);
        let mut frames = Frames::default();
        let parts: Vec<_> = stream
            .chunks(1_000)
            .flat_map(|chunk| parts(&mut frames, Bytes::copy_from_slice(chunk)).unwrap())
            .collect();
        let mut merged = DeltaDiscoveryResponse::default();
        parts.iter().for_each(|part| merged.merge(part.bytes.clone()).unwrap());
        assert_eq!(merged, message);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let says = |bytes: &[u8]| {
            parts(&mut Frames::default(), Bytes::copy_from_slice(bytes)).unwrap_err().to_string()
        };
        assert_eq!(says(&[1, 0, 0, 0, 0]), "a message is compressed, which was not offered");
        assert!(says(&[0, 255, 0, 0, 0]).starts_with("a message of 4278190080 bytes is larger than"));
        let at = "a message is no protobuf: a field is longer than its message at byte 2";
        assert_eq!(says(&[0, 0, 0, 0, 4, 0x18, 1, 0x12, 9]), at);
        assert!(says(&[0, 0, 0, 0, 1, 0x13]).contains("no wire type of proto3 at byte 0"));
        assert!(says(&[0, 0, 0, 0, 1, 0x12]).contains("the last field is cut off"));
        let endless = [&[0, 0, 0, 0, 20][..], &[255; 20]].concat();
        assert!(says(&endless).contains("a varint has no end"));
        let mut frames = Frames::default();
        assert_eq!(parts(&mut frames, Bytes::from_static(&[0, 0, 0, 0, 9, 0x12])), Ok(Vec::new()));
        assert_eq!(frames.finish(), Err(FrameError::Cut { missing: 8 }));
    }
}
