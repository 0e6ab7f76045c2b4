//! Whose names a peer may carry: aliases of the trust domain, and leaves with several names.

use super::peers::*;
use crate::mesh::identity::{Identity, TrustDomains};
use crate::tls::cert::{Authority, Issued};
use crate::tls::config::Profile;
use crate::tls::handshake::{Handshake, HandshakeError};
use rcgen::{Issuer, KeyPair};
use rustls::CertificateError;

const OLD_WEB: &str = "spiffe://old.mesh/ns/default/sa/web";
const FAR_WEB: &str = "spiffe://far.away/ns/default/sa/web";
const OTHER: &str = "spiffe://cluster.local/ns/default/sa/other";

/// Who a peer with this leaf is taken for: `dialling` says whom we expect, none that we accept.
fn taken(
    authority: &Authority,
    aliases: &str,
    issued: Issued,
    dialling: Option<&[&str]>,
) -> Result<Option<Identity>, HandshakeError> {
    let domains = TrustDomains::parse("cluster.local", aliases).unwrap();
    let profile = Profile { domains, ..Profile::default() };
    let ours = credential_with(&authority.issue(&id(API), HOUR).unwrap(), API, profile);
    let mut peer = Peer::new(issued);
    peer.client_roots = Some(authority.root_pem().to_owned());
    let (handshake, mut theirs) = match dialling {
        Some(expected) => (Handshake::client(&ours, expect(expected)).unwrap(), peer.server()),
        None => (Handshake::server(&ours).unwrap(), peer.client()),
    };
    let mut outcome = None;
    seeded(|rng| outcome = Some(shake(handshake, &mut theirs, rng).0));
    outcome.unwrap().map(|done| done.ours.peer.identity)
}

#[test]
fn aliases_of_the_trust_domain_are_believed_in_either_role() {
    let authority = authority();
    let leaf = |uri| authority.issue(&id(uri), HOUR).unwrap();
    let aliases = "old.mesh,older.mesh";
    assert_eq!(taken(&authority, aliases, leaf(OLD_WEB), None), Ok(Some(id(OLD_WEB))), "as it names itself");
    assert_eq!(taken(&authority, aliases, leaf(OLD_WEB), Some(&[WEB])), Ok(Some(id(OLD_WEB))));
    assert_eq!(taken(&authority, aliases, leaf(WEB), Some(&[OLD_WEB])), Ok(Some(id(WEB))));
    let error = taken(&authority, aliases, leaf(FAR_WEB), None).unwrap_err().to_string();
    let said = "peer did not present the expected trustdomain (cluster.local,old.mesh,older.mesh), got ";
    assert!(error.ends_with(&format!("{said}{FAR_WEB}")), "{error}");
    // Another account stays another one, and a stranger's domain has no aliases.
    assert!(taken(&authority, aliases, leaf(OLD_WEB), Some(&[OTHER])).is_err());
    assert!(taken(&authority, aliases, leaf(WEB), Some(&[FAR_WEB])).is_err());
    assert_eq!(taken(&authority, aliases, leaf(FAR_WEB), Some(&[FAR_WEB])), Ok(Some(id(FAR_WEB))));
    // Without aliases none is.
    assert!(taken(&authority, "", leaf(OLD_WEB), None).is_err());
    assert!(taken(&authority, "", leaf(OLD_WEB), Some(&[WEB])).is_err());
}

#[test]
fn a_leaf_of_several_identities_is_believed_as_none_of_them() {
    let authority = authority();
    for dialling in [Some(&[WEB][..]), None] {
        for names in [[WEB, OTHER], [OTHER, WEB], [FAR_WEB, WEB], [WEB, OLD_WEB]] {
            let error = taken(&authority, "", authority.issue_named(&names), dialling).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "identity verification error: peer presented more than one identity ({}), so none of them is \
                     believed",
                    names.join(",")
                )
            );
        }
        // Other names beside the one identity do no harm, and neither does its second spelling.
        let beside = ["https://example.com/x", "spiffe://cluster.local/ns/a", WEB, WEB];
        assert_eq!(taken(&authority, "", authority.issue_named(&beside), dialling), Ok(Some(id(WEB))));
        let aliased = taken(&authority, "old.mesh", authority.issue_named(&[OLD_WEB, WEB]), dialling);
        assert_eq!(aliased, Ok(Some(id(OLD_WEB))));
        let nobody = taken(&authority, "", authority.issue_named(&["spiffe://cluster.local/x"]), dialling);
        assert!(matches!(nobody, Err(HandshakeError::Identity(_))), "{nobody:?}");
    }
}

#[test]
fn a_chain_holds_only_through_authorities_that_are_in_force() {
    let authority = authority();
    let yesterday = time::OffsetDateTime::now_utc() - time::Duration::DAY;
    let (ended, deep) = (authority.intermediate_until(yesterday), authority.intermediate());
    // What is signed by a leaf, by an authority that may sign leaves only, and without the intermediate's certificate.
    let leaf = authority.issue(&id(WEB), HOUR).unwrap();
    let key = KeyPair::from_pem(&leaf.key_pem).unwrap();
    let no_authority = Authority {
        issuer: Issuer::from_ca_cert_pem(&leaf.chain_pem, key).unwrap(),
        root_pem: leaf.chain_pem,
    };
    let too_deep = deep.intermediate();
    let mut through_two = authority.issue_below(&too_deep, &id(WEB));
    through_two.chain_pem.push_str(deep.root_pem());
    let mut gap = authority.issue_below(&deep, &id(WEB));
    gap.chain_pem.truncate(gap.chain_pem.len() - deep.root_pem().len());
    for dialling in [Some(&[WEB][..]), None] {
        let refused = |issued| match taken(&authority, "", issued, dialling) {
            Err(HandshakeError::Certificate(error)) => error,
            other => panic!("not refused for its chain: {other:?}"),
        };
        let expired = refused(authority.issue_below(&ended, &id(WEB)));
        assert!(matches!(expired, CertificateError::ExpiredContext { .. }), "{expired:?}");
        refused(authority.issue_below(&no_authority, &id(WEB)));
        refused(through_two.clone());
        assert_eq!(refused(gap.clone()), CertificateError::UnknownIssuer);
        assert!(taken(&authority, "", authority.issue_below(&deep, &id(WEB)), dialling).is_ok());
    }
}
