//! Handshakes with rustls that succeed, in every shape the wire can give them.

use super::peers::*;
use crate::tls::aead::Library;
use crate::tls::config::{Credential, Exchange, Profile};
use crate::tls::handshake::{Handshake, Progress};
use crate::tls::keyschedule::Suite;
use crate::tls::record::{Content, ContentType};
use rustls::{Connection, NamedGroup};

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
                    assert_eq!(done.ours.peer.chain.len(), 1);
                    assert_eq!(done.ours.seal.snapshot().suite, suite);
                    let record = sealed(&mut done.ours.seal, ContentType::ApplicationData, b"hello");
                    assert_eq!(feed(&mut theirs, &record, rng).unwrap(), b"hello");
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

#[test]
fn the_default_is_x25519_without_a_name_and_the_hybrid_only_where_asked_for() {
    let authority = authority();
    let issued = authority.issue(&id(API), HOUR).unwrap();
    let hybrid = Profile { exchange: Exchange::PostQuantumOnly, ..Profile::default() };
    seeded(|rng| {
        for (profile, group) in
            [(Profile::default(), NamedGroup::X25519), (hybrid, NamedGroup::X25519MLKEM768)]
        {
            let ours = authority.credential(&id(API), HOUR, profile.clone()).unwrap();
            let mut theirs = Peer::new(issued.clone()).server();
            let (done, _) = shake(Handshake::client(&ours, expect(&[API])).unwrap(), &mut theirs, rng);
            assert!(done.is_ok());
            assert_eq!(theirs.negotiated_key_exchange_group().unwrap().name(), group);
            let Connection::Server(server) = &theirs else { unreachable!() };
            assert_eq!(server.server_name(), None);

            let mut theirs = Peer::new(issued.clone()).client();
            let (done, _) = shake(Handshake::server(&ours).unwrap(), &mut theirs, rng);
            assert!(done.is_ok());
            assert_eq!(theirs.negotiated_key_exchange_group().unwrap().name(), group);
        }
    });
}

/// What the preference for the hybrid comes to with peers that know it, don't, and insist on it; in either role.
#[test]
fn the_hybrid_is_preferred_without_excluding_anybody() {
    use Exchange::{Default, Hybrid, PostQuantumOnly};
    let authority = authority();
    let issued = authority.issue(&id(API), HOUR).unwrap();
    let agreed = |ours, theirs, x25519_only, dialling| {
        let profile = Profile { exchange: ours, ..Profile::default() };
        let ours = authority.credential(&id(API), HOUR, profile).unwrap();
        let peer = Peer { exchange: theirs, x25519_only, ..Peer::new(issued.clone()) };
        let (handshake, mut theirs) = if dialling {
            (Handshake::client(&ours, expect(&[API])).unwrap(), peer.server())
        } else {
            (Handshake::server(&ours).unwrap(), peer.client())
        };
        let mut done = false;
        seeded(|rng| done = shake(handshake, &mut theirs, rng).0.is_ok());
        done.then(|| theirs.negotiated_key_exchange_group().unwrap().name())
    };
    for dialling in [true, false] {
        assert_eq!(agreed(Hybrid, Hybrid, false, dialling), Some(NamedGroup::X25519MLKEM768));
        assert_eq!(agreed(Hybrid, PostQuantumOnly, false, dialling), Some(NamedGroup::X25519MLKEM768));
        assert_eq!(agreed(PostQuantumOnly, Hybrid, false, dialling), Some(NamedGroup::X25519MLKEM768));
        assert_eq!(agreed(Hybrid, Default, true, dialling), Some(NamedGroup::X25519), "an old peer");
        assert_eq!(agreed(PostQuantumOnly, Default, true, dialling), None, "a policy isn't a preference");
    }
    // A server of ours takes the hybrid wherever the client offers it first.
    assert_eq!(agreed(Default, Hybrid, false, false), Some(NamedGroup::X25519MLKEM768));
}

#[test]
fn messages_in_many_small_records_are_put_together() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    seeded(|rng| {
        for fragment in [32, 33, 100, 255] {
            let peer =
                Peer { fragment: Some(fragment), ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
            let mut theirs = peer.server();
            let dialled = Handshake::client(&ours, expect(&[WEB])).unwrap();
            assert!(shake(dialled, &mut theirs, rng).0.is_ok(), "server's records of {fragment}");
            let mut theirs = peer.client();
            let accepted = Handshake::server(&ours).unwrap();
            assert!(shake(accepted, &mut theirs, rng).0.is_ok(), "client's records of {fragment}");
        }
    });
}

/// Our server up to the point where the client's last flight is missing; that flight, with whatever `more` adds.
pub(super) fn up_to_last_flight(
    ours: &Credential,
    theirs: &mut Connection,
    more: impl FnOnce(&mut Connection),
) -> (Handshake, Vec<u8>) {
    let mut handshake = Handshake::server(ours).unwrap();
    let (mut hello, mut answer, mut flight) = (Vec::new(), Vec::new(), Vec::new());
    drain(theirs, &mut hello);
    let progress = handshake.advance(&mut hello, &mut answer).unwrap();
    assert!(matches!(progress, Progress::Continue));
    assert!(hello.is_empty());
    theirs.read_tls(&mut &answer[..]).unwrap();
    theirs.process_new_packets().unwrap();
    assert!(!theirs.is_handshaking());
    more(theirs);
    drain(theirs, &mut flight);
    (handshake, flight)
}

#[test]
fn data_and_key_updates_in_the_flight_of_the_finished_are_left_for_us() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    seeded(|rng| {
        let mut theirs = Peer::new(authority.issue(&id(WEB), HOUR).unwrap()).client();
        let (mut handshake, mut flight) = up_to_last_flight(&ours, &mut theirs, |theirs| {
            use std::io::Write;
            theirs.writer().write_all(b"before ").unwrap();
            theirs.refresh_traffic_keys().unwrap();
            theirs.writer().write_all(b"and after").unwrap();
        });
        let mut outgoing = Vec::new();
        let Progress::Done(done) = handshake.advance(&mut flight, &mut outgoing).unwrap() else {
            panic!("the whole flight was there")
        };
        let mut done = *done;
        assert!(outgoing.is_empty());
        assert_eq!(done.open.snapshot().0.sequence, 0);
        assert_eq!(open_all(&mut done.open, &mut flight), Ok((b"before and after".to_vec(), true)));
        assert!(flight.is_empty());
        done.seal.key_update(false, &mut outgoing).unwrap();
        outgoing.extend(sealed(&mut done.seal, ContentType::ApplicationData, b"answer"));
        assert_eq!(feed(&mut theirs, &outgoing, rng).unwrap(), b"answer");
    });
}

#[test]
fn data_in_the_flight_of_the_servers_finished_is_left_for_us_too() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    seeded(|rng| {
        // Only a server that asks for no certificate may speak so early.
        let issued = authority.issue(&id(WEB), HOUR).unwrap();
        let peer = Peer { client_roots: None, half_rtt: true, ..Peer::new(issued) };
        let mut theirs = peer.server();
        let mut handshake = Handshake::client(&ours, expect(&[WEB])).unwrap();
        let (mut hello, mut flight) = (Vec::new(), Vec::new());
        handshake.advance(&mut Vec::new(), &mut hello).unwrap();
        feed(&mut theirs, &hello, rng).unwrap();
        send(&mut theirs, b"early bird", &mut flight);
        let mut outgoing = Vec::new();
        let Progress::Done(mut done) = handshake.advance(&mut flight, &mut outgoing).unwrap() else {
            panic!("the whole flight was there")
        };
        assert_eq!(open_all(&mut done.open, &mut flight), Ok((b"early bird".to_vec(), false)));
        feed(&mut theirs, &outgoing, rng).unwrap();
        assert!(!theirs.is_handshaking());
    });
}

#[test]
fn roots_of_one_name_with_different_keys_and_intermediates_are_all_followed() {
    let (old, new) = (authority(), authority());
    let (old_leaf, new_leaf) = (old.issue(&id(WEB), HOUR).unwrap(), new.issue(&id(API), HOUR).unwrap());
    // During a rotation everybody trusts both; both roots have the same subject.
    let both = format!("{}{}", old.root_pem(), new.root_pem());
    let mut ours_issued = new_leaf.clone();
    ours_issued.roots_pem = both;
    let ours = credential(&ours_issued, API, Library::Ring);
    assert_eq!(ours.roots().len(), 2);
    let deep = new.issue_through_intermediate(&id(WEB));
    assert_eq!(deep.chain_pem.matches("BEGIN").count(), 2);
    seeded(|rng| {
        for issued in [old_leaf, deep] {
            let through = issued.chain_pem.matches("BEGIN").count();
            let mut peer = Peer::new(issued);
            let dialled = Handshake::client(&ours, expect(&[WEB])).unwrap();
            peer.client_roots = Some(new.root_pem().to_owned());
            let done = shake(dialled, &mut peer.server(), rng).0.unwrap();
            assert_eq!(done.ours.peer.chain.len(), through);
            let accepted = Handshake::server(&ours).unwrap();
            let done = shake(accepted, &mut peer.client(), rng).0.unwrap();
            assert_eq!(done.ours.peer.identity, Some(id(WEB)));
        }
    });
}
