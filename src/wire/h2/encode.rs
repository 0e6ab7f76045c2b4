//! HPACK encoding without a table and without Huffman: a block means the same whatever came before it, so
//! nothing has to be kept, and a receiver is done with it sooner.

use super::head::ConnectHead;
use super::table::{AUTHORITY, METHOD, STATUS, status_index};

/// A table size update to 0. A connection's first block begins with it: from then on our table is empty by
/// agreement, and no later SETTINGS of the peer can ask for an update (RFC 9113 section 4.3.1).
pub const TABLE_CLOSED: u8 = 0x20;

/// Appends the header block of a CONNECT.
pub fn connect_block(out: &mut Vec<u8>, head: &ConnectHead<'_>) {
    named(out, METHOD, b"CONNECT");
    named(out, AUTHORITY, head.authority.as_bytes());
    for (name, value) in head.fields() {
        literal(out, name.as_bytes(), value.as_bytes());
    }
}

/// Appends the header block of an answer.
pub fn response_block(out: &mut Vec<u8>, status: u16, baggage: Option<&str>) {
    match status_index(status) {
        Some(index) => out.push(0x80 | index),
        None => named(out, STATUS, status.to_string().as_bytes()),
    }
    if let Some(value) = baggage {
        literal(out, b"baggage", value.as_bytes());
    }
}

/// A literal without indexing whose name is in the static table, below index 15 (RFC 7541 section 6.2.2).
fn named(out: &mut Vec<u8>, index: u8, value: &[u8]) {
    out.push(index & 0x0f);
    string(out, value);
}

fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.push(0);
    string(out, name);
    string(out, value);
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()) {
        Ok(length) if length < 0x7f => out.push(length),
        _ => {
            out.push(0x7f);
            let mut rest = text.len() - 0x7f;
            while rest >= 0x80 {
                out.push(0x80 | u8::try_from(rest & 0x7f).unwrap_or(0));
                rest >>= 7;
            }
            out.push(u8::try_from(rest).unwrap_or(0));
        }
    }
    out.extend_from_slice(text);
}
