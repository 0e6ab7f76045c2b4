//! The bytes of bulk transfers: a long aperiodic-looking block, repeated. Both ends know what stands at every
//! offset, so a lost, doubled, swapped or foreign chunk is seen at the cost of a memory compare.

/// A prime, so that no buffer size of a proxy divides it.
const PERIOD_BYTES: usize = 65_521;
/// Largest slice handed out or checked at once.
pub const CHUNK_BYTES: usize = 256 * 1024;

pub struct Pattern {
    block: Vec<u8>,
}

impl Pattern {
    pub fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut period = Vec::with_capacity(PERIOD_BYTES + 8);
        while period.len() < PERIOD_BYTES {
            period.extend_from_slice(&splitmix(&mut state).to_le_bytes());
        }
        period.truncate(PERIOD_BYTES);
        let block = period.iter().copied().cycle().take(PERIOD_BYTES + CHUNK_BYTES).collect();
        Self { block }
    }

    /// The bytes that stand at `offset`, at most `length` and at most a chunk of them.
    pub fn at(&self, offset: u64, length: usize) -> &[u8] {
        let start = usize::try_from(offset % PERIOD_BYTES as u64).unwrap_or(0);
        self.block.get(start..start + length.min(CHUNK_BYTES)).unwrap_or(&[])
    }

    /// Whether `bytes` are those that stand at `offset`.
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        let mut offset = offset;
        bytes.chunks(CHUNK_BYTES).all(|chunk| {
            let same = self.at(offset, chunk.len()) == chunk;
            offset += chunk.len() as u64;
            same
        })
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_chunking_of_the_stream_matches() {
        let pattern = Pattern::new();
        let mut stream = Vec::new();
        while stream.len() < 1_000_000 {
            stream.extend_from_slice(pattern.at(stream.len() as u64, 16_384));
        }
        for size in [1, 13, 16_384, 65_521, 300_000] {
            let mut offset = 0;
            for chunk in stream.chunks(size) {
                assert!(pattern.matches(offset, chunk), "chunks of {size} at {offset}");
                offset += chunk.len() as u64;
            }
        }
    }

    #[test]
    fn lost_doubled_and_changed_bytes_are_seen() {
        let pattern = Pattern::new();
        for shift in [1, 64, 1_024, 16_384, 65_536, 262_144, 1_048_576] {
            assert!(!pattern.matches(shift, pattern.at(0, 64)), "a shift by {shift} went unseen");
        }
        let mut bytes = pattern.at(7, 4_096).to_vec();
        bytes[4_000] ^= 1;
        assert!(!pattern.matches(7, &bytes));
    }
}
