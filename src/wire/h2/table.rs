//! HPACK's two tables of fields (RFC 7541 sections 2.3 and 4, appendix A).

use std::collections::VecDeque;

/// What a field counts beyond its bytes, in tables and in header lists.
pub const FIELD_OVERHEAD: usize = 32;

/// The dynamic table: newest first, the oldest leave when it is full.
#[derive(Debug)]
pub struct DynamicTable {
    entries: VecDeque<Entry>,
    size: usize,
    most: usize,
}

#[derive(Debug)]
struct Entry {
    /// Name and value in a row.
    bytes: Box<[u8]>,
    name: usize,
}

impl DynamicTable {
    pub fn new(most: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, most }
    }

    /// Changes the size it may have, in bytes as RFC 7541 section 4.1 counts them.
    pub fn resize(&mut self, most: usize) {
        self.most = most;
        self.make_room(0);
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }

    /// A field that alone is too large empties the table and isn't kept (section 4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8]) {
        let cost = name.len() + value.len() + FIELD_OVERHEAD;
        if cost > self.most {
            self.clear();
            return;
        }
        self.make_room(cost);
        self.size += cost;
        self.entries.push_front(Entry { bytes: [name, value].concat().into_boxed_slice(), name: name.len() });
    }

    /// `insert` with the name of the field at an index; false if there is none.
    pub fn insert_named(&mut self, index: u32, value: &[u8]) -> bool {
        let Some((name, _)) = field(self, index) else { return false };
        // Copied first: making room may throw out the very entry that lends its name.
        if name.len() + value.len() + FIELD_OVERHEAD > self.most {
            self.clear();
        } else {
            let name = name.to_vec();
            self.insert(&name, value);
        }
        true
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.size = 0;
    }

    fn make_room(&mut self, cost: usize) {
        while self.size + cost > self.most {
            let Some(oldest) = self.entries.pop_back() else { return };
            self.size -= oldest.bytes.len() + FIELD_OVERHEAD;
        }
    }

    fn field(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(place)?;
        entry.bytes.split_at_checked(entry.name)
    }

    #[cfg(test)]
    pub fn size(&self) -> usize {
        self.size
    }
}

/// The field at an index of both tables together; 0 is none.
pub fn field(dynamic: &DynamicTable, index: u32) -> Option<(&[u8], &[u8])> {
    let place = usize::try_from(index).ok()?.checked_sub(1)?;
    match STATIC.get(place) {
        Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
        None => dynamic.field(place - STATIC.len()),
    }
}

/// Index of `:authority`.
pub const AUTHORITY: u8 = 1;
/// First index of `:method`.
pub const METHOD: u8 = 2;
/// First index of `:status`.
pub const STATUS: u8 = 8;

/// Index of `:status` with this value, where the static table has it.
pub fn status_index(status: u16) -> Option<u8> {
    Some(match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => return None,
    })
}

/// Appendix A.
static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
