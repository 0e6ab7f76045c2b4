//! The handshake messages that may come after the handshake: KeyUpdate and NewSessionTicket (RFC 8446 section 4.6).
//! Tickets are read over without being stored; anything else is refused.

use crate::base::limits::TICKET_BYTES;
use crate::tls::record::RecordError;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A message that came in parts, as far as it matters: plain data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pending {
    #[default]
    Nothing,
    /// The first `have` bytes of a message header.
    Header { bytes: [u8; 4], have: u8 },
    /// A ticket of which `left` bytes are to come.
    Ticket { left: usize },
    /// A KeyUpdate without its one byte.
    KeyUpdate,
}

/// A message that is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tls) enum Message {
    Ticket,
    KeyUpdate { requested: bool },
}

impl Pending {
    pub(in crate::tls) fn is_empty(&self) -> bool {
        *self == Self::Nothing
    }

    /// Takes bytes from the front of `plain` until a message is complete or nothing is left.
    pub(in crate::tls) fn read(
        &mut self,
        plain: &mut &[u8],
        tickets_allowed: bool,
    ) -> Result<Option<Message>, RecordError> {
        loop {
            match *self {
                Self::Nothing => *self = Self::Header { bytes: [0; 4], have: 0 },
                Self::Header { bytes, have: 4 } => *self = announced(bytes, tickets_allowed)?,
                Self::Header { mut bytes, have } => {
                    let Some(byte) = take_byte(plain) else {
                        *self = if have == 0 { Self::Nothing } else { *self };
                        return Ok(None);
                    };
                    if let Some(place) = bytes.get_mut(usize::from(have)) {
                        *place = byte;
                    }
                    *self = Self::Header { bytes, have: have.saturating_add(1) };
                }
                Self::Ticket { left: 0 } => {
                    *self = Self::Nothing;
                    return Ok(Some(Message::Ticket));
                }
                Self::Ticket { left } => {
                    let taken = left.min(plain.len());
                    *plain = plain.get(taken..).unwrap_or_default();
                    *self = Self::Ticket { left: left - taken };
                    if taken == 0 {
                        return Ok(None);
                    }
                }
                Self::KeyUpdate => {
                    let Some(request) = take_byte(plain) else { return Ok(None) };
                    if request > 1 {
                        return Err(RecordError::BadKeyUpdate(request));
                    }
                    *self = Self::Nothing;
                    return Ok(Some(Message::KeyUpdate { requested: request == 1 }));
                }
            }
        }
    }
}

/// What a complete header announces.
fn announced([kind, high, middle, low]: [u8; 4], tickets_allowed: bool) -> Result<Pending, RecordError> {
    let length = usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
    match kind {
        NEW_SESSION_TICKET if tickets_allowed && length <= TICKET_BYTES => {
            Ok(Pending::Ticket { left: length })
        }
        NEW_SESSION_TICKET if tickets_allowed => Err(RecordError::Unreadable),
        KEY_UPDATE if length == 1 => Ok(Pending::KeyUpdate),
        KEY_UPDATE => Err(RecordError::Unreadable),
        other => Err(RecordError::UnexpectedMessage(other)),
    }
}

fn take_byte(plain: &mut &[u8]) -> Option<u8> {
    let (first, rest) = plain.split_first()?;
    *plain = rest;
    Some(*first)
}
