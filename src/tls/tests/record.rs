//! Records that were cut short, altered, padded, too long or of the wrong kind; and the end of a key.

use proptest::prelude::*;

use super::peers::{open_all, sealed};
use crate::base::fault::Whose;
use crate::base::limits::{KEY_RECORDS, KEY_UPDATE_AFTER_RECORDS, RECORD_PLAINTEXT_BYTES};
use crate::tls::aead::Library;
use crate::tls::keyschedule::{Armed, Direction, Suite};
use crate::tls::record::*;
use crate::tls::upkeep::Pending;

const SUITES: [Suite; 2] = [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384];

fn direction(suite: Suite, sequence: u64) -> Direction {
    Direction::new(suite, &vec![0x42; suite.secret_bytes()], sequence).unwrap()
}

/// A sealer and the opener at its far end.
pub(super) fn pair(peer_is_server: bool) -> (Sealer, Opener) {
    let reading = Reading { peer_is_server, pending: Pending::Nothing, upkeep_in_a_row: 0, data_bytes: 0 };
    let at = direction(Suite::Aes256GcmSha384, 0);
    let open = Opener::restore(at.clone(), reading, Library::AwsLc).unwrap();
    (Sealer::restore(at, Library::Ring).unwrap(), open)
}

/// A record whose inside is just as given: content, type and padding, whatever they are.
fn raw(inside: &[u8]) -> Vec<u8> {
    let armed = Armed::new(direction(Suite::Aes256GcmSha384, 0), Library::Ring).unwrap();
    let [high, low] = u16::try_from(inside.len() + 16).unwrap().to_be_bytes();
    let header = [23, 3, 3, high, low];
    let mut body = inside.to_vec();
    let tag = armed.key.seal(armed.nonce(), &header, &mut body).unwrap();
    [&header[..], &body, &tag].concat()
}

#[test]
fn every_size_goes_through_and_one_more_does_not() {
    for length in (0..300).chain([RECORD_PLAINTEXT_BYTES - 1, RECORD_PLAINTEXT_BYTES]) {
        let (mut seal, mut open) = pair(false);
        let plain: Vec<u8> = (0..=255).cycle().take(length).collect();
        let mut record = sealed(&mut seal, ContentType::ApplicationData, &plain);
        assert_eq!(record.len(), HEADER_BYTES + length + TRAILER_BYTES);
        let opened = open.open(&mut record).unwrap().unwrap();
        assert_eq!(opened, Opened { consumed: record.len(), content: Content::Data(5..5 + length) });
        assert_eq!(record[5..5 + length], plain);
    }
    let (mut seal, _) = pair(false);
    let mut record = vec![0; HEADER_BYTES + RECORD_PLAINTEXT_BYTES + 1 + TRAILER_BYTES];
    let error = seal.seal(ContentType::ApplicationData, &mut record).unwrap_err();
    assert_eq!(error, RecordError::TooLong(RECORD_PLAINTEXT_BYTES + 1));
    for length in 0..HEADER_BYTES + TRAILER_BYTES {
        let error = seal.seal(ContentType::ApplicationData, &mut vec![0; length]).unwrap_err();
        assert_eq!((error, error.whose()), (RecordError::NoRoom(length), Whose::Us));
    }
    assert_eq!(seal.snapshot().sequence, 0, "a refused record takes no number");
}

#[test]
fn a_record_that_is_not_whole_waits_and_changes_nothing() {
    let (mut seal, mut open) = pair(false);
    let mut record = sealed(&mut seal, ContentType::ApplicationData, b"patience");
    let before = record.clone();
    for length in 0..record.len() {
        assert_eq!(open.open(&mut record[..length]), Ok(None), "{length} bytes");
    }
    assert_eq!(record, before);
    let mut two = [record, sealed(&mut seal, ContentType::ApplicationData, b"more")].concat();
    let opened = open.open(&mut two).unwrap().unwrap();
    assert_eq!(opened.consumed, before.len());
    assert_eq!(open.open(&mut two[opened.consumed..]).unwrap().unwrap().content, Content::Data(5..9));
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    for library in [Library::Ring, Library::AwsLc] {
        for suite in SUITES {
            let mut seal = Sealer::restore(direction(suite, 7), library).unwrap();
            let record = sealed(&mut seal, ContentType::ApplicationData, b"not a bit of it");
            for at in 0..record.len() {
                for bit in 0..8 {
                    let reading = Reading {
                        peer_is_server: true,
                        pending: Pending::Nothing,
                        upkeep_in_a_row: 0,
                        data_bytes: 0,
                    };
                    let mut open = Opener::restore(direction(suite, 7), reading, library).unwrap();
                    let mut altered = record.clone();
                    altered[at] ^= 1 << bit;
                    // Long enough that a longer length is still a whole record.
                    altered.resize(70_000, 0);
                    let error = open.open(&mut altered).unwrap_err();
                    let expected = match at {
                        0 => error == RecordError::UnexpectedType(23 ^ (1 << bit)),
                        3 | 4 => matches!(error, RecordError::BadRecord | RecordError::TooLong(_)),
                        _ => error == RecordError::BadRecord,
                    };
                    assert!(expected, "byte {at} bit {bit}: {error}");
                    assert_eq!(error.whose(), Whose::Peer);
                }
            }
        }
    }
}

#[test]
fn records_out_of_order_repeated_or_of_another_key_are_refused() {
    let (mut seal, mut open) = pair(false);
    let first = sealed(&mut seal, ContentType::ApplicationData, b"one");
    let second = sealed(&mut seal, ContentType::ApplicationData, b"two");
    let bad = Err(RecordError::BadRecord);
    assert_eq!(open.open(&mut second.clone()), bad);
    assert!(open.open(&mut first.clone()).is_ok());
    assert_eq!(open.open(&mut first.clone()), bad);
    seal.key_update(false, &mut Vec::new()).unwrap();
    assert_eq!(open.open(&mut sealed(&mut seal, ContentType::ApplicationData, b"three")), bad);
    assert_eq!(RecordError::BadRecord.alert(), Some(20));
}

#[test]
fn padding_is_taken_off_and_padding_alone_is_refused() {
    let (_, mut open) = pair(false);
    let mut padded = raw(&[&b"text\0\0"[..], &[23], &[0; 500]].concat());
    assert_eq!(open.open(&mut padded).unwrap().unwrap().content, Content::Data(5..11));
    let empty = |inside: &[u8]| pair(false).1.open(&mut raw(inside));
    assert_eq!(empty(&[0; 40]), Err(RecordError::UnexpectedType(0)));
    assert_eq!(empty(&[1, 20]), Err(RecordError::UnexpectedType(20)));
    assert_eq!(empty(&[1, 24]), Err(RecordError::UnexpectedType(24)));
    assert_eq!(empty(&[22]), Err(RecordError::UnexpectedType(22)));
    // The header alone decides before a byte is decrypted.
    assert_eq!(pair(false).1.open(&mut [23, 3, 3, 0x41, 1]), Err(RecordError::TooLong(16_641)));
    assert_eq!(pair(false).1.open(&mut [20, 3, 3, 0, 1, 1]), Err(RecordError::UnexpectedType(20)));
    assert_eq!(pair(false).1.open(&mut [23, 3, 3, 0, 16]), Err(RecordError::BadRecord));
}

#[test]
fn the_inside_may_be_as_long_as_a_full_record_and_no_longer() {
    let mut full = vec![5; RECORD_PLAINTEXT_BYTES];
    full.push(23);
    let opened = pair(false).1.open(&mut raw(&full)).unwrap().unwrap();
    assert_eq!(opened.content, Content::Data(5..5 + RECORD_PLAINTEXT_BYTES));
    full.push(0);
    let error = pair(false).1.open(&mut raw(&full)).unwrap_err();
    assert_eq!((error, error.alert()), (RecordError::TooLong(RECORD_PLAINTEXT_BYTES + 2), Some(22)));
}

#[test]
fn a_key_asks_to_be_turned_in_time_and_ends_at_its_limit() {
    let at = |sequence| Sealer::restore(direction(Suite::Aes128GcmSha256, sequence), Library::Ring).unwrap();
    assert!(!at(KEY_UPDATE_AFTER_RECORDS - 1).wants_update());
    let mut seal = at(KEY_UPDATE_AFTER_RECORDS);
    assert!(seal.wants_update());
    seal.key_update(false, &mut Vec::new()).unwrap();
    assert!(!seal.wants_update());
    assert_eq!(seal.snapshot().sequence, 0);

    let mut seal = at(KEY_RECORDS - 1);
    sealed(&mut seal, ContentType::ApplicationData, b"the last");
    let error = seal.seal(ContentType::ApplicationData, &mut [0; 30]).unwrap_err();
    assert_eq!((error, error.whose(), error.alert()), (RecordError::Exhausted, Whose::Us, Some(80)));
    // It can still say goodbye, or turn the key and go on.
    let mut out = Vec::new();
    seal.close_notify(&mut out).unwrap();
    seal.alert(80, &mut out);
    seal.key_update(true, &mut out).unwrap();
    assert_eq!(out.len(), 2 * (5 + 2 + 17) + 5 + 5 + 17);
    sealed(&mut seal, ContentType::ApplicationData, b"goes on");
}

#[test]
fn alerts_are_told_apart() {
    let alert = |bytes: &[u8]| {
        let (mut seal, mut open) = pair(true);
        open.open(&mut sealed(&mut seal, ContentType::Alert, bytes)).map(|opened| opened.unwrap().content)
    };
    assert_eq!(alert(&[1, 0]), Ok(Content::Closed));
    assert_eq!(alert(&[2, 0]), Ok(Content::Closed), "the level counts for nothing");
    assert_eq!(alert(&[1, 90]), Ok(Content::Nothing));
    assert_eq!(alert(&[1, 40]), Err(RecordError::Alert(40)));
    assert_eq!(RecordError::Alert(40).to_string(), "received fatal alert: HandshakeFailure");
    for wrong in [&[][..], &[2], &[2, 40, 0]] {
        assert_eq!(alert(wrong), Err(RecordError::Unreadable));
    }
}

proptest! {
    #[test]
    fn bytes_from_nowhere_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        length in 0..700_u16,
        like_a_record: bool,
    ) {
        let mut bytes = bytes;
        if like_a_record {
            let [high, low] = length.to_be_bytes();
            bytes.splice(..0, [23, 3, 3, high, low]);
        }
        prop_assert!(!matches!(pair(true).1.open(&mut bytes), Ok(Some(_))));
    }

    #[test]
    fn anything_inside_an_authentic_record_is_read_without_panic(
        inside in proptest::collection::vec(any::<u8>(), 0..600),
        kind in 20..25_u8,
    ) {
        let mut record = raw(&[&inside[..], &[kind]].concat());
        let _ = open_all(&mut pair(true).1, &mut record);
    }
}
