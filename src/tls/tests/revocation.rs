//! Revocation lists: how they are read, whom they revoke, and what a list can't do.

use std::sync::Arc;
use std::time::SystemTime;

use proptest::prelude::*;
use rustls::{AlertDescription, CertificateError};

use super::peers::*;
use crate::base::limits::REVOCATION_LISTS;
use crate::tls::cert::{Authority, Issued};
use crate::tls::config::{Credential, Profile};
use crate::tls::handshake::{Established, Handshake, HandshakeError};
use crate::tls::revocation::{Revocations, fuzz_revocation_lists, read};

/// Puts these lists in force.
fn lists(pems: &[&str]) -> Arc<Revocations> {
    let revocations = Arc::<Revocations>::default();
    revocations.replace(read(pems.concat().as_bytes()).unwrap());
    revocations
}

fn ours(authority: &Authority, revocations: &Arc<Revocations>) -> Credential {
    let profile = Profile { revocations: revocations.clone(), ..Profile::default() };
    authority.credential(&id(API), HOUR, profile).unwrap()
}

/// A handshake of `ours` with a peer that presents this leaf, and the alert that the peer saw.
fn meet(
    ours: &Credential,
    issued: &Issued,
    dialling: bool,
) -> (Result<Established, HandshakeError>, Option<rustls::Error>) {
    let mut peer = Peer::new(issued.clone());
    peer.client_roots = Some(ours.roots()[0].pem.clone());
    let (handshake, mut theirs) = if dialling {
        (Handshake::client(ours, expect(&[WEB])).unwrap(), peer.server())
    } else {
        (Handshake::server(ours).unwrap(), peer.client())
    };
    let mut outcome = None;
    seeded(|rng| outcome = Some(shake(handshake, &mut theirs, rng)));
    let (done, alert) = outcome.unwrap();
    (done.map(|done| done.ours), alert)
}

fn is_revoked(ours: &Credential, issued: &Issued, dialling: bool) -> bool {
    match meet(ours, issued, dialling).0 {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error, HandshakeError::Certificate(CertificateError::Revoked));
            true
        }
    }
}

#[test]
fn a_revoked_leaf_is_refused_in_either_role_and_another_one_is_not() {
    let authority = authority();
    let (bad, good) = (authority.issue(&id(WEB), HOUR).unwrap(), authority.issue(&id(WEB), HOUR).unwrap());
    let ours = ours(&authority, &lists(&[&authority.revoke(&[&bad.chain_pem])]));
    for dialling in [true, false] {
        let (outcome, alert) = meet(&ours, &bad, dialling);
        let error = outcome.err().unwrap();
        assert_eq!(error.to_string(), "invalid peer certificate: Revoked");
        assert_eq!(alert, Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)));
        assert!(!is_revoked(&ours, &good, dialling));
    }
}

#[test]
fn every_certificate_of_the_chain_is_looked_up_with_its_own_issuer() {
    let authority = authority();
    let (middle, other) = (authority.intermediate(), authority.intermediate());
    let (through, beside) =
        (authority.issue_below(&middle, &id(WEB)), authority.issue_below(&other, &id(WEB)));
    let by_root = authority.revoke(&[middle.root_pem()]);
    let by_middle = middle.revoke(&[&through.chain_pem]);
    for list in [&by_root, &by_middle] {
        // Both intermediates have the same name; only one of them, or its leaf, is revoked.
        let ours = ours(&authority, &lists(&[list]));
        for dialling in [true, false] {
            assert!(is_revoked(&ours, &through, dialling));
            assert!(!is_revoked(&ours, &beside, dialling));
        }
    }
}

#[test]
fn a_list_counts_for_the_key_that_signed_it_whatever_else_has_its_name() {
    // A root that was renewed under its name: both lists stand under it, in any order.
    let (old, new) = (authority(), authority());
    let mut both = new.issue(&id(API), HOUR).unwrap();
    both.roots_pem = format!("{}{}", old.root_pem(), new.root_pem());
    let (of_old, of_new) = (old.issue(&id(WEB), HOUR).unwrap(), new.issue(&id(WEB), HOUR).unwrap());
    let (nobody, one) = (new.revoke(&[]), old.revoke(&[&of_old.chain_pem, &of_new.chain_pem]));
    for order in [[&nobody, &one], [&one, &nobody]] {
        let revocations = lists(&order.map(String::as_str));
        let profile = Profile { revocations: revocations.clone(), ..Profile::default() };
        let ours = credential_with(&both, API, profile);
        assert!(is_revoked(&ours, &of_old, false));
        assert!(!is_revoked(&ours, &of_new, false), "the old root can't revoke what the new one issued");
        assert!(revocations.current().iter().all(|list| ours.knows_signer(list)));
    }
    // A stranger of the same name revokes nobody, and is found out.
    let ours = ours(&new, &lists(&[&one]));
    assert!(!is_revoked(&ours, &of_new, true));
    let known = read(one.as_bytes()).unwrap();
    assert!(!ours.knows_signer(&known[0]) && ours.knows_signer(&read(nobody.as_bytes()).unwrap()[0]));
}

#[test]
fn a_list_that_is_out_of_date_is_enforced_all_the_same() {
    let authority = authority();
    let bad = authority.issue(&id(WEB), HOUR).unwrap();
    let past = time::OffsetDateTime::now_utc() - time::Duration::DAY;
    let list = authority.revocation_list(&[&bad.chain_pem], past);
    let read = read(list.as_bytes()).unwrap();
    let now = SystemTime::now();
    assert!(read[0].is_expired(now) && !read[0].is_expired(now - 48 * HOUR));
    assert_eq!(read[0].issuer, "O=cluster.local");
    assert!(is_revoked(&ours(&authority, &lists(&[&list])), &bad, false));
}

#[test]
fn lists_that_come_into_force_later_are_asked_about_peers_that_are_there() {
    let authority = authority();
    let (bad, good) = (authority.issue(&id(WEB), HOUR).unwrap(), authority.issue(&id(WEB), HOUR).unwrap());
    let revocations = Arc::<Revocations>::default();
    let ours = ours(&authority, &revocations);
    let put = |pem: &str| revocations.replace(read(pem.as_bytes()).unwrap());
    for dialling in [true, false] {
        put("");
        let met = |issued| meet(&ours, issued, dialling).0.unwrap().peer;
        let (revoked, kept) = (met(&bad), met(&good));
        assert!(!revoked.is_revoked_since() && !revoked.is_revoked(&revocations.current()));
        put(&authority.revoke(&[&bad.chain_pem]));
        assert!(revoked.is_revoked_since() && revoked.is_revoked(&revocations.current()));
        assert!(!kept.is_revoked_since() && !kept.is_revoked(&revocations.current()));
        // A stranger's list names it as well, which is why it is looked at at all; but that doesn't count.
        put(&Authority::new("cluster.local").unwrap().revoke(&[&bad.chain_pem]));
        assert!(revocations.current().may_revoke(&revoked.chain) && !revoked.is_revoked_since());
        assert!(revoked.key() == revoked.clone().key() && revoked.key() != kept.key());
    }
    put("");
    assert!(!ours.is_revoked(&revocations.current()));
    put(&authority.revoke(&[&ours.chain()[0].pem]));
    assert!(ours.is_revoked(&revocations.current()), "our own can be on a list too");
}

#[test]
fn a_list_that_comes_during_the_handshake_is_not_missed() {
    let authority = authority();
    let bad = authority.issue(&id(WEB), HOUR).unwrap();
    let revocations = lists(&[]);
    let ours = ours(&authority, &revocations);
    // Begun under the old lists; the new ones come before the peer shows its certificate, and after it did.
    let early = Handshake::server(&ours).unwrap();
    let late = meet(&ours, &bad, false).0.unwrap();
    revocations.replace(read(authority.revoke(&[&bad.chain_pem]).as_bytes()).unwrap());
    let mut refused = None;
    seeded(|rng| refused = shake(early, &mut Peer::new(bad.clone()).client(), rng).0.err());
    assert_eq!(refused, Some(HandshakeError::Certificate(CertificateError::Revoked)));
    assert!(late.peer.is_revoked_since());
}

#[test]
fn files_of_all_shapes_are_read_and_what_is_wrong_is_named_with_its_place() {
    let (one, two) = (authority(), Authority::new("elsewhere").unwrap());
    let (first, second) = (one.revoke(&[]), two.revoke(&[one.root_pem()]));
    let count = |bytes: &[u8]| read(bytes).map(|lists| lists.len()).map_err(|error| error.to_string());
    assert_eq!(count(b""), Ok(0));
    assert_eq!(count(b" \n\r\n"), Ok(0));
    assert_eq!(count(first.as_bytes()), Ok(1));
    assert_eq!(count(format!("# of today\n{first}\n# and\r\n{second}").as_bytes()), Ok(2));
    let der = pem::parse(&first).unwrap().into_contents();
    assert_eq!(count(&der), Ok(1));

    let said = |bytes: &[u8]| count(bytes).unwrap_err();
    assert!(said(&der[..der.len() - 1]).starts_with("list 1: "));
    assert!(said(&[&der[..], b"\n"].concat()).starts_with("list 1: "));
    assert!(said(b"nothing of the kind").starts_with("list 1: "));
    assert_eq!(said(format!("{first}{}", one.root_pem()).as_bytes()), "block 2 isn't an X509 CRL");
    let unknown = "-----BEGIN THING-----\nAAAA\n-----END THING-----\n";
    assert_eq!(said(format!("{first}{unknown}").as_bytes()), "block 2 isn't an X509 CRL");
    let broken = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";
    assert!(said(format!("{first}{second}{broken}").as_bytes()).starts_with("list 3: "));
    let cut = &second[..second.len() - 40];
    assert!(said(format!("{first}{cut}").as_bytes()).starts_with("it isn't PEM: "), "a file half written");
    let many = broken.repeat(REVOCATION_LISTS + 1);
    assert_eq!(said(many.as_bytes()), format!("it holds more than {REVOCATION_LISTS} lists"));
}

fn template() -> Vec<u8> {
    let authority = authority();
    let leaf = authority.issue(&id(WEB), HOUR).unwrap();
    pem::parse(authority.revoke(&[&leaf.chain_pem])).unwrap().into_contents()
}

proptest! {
    #[test]
    fn fuzz_revocation_lists_survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        fuzz_revocation_lists(&data);
    }

    #[test]
    fn fuzz_revocation_lists_survives_nearly_right_lists(
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<proptest::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut der = template();
        let at = at.index(der.len());
        der[at] = byte;
        if cuts {
            der.truncate(cut.index(der.len()));
        }
        fuzz_revocation_lists(&der);
        let pem = pem::encode(&pem::Pem::new("X509 CRL", der));
        fuzz_revocation_lists(pem.as_bytes());
    }
}
