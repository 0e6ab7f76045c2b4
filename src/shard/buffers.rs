//! The shard's two scratch buffers. A turn of work borrows one, never across a wait, so that no connection holds
//! a buffer while it is idle and the same memory stays in the core's cache.
//!
//! Sending slots: `[5 TLS header][9 frame header][payload][1 type][16 tag]`, one record each, back to back.

use std::cell::RefCell;
use std::io::IoSliceMut;

use crate::base::limits::{RECORD_PLAINTEXT_BYTES, RECORDS_A_TURN};
use crate::tls::record::{HEADER_BYTES, TRAILER_BYTES};

pub const FRAME_HEADER_BYTES: usize = 9;
/// Room in front of a payload: record header and frame header.
pub const HEADROOM_BYTES: usize = HEADER_BYTES + FRAME_HEADER_BYTES;
/// Payload of one full slot: with its frame header it fills a record.
pub const SLOT_PAYLOAD_BYTES: usize = RECORD_PLAINTEXT_BYTES - FRAME_HEADER_BYTES;
/// A whole slot; full ones stand back to back and leave in one write.
pub const SLOT_BYTES: usize = HEADROOM_BYTES + SLOT_PAYLOAD_BYTES + TRAILER_BYTES;
/// Size of either scratch buffer.
pub const SCRATCH_BYTES: usize = SLOT_BYTES * RECORDS_A_TURN;

/// Both scratch buffers. Borrow, use, give back within one synchronous turn.
pub struct Buffers {
    /// Bytes on their way in or out of a socket.
    pub bulk: RefCell<Box<[u8]>>,
    /// Control and small data frames being sealed.
    pub small: RefCell<Vec<u8>>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            bulk: RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()),
            small: RefCell::new(Vec::with_capacity(SLOT_BYTES)),
        }
    }
}

/// The payload places of the first slots, `bytes` in total.
pub fn payload_places(scratch: &mut [u8], bytes: usize) -> Vec<IoSliceMut<'_>> {
    let mut left = bytes;
    let mut places = Vec::with_capacity(bytes.div_ceil(SLOT_PAYLOAD_BYTES));
    for slot in scratch.chunks_exact_mut(SLOT_BYTES) {
        let length = left.min(SLOT_PAYLOAD_BYTES);
        let Some(place) = slot.get_mut(HEADROOM_BYTES..HEADROOM_BYTES + length) else { break };
        if place.is_empty() {
            break;
        }
        left -= length;
        places.push(IoSliceMut::new(place));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_leave_room_for_headers_and_tags() {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let places = payload_places(&mut scratch, SLOT_PAYLOAD_BYTES * 2 + 10);
        let lengths: Vec<_> = places.iter().map(|place| place.len()).collect();
        assert_eq!(lengths, [SLOT_PAYLOAD_BYTES, SLOT_PAYLOAD_BYTES, 10]);
        assert_eq!(payload_places(&mut scratch, usize::MAX).len(), RECORDS_A_TURN);
        assert!(payload_places(&mut scratch, 0).is_empty());
    }
}
