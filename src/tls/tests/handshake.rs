//! Handshakes: with rustls in both roles, and every way to be refused.

use super::peers::*;
use crate::tls::aead::Library;
use crate::tls::handshake::Handshake;
use crate::tls::keyschedule::Suite;
use crate::tls::record::{Content, ContentType};

const SUITES: [Suite; 2] = [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384];

#[test]
fn both_roles_and_both_suites_talk_with_rustls() {
    let authority = authority();
    seeded(|rng| {
        for suite in SUITES {
            for dialling in [true, false] {
                for library in [Library::Ring, Library::AwsLc] {
                    let ours = credential(&authority.issue(&id(API), HOUR).unwrap(), API, library);
                    let peer = Peer { suite, ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
                    let (handshake, mut theirs) = if dialling {
                        (Handshake::client(&ours, expect(&[WEB])).unwrap(), peer.server())
                    } else {
                        (Handshake::server(&ours).unwrap(), peer.client())
                    };
                    let (done, error) = shake(handshake, &mut theirs, rng);
                    let mut done = done.unwrap();
                    assert_eq!(error, None);
                    assert_eq!(done.ours.peer.identity, Some(id(WEB)));
                    assert_eq!(done.ours.seal.snapshot().suite, suite);
                    let mut record = b"-----hello-----------------".to_vec();
                    done.ours.seal.seal(ContentType::ApplicationData, &mut record).unwrap();
                    feed(&mut theirs, &record, rng).unwrap();
                    assert_eq!(received(&mut theirs), b"hello");
                    send(&mut theirs, b"and back", &mut done.tail);
                    let opened = done.ours.open.open(&mut done.tail).unwrap().unwrap();
                    let Content::Data(range) = opened.content else { panic!("{opened:?}") };
                    assert_eq!(&done.tail[range], b"and back");
                    assert_eq!(opened.consumed, done.tail.len());
                }
            }
        }
    });
}
