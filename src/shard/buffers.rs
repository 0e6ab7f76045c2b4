//! The shard's two scratch buffers, and the few that streams lend each other. A turn of work borrows a scratch buffer,
//! never across a wait, so that no connection holds one while it is idle and the same memory stays in the core's cache.
//!
//! Sending slots: `[5 TLS header][9 frame header][payload][1 type][16 tag]`, one record each, back to back.

use std::cell::RefCell;
use std::io::IoSliceMut;

use crate::base::limits::{RECORD_PLAINTEXT_BYTES, RECORDS_A_TURN};
use crate::sys::memory;
use crate::tls::record::{HEADER_BYTES, TRAILER_BYTES};
use crate::wire::h2::Event;

pub const FRAME_HEADER_BYTES: usize = 9;
/// Room in front of a payload: record header and frame header.
pub const HEADROOM_BYTES: usize = HEADER_BYTES + FRAME_HEADER_BYTES;
/// Payload of one full slot: with its frame header it fills a record.
pub const SLOT_PAYLOAD_BYTES: usize = RECORD_PLAINTEXT_BYTES - FRAME_HEADER_BYTES;
/// A whole slot; full ones stand back to back and leave in one write.
pub const SLOT_BYTES: usize = HEADROOM_BYTES + SLOT_PAYLOAD_BYTES + TRAILER_BYTES;
/// Size of either scratch buffer.
pub const SCRATCH_BYTES: usize = SLOT_BYTES * RECORDS_A_TURN;

/// Buffers of streams that are kept for others, and the largest.
const SPARES: usize = 4;
const SPARE_BYTES: usize = 2 << 20;

/// Both scratch buffers. Borrow, use, give back within one synchronous turn.
pub struct Buffers {
    /// Bytes on their way in or out of a socket.
    pub bulk: RefCell<Box<[u8]>>,
    /// Control and small data frames being sealed.
    pub small: RefCell<Vec<u8>>,
    /// What a tunnel's read told; empty between turns.
    pub events: RefCell<Vec<Event>>,
    /// Emptied buffers of streams whose application was behind: a busy one doesn't allocate a new one each time.
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            bulk: RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice()),
            small: RefCell::new(Vec::with_capacity(SLOT_BYTES)),
            events: RefCell::default(),
            spare: RefCell::default(),
        }
    }
}

impl Buffers {
    /// Gives back what was touched; it comes anew when it is used.
    pub(super) fn give_back(&self) {
        memory::let_go_of(&mut self.bulk.borrow_mut());
        self.spare.take();
    }

    /// An empty buffer for payload that waits: a used one, if there is one.
    pub(super) fn take_spare(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a buffer back for the next one that needs it, within bounds.
    pub(super) fn put_spare(&self, mut buffer: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARES && buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Lets go of one spare buffer: called at each tick, so none outlives the need for it by long.
    pub(super) fn shed_spare(&self) {
        let _shed = self.spare.borrow_mut().pop();
    }

    /// What they hold.
    pub fn bytes(&self) -> usize {
        let spare: usize = self.spare.borrow().iter().map(Vec::capacity).sum();
        self.bulk.borrow().len() + self.small.borrow().capacity() + spare
    }
}

/// The payload places of the slots, `bytes` in total; those past it are empty.
pub fn payload_places(scratch: &mut [u8], bytes: usize) -> [IoSliceMut<'_>; RECORDS_A_TURN] {
    let mut left = bytes;
    let mut slots = scratch.chunks_exact_mut(SLOT_BYTES);
    std::array::from_fn(|_| {
        let length = left.min(SLOT_PAYLOAD_BYTES);
        left -= length;
        let slot = slots.next().unwrap_or_default();
        IoSliceMut::new(slot.get_mut(HEADROOM_BYTES..HEADROOM_BYTES + length).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emptied_buffers_go_round_within_bounds_and_are_let_go_of_one_by_one() {
        let buffers = Buffers::default();
        let scratch = buffers.bytes();
        assert_eq!(buffers.take_spare().capacity(), 0);
        buffers.put_spare(vec![1; 100_000]);
        assert_eq!(buffers.bytes(), scratch + 100_000);
        let again = buffers.take_spare();
        assert!(again.is_empty() && again.capacity() == 100_000);
        (0..2 * SPARES).for_each(|_| buffers.put_spare(vec![1; 1_000]));
        buffers.put_spare(Vec::with_capacity(SPARE_BYTES + 1));
        assert_eq!(buffers.bytes(), scratch + SPARES * 1_000);
        (0..SPARES).for_each(|_| buffers.shed_spare());
        assert_eq!(buffers.bytes(), scratch);
    }

    #[test]
    fn places_leave_room_for_headers_and_tags() {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let places = payload_places(&mut scratch, SLOT_PAYLOAD_BYTES * 2 + 10);
        let lengths: Vec<_> = places.iter().map(|place| place.len()).collect();
        assert_eq!(lengths[..4], [SLOT_PAYLOAD_BYTES, SLOT_PAYLOAD_BYTES, 10, 0]);
        let all: usize = payload_places(&mut scratch, usize::MAX).iter().map(|place| place.len()).sum();
        assert_eq!(all, RECORDS_A_TURN * SLOT_PAYLOAD_BYTES);
    }
}
