//! Payload on its way from a tunnel to an application.

use std::io::IoSlice;

use crate::base::limits;
use crate::wire::h2::StreamId;

/// Parts of one write to an application: a full read holds this many records.
const BATCH_PARTS: usize = limits::RECORDS_A_TURN + 1;

/// Consecutive payload of one stream, delivered with one write.
pub(super) struct Batch<'a> {
    pub stream: Option<StreamId>,
    pub parts: [IoSlice<'a>; BATCH_PARTS],
    pub used: usize,
    pub bytes: usize,
}

impl<'a> Batch<'a> {
    pub fn empty() -> Self {
        Self { stream: None, parts: [IoSlice::new(&[]); BATCH_PARTS], used: 0, bytes: 0 }
    }

    pub fn is_full_for(&self, stream: StreamId) -> bool {
        self.stream.is_some_and(|mine| mine != stream) || self.used >= BATCH_PARTS
    }

    pub fn add(&mut self, stream: StreamId, part: &'a [u8]) {
        if let Some(place) = self.parts.get_mut(self.used) {
            *place = IoSlice::new(part);
            self.used += 1;
            self.bytes += part.len();
            self.stream = Some(stream);
        }
    }
}
