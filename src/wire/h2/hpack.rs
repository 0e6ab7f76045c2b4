//! HPACK decoding (RFC 7541). Fields go to a closure as slices, so that only what is wanted is copied; work
//! is in proportion to the block, whatever its indices point at. Encoding is in `encode`, and keeps no table.

use crate::base::limits;

use super::huffman;
use super::table::{DynamicTable, FIELD_OVERHEAD, field};

/// A header block that can't be decoded; the table is lost with it, and so is the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Corrupt {
    #[error("it ends inside a field")]
    Truncated,
    #[error("index {index} is in no table")]
    Index { index: u32 },
    #[error("an integer is too large")]
    Integer,
    #[error("a table size update of {size}, {limit} allowed")]
    TableSize { size: u32, limit: usize },
    #[error("a table size update after a field, or a third one")]
    UpdatePlace,
    #[error("a Huffman string holds the end symbol")]
    EndOfString,
    #[error("a Huffman string is padded wrongly")]
    Padding,
}

/// Whether the header list kept to the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    Whole,
    /// Fields beyond the limit were decoded for the table's sake, but not given out.
    TooLarge,
}

/// One direction's decoder.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// The largest table the peer may choose.
    limit: usize,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        let limit = limits::HPACK_TABLE_BYTES;
        Self { table: DynamicTable::new(limit), limit, name: Vec::new(), value: Vec::new() }
    }
}

impl Decoder {
    /// The peer has acknowledged a table limit. An encoder that uses its table must begin its next block with
    /// an update; one that doesn't is forgiven, as any reference to what is gone fails by itself.
    pub fn limit_table(&mut self, limit: usize) {
        self.limit = limit;
        self.table.resize(limit);
    }

    /// Gives each field, name and value, to `sink`, as long as the list stays within `list_bytes`.
    ///
    /// # Errors
    /// Any is a connection error COMPRESSION_ERROR (RFC 9113 section 4.3).
    pub fn decode(
        &mut self,
        block: &[u8],
        list_bytes: usize,
        mut sink: impl FnMut(&[u8], &[u8]),
    ) -> Result<List, Corrupt> {
        let mut cursor = Cursor { rest: block };
        let mut listed = 0_usize;
        let mut updates = 0;
        let mut count = |name: &[u8], value: &[u8]| {
            listed = listed.saturating_add(name.len() + value.len() + FIELD_OVERHEAD);
            if listed <= list_bytes {
                sink(name, value);
            }
        };
        while let Ok(first) = cursor.byte() {
            if first & 0xe0 == 0x20 {
                updates += 1;
                self.size_update(first, &mut cursor, updates)?;
                continue;
            }
            updates = LAST_UPDATE;
            if first & 0x80 != 0 {
                let index = cursor.integer(first, 7)?;
                let (name, value) = field(&self.table, index).ok_or(Corrupt::Index { index })?;
                count(name, value);
            } else {
                self.literal(first, &mut cursor, &mut count)?;
            }
        }
        self.name.shrink_to(limits::HPACK_SCRATCH_KEPT_BYTES);
        self.value.shrink_to(limits::HPACK_SCRATCH_KEPT_BYTES);
        Ok(if listed <= list_bytes { List::Whole } else { List::TooLarge })
    }

    fn literal(
        &mut self,
        first: u8,
        cursor: &mut Cursor<'_>,
        count: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Corrupt> {
        let keep = first & 0x40 != 0;
        let index = cursor.integer(first, if keep { 6 } else { 4 })?;
        if index == 0 {
            let name = cursor.string(&mut self.name)?;
            let value = cursor.string(&mut self.value)?;
            count(name, value);
            if keep {
                self.table.insert(name, value);
            }
            return Ok(());
        }
        let value = cursor.string(&mut self.value)?;
        let (name, _) = field(&self.table, index).ok_or(Corrupt::Index { index })?;
        count(name, value);
        if keep {
            self.table.insert_named(index, value);
        }
        Ok(())
    }

    /// Only at a block's start, and two at most: the smallest size in between, then the last (section 4.2).
    fn size_update(&mut self, first: u8, cursor: &mut Cursor<'_>, updates: u32) -> Result<(), Corrupt> {
        let size = cursor.integer(first, 5)?;
        if updates > LAST_UPDATE {
            return Err(Corrupt::UpdatePlace);
        }
        match usize::try_from(size) {
            Ok(most) if most <= self.limit => self.table.resize(most),
            _ => return Err(Corrupt::TableSize { size, limit: self.limit }),
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn table_bytes(&self) -> usize {
        self.table.size()
    }
}

const LAST_UPDATE: u32 = 2;

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let (byte, rest) = self.rest.split_first().ok_or(Corrupt::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    /// An integer whose low `prefix` bits stand in `first` (section 5.1); below 2^28 and some.
    fn integer(&mut self, first: u8, prefix: u32) -> Result<u32, Corrupt> {
        let mask = (1_u32 << prefix) - 1;
        let mut value = u32::from(first) & mask;
        if value < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Corrupt::Integer)
    }

    /// A string, from the block itself or decoded into `scratch` (section 5.2).
    fn string<'s>(&mut self, scratch: &'s mut Vec<u8>) -> Result<&'s [u8], Corrupt>
    where
        'a: 's,
    {
        let first = self.byte()?;
        let length = usize::try_from(self.integer(first, 7)?).map_err(|_| Corrupt::Integer)?;
        let (text, rest) = self.rest.split_at_checked(length).ok_or(Corrupt::Truncated)?;
        self.rest = rest;
        if first & 0x80 == 0 {
            return Ok(text);
        }
        scratch.clear();
        huffman::decode(text, scratch)?;
        Ok(scratch)
    }
}
