//! The mesh's root is replaced: leaves of the old and of the new root meet while the bundles hold both, and no longer
//! once one is gone. Both roots have the same subject, as a renewed one has.

use super::peers::*;
use crate::tls::aead::Library;
use crate::tls::cert::Authority;
use crate::tls::handshake::Handshake;

/// Whether a node with a leaf of `own` and this bundle takes a peer with a leaf of `other`, in either role.
fn takes(own: &Authority, bundle: &[&Authority], other: &Authority, dialling: bool) -> bool {
    let mut issued = own.issue(&id(API), HOUR).unwrap();
    issued.roots_pem = bundle.iter().map(|root| root.root_pem()).collect();
    let ours = credential(&issued, API, Library::AwsLc);
    let mut peer = Peer::new(other.issue(&id(WEB), HOUR).unwrap());
    peer.client_roots = Some(own.root_pem().to_owned());
    let mut taken = false;
    seeded(|rng| {
        let (handshake, mut theirs) = if dialling {
            (Handshake::client(&ours, expect(&[WEB])).unwrap(), peer.server())
        } else {
            (Handshake::server(&ours).unwrap(), peer.client())
        };
        taken = shake(handshake, &mut theirs, rng).0.is_ok();
    });
    taken
}

#[test]
fn old_and_new_leaves_meet_while_the_bundles_overlap() {
    let (old, new) = (authority(), authority());
    for dialling in [true, false] {
        assert!(!takes(&old, &[&old], &new, dialling), "before: the new root is a stranger");
        for (own, other) in [(&old, &new), (&new, &old), (&new, &new), (&old, &old)] {
            assert!(takes(own, &[&old, &new], other, dialling), "while both are there");
            assert!(takes(own, &[&new, &old], other, dialling), "in any order");
        }
        assert!(!takes(&new, &[&new], &old, dialling), "after: the old root is a stranger");
    }
}
