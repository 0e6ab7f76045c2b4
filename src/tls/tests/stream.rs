//! Streams in both directions between our records and rustls's, with everything that may happen on the way.

use rustls::Connection;

use super::peers::*;
use crate::base::limits::RECORD_PLAINTEXT_BYTES;
use crate::tls::aead::Library;
use crate::tls::handshake::{Established, Handshake};
use crate::tls::keyschedule::Suite;
use crate::tls::record::{Content, ContentType, Opener, Sealer};

/// One connection under test: what was sent each way and what came out.
struct Wire {
    ours: Established,
    theirs: Connection,
    library: Library,
    /// From rustls to us, not yet given to us; and given to us, not yet whole.
    to_us: Vec<u8>,
    incoming: Vec<u8>,
    sent: [Vec<u8>; 2],
    got: [Vec<u8>; 2],
    updates: [u32; 2],
}

impl Wire {
    fn step(&mut self, rng: &mut fastrand::Rng) {
        match rng.u8(0..16) {
            0..5 => self.we_send(rng),
            5..9 => self.they_send(rng),
            9..13 => self.we_read(rng),
            13 => {
                let mut out = Vec::new();
                self.ours.seal.key_update(rng.bool(), &mut out).unwrap();
                self.updates[0] += 1;
                self.they_read(&out, rng);
            }
            14 if !self.theirs.wants_write() => {
                self.theirs.refresh_traffic_keys().unwrap();
                drain(&mut self.theirs, &mut self.to_us);
            }
            _ => self.write_down_and_read_back(),
        }
    }

    fn we_send(&mut self, rng: &mut fastrand::Rng) {
        let plain = plaintext(size(rng).min(RECORD_PLAINTEXT_BYTES), rng);
        let record = sealed(&mut self.ours.seal, ContentType::ApplicationData, &plain);
        self.sent[0].extend(plain);
        self.they_read(&record, rng);
    }

    fn they_read(&mut self, bytes: &[u8], rng: &mut fastrand::Rng) {
        let plain = feed(&mut self.theirs, bytes, rng).unwrap();
        self.got[0].extend(plain);
        drain(&mut self.theirs, &mut self.to_us);
    }

    fn they_send(&mut self, rng: &mut fastrand::Rng) {
        let plain = plaintext(size(rng), rng);
        send(&mut self.theirs, &plain, &mut self.to_us);
        self.sent[1].extend(plain);
    }

    fn we_read(&mut self, rng: &mut fastrand::Rng) {
        let cut = rng.usize(..=self.to_us.len());
        self.incoming.extend(self.to_us.drain(..cut));
        let (plain, asked) = open_all(&mut self.ours.open, &mut self.incoming).unwrap();
        self.got[1].extend(plain);
        if asked {
            self.updates[1] += 1;
            let mut out = Vec::new();
            self.ours.seal.key_update(false, &mut out).unwrap();
            self.they_read(&out, rng);
        }
    }

    fn write_down_and_read_back(&mut self) {
        let sealing = self.ours.seal.snapshot();
        let (opening, reading) = self.ours.open.snapshot();
        // The next process may have chosen the other library.
        self.library = if self.library == Library::Ring { Library::AwsLc } else { Library::Ring };
        self.ours.seal = Sealer::restore(sealing, self.library).unwrap();
        self.ours.open = Opener::restore(opening, reading, self.library).unwrap();
    }
}

/// The edges of a record as often as anything between.
fn size(rng: &mut fastrand::Rng) -> usize {
    match rng.u8(0..8) {
        0 => 0,
        1 => 1,
        2 => RECORD_PLAINTEXT_BYTES - 1,
        3 => RECORD_PLAINTEXT_BYTES,
        4 => rng.usize(..40_000),
        _ => rng.usize(..300),
    }
}

fn plaintext(length: usize, rng: &mut fastrand::Rng) -> Vec<u8> {
    // Zeros at the end of a record must not be taken for padding.
    let fill = if rng.bool() { 0 } else { rng.u8(..) };
    let mut plain = vec![fill; length];
    plain.iter_mut().step_by(97).for_each(|byte| *byte = rng.u8(..));
    plain
}

#[test]
fn any_stream_comes_out_as_it_went_in() {
    let authority = authority();
    seeded(|rng| {
        for suite in [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384] {
            for dialling in [true, false] {
                let ours = authority.issue(&id(API), HOUR).unwrap();
                let peer = Peer { suite, tickets: 3, ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
                let ours = credential(&ours, API, Library::Ring);
                let (handshake, mut theirs) = if dialling {
                    (Handshake::client(&ours, expect(&[WEB])).unwrap(), peer.server())
                } else {
                    (Handshake::server(&ours).unwrap(), peer.client())
                };
                let done = shake(handshake, &mut theirs, rng).0.unwrap();
                let mut wire = Wire {
                    ours: done.ours,
                    theirs,
                    library: Library::Ring,
                    to_us: done.tail,
                    incoming: Vec::new(),
                    sent: Default::default(),
                    got: Default::default(),
                    updates: [0; 2],
                };
                for _ in 0..500 {
                    wire.step(rng);
                }
                let rest = std::mem::take(&mut wire.to_us);
                wire.incoming.extend(rest);
                wire.got[1].extend(open_all(&mut wire.ours.open, &mut wire.incoming).unwrap().0);
                assert!(wire.incoming.is_empty());
                assert!(wire.sent == wire.got, "the streams differ");
                assert!(wire.sent.iter().all(|sent| sent.len() > 100_000), "too little was sent");
                assert!(wire.updates.iter().all(|updates| *updates > 3), "{:?}", wire.updates);
            }
        }
    });
}

#[test]
fn both_ends_say_goodbye_and_are_understood() {
    let authority = authority();
    let ours = credential(&authority.issue(&id(API), HOUR).unwrap(), API, Library::AwsLc);
    let peer = Peer::new(authority.issue(&id(WEB), HOUR).unwrap());
    seeded(|rng| {
        let mut theirs = peer.server();
        let dialled = Handshake::client(&ours, expect(&[WEB])).unwrap();
        let mut done = shake(dialled, &mut theirs, rng).0.unwrap();
        theirs.send_close_notify();
        drain(&mut theirs, &mut done.tail);
        let opened = done.ours.open.open(&mut done.tail).unwrap().unwrap();
        assert_eq!((opened.content, opened.consumed), (Content::Closed, done.tail.len()));
        // The other direction is still open: TLS 1.3 closes by halves.
        let record = sealed(&mut done.ours.seal, ContentType::ApplicationData, b"last words");
        assert_eq!(feed(&mut theirs, &record, rng).unwrap(), b"last words");
        let mut farewell = Vec::new();
        done.ours.seal.close_notify(&mut farewell).unwrap();
        theirs.read_tls(&mut &farewell[..]).unwrap();
        assert!(theirs.process_new_packets().unwrap().peer_has_closed());
    });
    seeded(|rng| {
        let mut theirs = peer.client();
        let mut done = shake(Handshake::server(&ours).unwrap(), &mut theirs, rng).0.unwrap();
        let mut alert = Vec::new();
        done.ours.seal.alert(20, &mut alert);
        let error = feed(&mut theirs, &alert, rng).unwrap_err();
        assert_eq!(error, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
    });
}
