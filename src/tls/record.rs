//! TLS 1.3 record protection after the handshake (RFC 8446 section 5): sealing and opening in place, key
//! updates, alerts, close_notify. No sockets, no buffers of its own, and it never sends by itself: what must be
//! answered is returned. The messages inside handshake records are read in `upkeep`.

use std::ops::Range;

use crate::base::fault::Whose;
use crate::base::limits::{
    DATA_BYTES_AN_UPKEEP, KEY_RECORDS, KEY_UPDATE_AFTER_RECORDS, RECORD_PLAINTEXT_BYTES,
    UPKEEP_MESSAGES_IN_A_ROW,
};
use crate::tls::aead::{AeadFailed, Library, TAG_BYTES};
use crate::tls::keyschedule::{Armed, Direction};
use crate::tls::upkeep::{Message, Pending};

/// In front of each record: type, version, length.
pub const HEADER_BYTES: usize = 5;
/// Behind each record: the true content type and the tag.
pub const TRAILER_BYTES: usize = 1 + TAG_BYTES;
/// A ciphertext may be this much longer than a plaintext: type, tag and padding (RFC 8446 section 5.2).
const EXPANSION_BYTES: usize = 256;
/// Alert descriptions that are no error (RFC 8446 section 6).
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;

/// What a record carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentType {
    Alert = 21,
    Handshake = 22,
    ApplicationData = 23,
}

/// Turns plaintext into records: one direction of one connection.
pub struct Sealer {
    armed: Armed,
}

/// Turns records into plaintext: the other direction.
pub struct Opener {
    armed: Armed,
    state: Reading,
}

/// What an opener knows beside its direction: plain data too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Only servers send session tickets.
    pub peer_is_server: bool,
    /// A handshake message of which a part is still to come.
    pub pending: Pending,
    /// Key updates, tickets and warnings that no application data has made up for yet.
    pub upkeep_in_a_row: u8,
    /// Application data, in bytes, that has not made up for one yet.
    pub data_bytes: usize,
}

/// An opened record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Bytes of the record, header and tag included.
    pub consumed: usize,
    pub content: Content,
}

/// What the record meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Application data, as a range of the bytes given; may be empty.
    Data(Range<usize>),
    /// Nothing to do: a ticket, a key update that asks for no answer, a part of a message.
    Nothing,
    /// The peer has a new key and asks for ours: call `Sealer::key_update(false, ..)`.
    UpdateRequested,
    /// close_notify: nothing more will come.
    Closed,
}

/// Why a record can't be sealed or opened. After any of these the direction is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("a record doesn't authenticate")]
    BadRecord,
    #[error("a record of {0} bytes is longer than TLS allows")]
    TooLong(usize),
    #[error("unexpected content type {0}")]
    UnexpectedType(u8),
    #[error("unexpected handshake message of type {0}")]
    UnexpectedMessage(u8),
    #[error("a handshake message or alert can't be read")]
    Unreadable,
    #[error("a key update asks for {0}, neither 0 nor 1")]
    BadKeyUpdate(u8),
    #[error("received fatal alert: {}", alert_name(*.0))]
    Alert(u8),
    #[error("more than {UPKEEP_MESSAGES_IN_A_ROW} key updates, tickets or warnings with little data between")]
    TooManyKeyUpdates,
    #[error("the key has sealed all the records it may")]
    Exhausted,
    #[error("no room for header and trailer in {0} bytes")]
    NoRoom(usize),
    #[error("the cryptography library refused a key")]
    Key,
}

impl RecordError {
    /// The alert to send, `None` where the peer has closed already (RFC 8446 section 6.2).
    pub fn alert(&self) -> Option<u8> {
        match self {
            Self::BadRecord => Some(20),
            Self::TooLong(_) => Some(22),
            Self::UnexpectedType(_) | Self::UnexpectedMessage(_) | Self::TooManyKeyUpdates => Some(10),
            Self::Unreadable => Some(50),
            Self::BadKeyUpdate(_) => Some(47),
            Self::Alert(_) => None,
            Self::Exhausted | Self::NoRoom(_) | Self::Key => Some(80),
        }
    }

    /// Who has to change something.
    pub fn whose(&self) -> Whose {
        match self {
            Self::Exhausted | Self::NoRoom(_) | Self::Key => Whose::Us,
            Self::BadRecord
            | Self::TooLong(_)
            | Self::UnexpectedType(_)
            | Self::UnexpectedMessage(_)
            | Self::Unreadable
            | Self::BadKeyUpdate(_)
            | Self::Alert(_)
            | Self::TooManyKeyUpdates => Whose::Peer,
        }
    }
}

impl From<AeadFailed> for RecordError {
    fn from(_: AeadFailed) -> Self {
        Self::Key
    }
}

/// The name of an alert as RFC 8446 section 6 and rustls write it.
fn alert_name(description: u8) -> String {
    format!("{:?}", rustls::AlertDescription::from(description))
}

impl Sealer {
    /// Starts, or goes on, where `direction` stands.
    pub fn restore(direction: Direction, library: Library) -> Result<Self, RecordError> {
        Ok(Self { armed: Armed::new(direction, library)? })
    }

    /// The whole state, to be written down.
    pub fn snapshot(&self) -> Direction {
        self.armed.direction.clone()
    }

    /// `record` = 5 bytes of room, plaintext (at most 16 KiB), 17 bytes of room; sealed in place, the whole slice
    /// is then what goes onto the wire.
    pub fn seal(&mut self, kind: ContentType, record: &mut [u8]) -> Result<(), RecordError> {
        if self.armed.direction.sequence >= KEY_RECORDS {
            return Err(RecordError::Exhausted);
        }
        self.seal_past_limit(kind, record)
    }

    /// True well before the key has sealed all it may: call `key_update`.
    pub fn wants_update(&self) -> bool {
        self.armed.direction.sequence >= KEY_UPDATE_AFTER_RECORDS
    }

    /// Appends a sealed KeyUpdate and turns the key. `ask_peer`: the peer shall turn its key too.
    pub fn key_update(&mut self, ask_peer: bool, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.append(ContentType::Handshake, &[24, 0, 0, 1, u8::from(ask_peer)], out)?;
        Ok(self.armed.turn()?)
    }

    /// Appends a sealed close_notify; nothing may be sealed after it.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.append(ContentType::Alert, &[1, CLOSE_NOTIFY], out)
    }

    /// Appends a sealed fatal alert. A direction that can't seal any more stays silent: it is over in any case.
    pub fn alert(&mut self, description: u8, out: &mut Vec<u8>) {
        let _silent = self.append(ContentType::Alert, &[2, description], out);
    }

    /// Farewells and key updates may go a little past the limit: refusing them would strand the connection.
    fn append(&mut self, kind: ContentType, message: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let start = out.len();
        out.extend([0; HEADER_BYTES]);
        out.extend(message);
        out.extend([0; TRAILER_BYTES]);
        let sealed = match out.get_mut(start..) {
            Some(record) => self.seal_past_limit(kind, record),
            None => Err(RecordError::NoRoom(0)),
        };
        if sealed.is_err() {
            out.truncate(start);
        }
        sealed
    }

    fn seal_past_limit(&mut self, kind: ContentType, record: &mut [u8]) -> Result<(), RecordError> {
        let whole = record.len();
        let Some((header, rest)) = record.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(RecordError::NoRoom(whole));
        };
        let sealed_length = rest.len();
        let Some((body, tag)) = rest.split_last_chunk_mut::<TAG_BYTES>() else {
            return Err(RecordError::NoRoom(whole));
        };
        let Some((inner_type, plain)) = body.split_last_mut() else {
            return Err(RecordError::NoRoom(whole));
        };
        if plain.len() > RECORD_PLAINTEXT_BYTES {
            return Err(RecordError::TooLong(plain.len()));
        }
        let length = u16::try_from(sealed_length).map_err(|_| RecordError::TooLong(sealed_length))?;
        let [high, low] = length.to_be_bytes();
        *header = [23, 3, 3, high, low];
        *inner_type = kind as u8;
        let nonce = self.armed.nonce();
        *tag = self.armed.key.seal(nonce, header, body)?;
        self.armed.direction.sequence += 1;
        Ok(())
    }
}

impl Opener {
    /// Starts, or goes on, where `direction` and `state` stand.
    pub fn restore(direction: Direction, state: Reading, library: Library) -> Result<Self, RecordError> {
        Ok(Self { armed: Armed::new(direction, library)?, state })
    }

    /// The whole state, to be written down.
    pub fn snapshot(&self) -> (Direction, Reading) {
        (self.armed.direction.clone(), self.state.clone())
    }

    /// Opens the first whole record at the front of `bytes` in place; `None`: more bytes are needed.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Option<Opened>, RecordError> {
        let Some((header, rest)) = bytes.split_first_chunk_mut::<HEADER_BYTES>() else { return Ok(None) };
        let [outer, _, _, high, low] = *header;
        if outer != ContentType::ApplicationData as u8 {
            return Err(RecordError::UnexpectedType(outer));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > RECORD_PLAINTEXT_BYTES + EXPANSION_BYTES {
            return Err(RecordError::TooLong(length));
        }
        if length < TRAILER_BYTES {
            return Err(RecordError::BadRecord);
        }
        let Some(sealed) = rest.get_mut(..length) else { return Ok(None) };
        let nonce = self.armed.nonce();
        let opened = self.armed.key.open(nonce, header, sealed).map_err(|_| RecordError::BadRecord)?;
        self.armed.direction.sequence =
            self.armed.direction.sequence.checked_add(1).ok_or(RecordError::Exhausted)?;
        let inner = sealed.get(..opened).unwrap_or_default();
        if inner.len() > RECORD_PLAINTEXT_BYTES + 1 {
            return Err(RecordError::TooLong(inner.len()));
        }
        let Some((kind, plain)) = strip_padding(inner) else { return Err(RecordError::UnexpectedType(0)) };
        let content = match kind {
            23 => self.data(plain.len())?,
            22 => self.handshake(plain)?,
            21 => self.alert(plain)?,
            other => return Err(RecordError::UnexpectedType(other)),
        };
        Ok(Some(Opened { consumed: HEADER_BYTES + length, content }))
    }

    fn data(&mut self, length: usize) -> Result<Content, RecordError> {
        if !self.state.pending.is_empty() {
            // Records of other types may not stand between the parts of a message (RFC 8446 section 5.1).
            return Err(RecordError::UnexpectedType(ContentType::ApplicationData as u8));
        }
        // By volume, since a byte now and then would make the bound on upkeep cheap to evade.
        self.state.data_bytes = self.state.data_bytes.saturating_add(length);
        if self.state.data_bytes >= DATA_BYTES_AN_UPKEEP {
            self.state.data_bytes = 0;
            self.state.upkeep_in_a_row = self.state.upkeep_in_a_row.saturating_sub(1);
        }
        Ok(Content::Data(HEADER_BYTES..HEADER_BYTES + length))
    }

    fn handshake(&mut self, mut plain: &[u8]) -> Result<Content, RecordError> {
        if plain.is_empty() {
            return Err(RecordError::UnexpectedType(ContentType::Handshake as u8));
        }
        let mut content = Content::Nothing;
        // One record counts once even if it carries a part of a message only: parts are the cheapest of floods.
        self.count_upkeep()?;
        while !plain.is_empty() {
            match self.state.pending.read(&mut plain, self.state.peer_is_server)? {
                None => {}
                Some(Message::Ticket) => self.count_upkeep()?,
                Some(Message::KeyUpdate { requested }) => {
                    if !plain.is_empty() {
                        // A key change must end its record (RFC 8446 section 5.1).
                        return Err(RecordError::UnexpectedMessage(24));
                    }
                    self.armed.turn()?;
                    if requested {
                        content = Content::UpdateRequested;
                    }
                }
            }
        }
        Ok(content)
    }

    fn alert(&mut self, plain: &[u8]) -> Result<Content, RecordError> {
        if !self.state.pending.is_empty() {
            return Err(RecordError::UnexpectedType(ContentType::Alert as u8));
        }
        // The level is ignored: in TLS 1.3 the description alone decides (RFC 8446 section 6).
        match *plain {
            [_, CLOSE_NOTIFY] => Ok(Content::Closed),
            [_, USER_CANCELED] => self.count_upkeep().map(|()| Content::Nothing),
            [_, description] => Err(RecordError::Alert(description)),
            _ => Err(RecordError::Unreadable),
        }
    }

    fn count_upkeep(&mut self) -> Result<(), RecordError> {
        if self.state.upkeep_in_a_row >= UPKEEP_MESSAGES_IN_A_ROW {
            return Err(RecordError::TooManyKeyUpdates);
        }
        self.state.upkeep_in_a_row += 1;
        Ok(())
    }
}

/// The content type is the last byte that isn't zero; all after it is padding (RFC 8446 section 5.4).
fn strip_padding(inner: &[u8]) -> Option<(u8, &[u8])> {
    let end = inner.iter().rposition(|byte| *byte != 0)?;
    Some((*inner.get(end)?, inner.get(..end)?))
}
