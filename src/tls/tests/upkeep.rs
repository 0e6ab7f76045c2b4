//! Key updates and tickets: cut anywhere, out of place, and in floods.

use proptest::prelude::*;

use super::peers::{open_all, sealed};
use super::record::pair;
use crate::base::limits::{RECORD_PLAINTEXT_BYTES, UPKEEP_MESSAGES_IN_A_ROW};
use crate::tls::record::*;
use crate::tls::upkeep::{Message, Pending};

const UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

fn ticket(length: u16) -> Vec<u8> {
    let [high, low] = length.to_be_bytes();
    [vec![4, 0, high, low], vec![9; length.into()]].concat()
}

/// Sends each part as a handshake record of its own.
fn records(seal: &mut Sealer, parts: &[&[u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| sealed(seal, ContentType::Handshake, part)).collect()
}

fn outcome(peer_is_server: bool, parts: &[&[u8]]) -> Result<(Vec<u8>, bool), RecordError> {
    let (mut seal, mut open) = pair(peer_is_server);
    open_all(&mut open, &mut records(&mut seal, parts))
}

#[test]
fn tickets_are_read_over_whole_in_parts_and_many_in_a_record() {
    let long = ticket(40_000);
    let parts: Vec<&[u8]> = long.chunks(16_000).collect();
    assert!(outcome(true, &parts).is_ok());
    let many = [ticket(100), ticket(0), ticket(300)].concat();
    assert!(outcome(true, &[&many]).is_ok());
    let huge = [4, 1, 0, 0];
    assert_eq!(outcome(true, &[&huge]), Err(RecordError::Unreadable));
    assert_eq!(outcome(false, &[&ticket(5)]), Err(RecordError::UnexpectedMessage(4)), "clients send none");
}

#[test]
fn a_key_update_in_two_records_turns_the_key_at_its_end() {
    let (mut seal, mut open) = pair(false);
    let mut wire = records(&mut seal, &[&UPDATE[..3], &UPDATE[3..]]);
    // Turn the sealer without the record that it would write itself.
    seal.key_update(false, &mut Vec::new()).unwrap();
    wire.extend(sealed(&mut seal, ContentType::ApplicationData, b"new key"));
    assert_eq!(open_all(&mut open, &mut wire), Ok((b"new key".to_vec(), false)));
}

#[test]
fn messages_out_of_place_are_refused() {
    let behind = [&UPDATE[..], &[24]].concat();
    assert_eq!(outcome(true, &[&behind]), Err(RecordError::UnexpectedMessage(24)));
    assert_eq!(outcome(true, &[&[24, 0, 0, 1, 2]]), Err(RecordError::BadKeyUpdate(2)));
    assert_eq!(RecordError::BadKeyUpdate(2).alert(), Some(47));
    for length in [0, 2] {
        assert_eq!(outcome(true, &[&[24, 0, 0, length, 0, 0]]), Err(RecordError::Unreadable));
    }
    // Hellos, certificate requests, Finished: none has a place here.
    for kind in [0, 1, 2, 5, 8, 11, 13, 15, 20, 254] {
        assert_eq!(outcome(true, &[&[kind, 0, 0, 0]]), Err(RecordError::UnexpectedMessage(kind)));
    }
}

#[test]
fn nothing_may_stand_between_the_parts_of_a_message() {
    for (kind, inside) in [(ContentType::ApplicationData, &b"x"[..]), (ContentType::Alert, &[1, 0])] {
        let (mut seal, mut open) = pair(true);
        let mut wire = records(&mut seal, &[&ticket(50)[..20]]);
        wire.extend(sealed(&mut seal, kind, inside));
        assert_eq!(open_all(&mut open, &mut wire), Err(RecordError::UnexpectedType(kind as u8)));
    }
}

/// `count` key updates, each followed by `between`.
fn flood(count: u8, between: Option<&[u8]>) -> Result<(Vec<u8>, bool), RecordError> {
    let (mut seal, mut open) = pair(false);
    let mut wire = Vec::new();
    for _ in 0..count {
        seal.key_update(false, &mut wire).unwrap();
        if let Some(plain) = between {
            wire.extend(sealed(&mut seal, ContentType::ApplicationData, plain));
        }
    }
    open_all(&mut open, &mut wire)
}

#[test]
fn a_flood_of_key_updates_tickets_or_warnings_is_cut_off() {
    assert!(flood(UPKEEP_MESSAGES_IN_A_ROW, None).is_ok());
    let error = flood(UPKEEP_MESSAGES_IN_A_ROW + 1, None).unwrap_err();
    assert_eq!((error, error.alert()), (RecordError::TooManyKeyUpdates, Some(10)));
    let full = [7; RECORD_PLAINTEXT_BYTES];
    assert!(flood(200, Some(&full)).is_ok(), "data in between makes them welcome");
    for little in [&b""[..], b"x", &full[..1_000]] {
        assert_eq!(flood(200, Some(little)), Err(RecordError::TooManyKeyUpdates), "{} bytes", little.len());
    }

    let many = ticket(0).repeat(40);
    assert_eq!(outcome(true, &[&many]), Err(RecordError::TooManyKeyUpdates));
    let crumbs: Vec<&[u8]> = many.chunks(1).collect();
    assert_eq!(outcome(true, &crumbs), Err(RecordError::TooManyKeyUpdates));
    let (mut seal, mut open) = pair(true);
    let mut warnings: Vec<u8> =
        (0..40).flat_map(|_| sealed(&mut seal, ContentType::Alert, &[1, 90])).collect();
    assert_eq!(open_all(&mut open, &mut warnings), Err(RecordError::TooManyKeyUpdates));
}

proptest! {
    /// However the bytes of some messages are cut, the same messages come out, and nothing is left pending.
    #[test]
    fn messages_are_the_same_however_they_are_cut(
        messages in proptest::collection::vec((any::<bool>(), 0..300_u16), 1..8),
        cuts in proptest::collection::vec(1..40_usize, 1..20),
    ) {
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (is_ticket, number) in messages {
            let requested = number % 2 == 1;
            if is_ticket {
                bytes.extend(ticket(number));
                expected.push(Message::Ticket);
            } else {
                bytes.extend([24, 0, 0, 1, u8::from(requested)]);
                expected.push(Message::KeyUpdate { requested });
            }
        }
        let (mut pending, mut got) = (Pending::default(), Vec::new());
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (mut piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            rest = after;
            while !piece.is_empty() {
                got.extend(pending.read(&mut piece, true).unwrap());
            }
        }
        prop_assert_eq!(got, expected);
        prop_assert!(pending.is_empty());
    }
}
