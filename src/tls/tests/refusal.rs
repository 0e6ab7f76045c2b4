//! Every way a handshake is refused: what we say, whose fault it is, and which alert the peer sees.

use proptest::prelude::*;
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use rustls::{AlertDescription, CertificateError, Connection};

use super::handshake::up_to_last_flight;
use super::peers::*;
use crate::base::fault::Whose;
use crate::tls::aead::Library;
use crate::tls::cert::{Authority, Issued};
use crate::tls::config::{Exchange, Profile};
use crate::tls::handshake::{Handshake, HandshakeError};
use crate::tls::keyschedule::{Armed, Direction, Suite};
use crate::tls::record::RecordError;

/// Our side dials, or accepts, a peer that presents `issued`; our error and the alert that the peer saw.
fn refused(ours: &Issued, dialling: Option<&[&str]>, peer: &Peer) -> (HandshakeError, AlertDescription) {
    let ours = credential(ours, API, Library::AwsLc);
    let (handshake, mut theirs) = match dialling {
        Some(expected) => (Handshake::client(&ours, expect(expected)).unwrap(), peer.server()),
        None => (Handshake::server(&ours).unwrap(), peer.client()),
    };
    let mut outcome = None;
    seeded(|rng| {
        let (done, theirs) = shake(handshake, &mut theirs, rng);
        outcome = Some((done.err().expect("a handshake that must fail"), theirs));
    });
    match outcome {
        Some((ours, Some(rustls::Error::AlertReceived(alert)))) => (ours, alert),
        other => panic!("no alert reached the peer: {other:?}"),
    }
}

#[test]
fn a_server_of_another_name_is_refused_in_the_words_of_the_reference() {
    let authority = authority();
    let ours = authority.issue(&id(API), HOUR).unwrap();
    let peer = Peer::new(authority.issue(&id(WEB), HOUR).unwrap());
    let other = "spiffe://cluster.local/ns/default/sa/other";
    let (error, alert) = refused(&ours, Some(&[API, other]), &peer);
    assert_eq!(
        error.to_string(),
        format!(
            "identity verification error: peer did not present the expected SAN ({API},{other}), got {WEB}"
        )
    );
    assert_eq!(alert, AlertDescription::CertificateUnknown);
    assert_eq!(error.whose(), Whose::Peer);
    let (error, _) = refused(&ours, Some(&[]), &peer);
    assert!(error.to_string().contains("the expected SAN (), got spiffe://"), "{error}");
}

#[test]
fn a_client_of_another_trust_domain_is_refused_in_the_words_of_the_reference() {
    let authority = authority();
    let ours = authority.issue(&id(API), HOUR).unwrap();
    let far = "spiffe://far.away/ns/default/sa/web";
    let peer = Peer::new(authority.issue(&id(far), HOUR).unwrap());
    let (error, alert) = refused(&ours, None, &peer);
    let said =
        "identity verification error: peer did not present the expected trustdomain (cluster.local), got ";
    assert_eq!(error.to_string(), format!("{said}{far}"));
    assert_eq!(alert, AlertDescription::CertificateUnknown);
}

#[test]
fn certificates_that_are_out_of_time_of_another_root_or_for_another_use_are_refused() {
    let authority = authority();
    let ours = authority.issue(&id(API), HOUR).unwrap();
    let now = time::OffsetDateTime::now_utc();
    let day = time::Duration::DAY;
    let both = [ServerAuth, ClientAuth];
    let expired = authority.sign(&id(WEB), (now - 2 * day, now - day), &both).unwrap();
    let not_yet = authority.sign(&id(WEB), (now + day, now + 2 * day), &both).unwrap();
    let stranger = Authority::new("elsewhere").unwrap().issue(&id(WEB), HOUR).unwrap();
    let impostor = Authority::new("cluster.local").unwrap().issue(&id(WEB), HOUR).unwrap();
    for dialling in [Some(&[WEB][..]), None] {
        let (error, alert) = refused(&ours, dialling, &Peer::new(expired.clone()));
        assert!(
            matches!(error, HandshakeError::Certificate(CertificateError::ExpiredContext { .. })),
            "{error}"
        );
        assert_eq!(alert, AlertDescription::CertificateExpired);
        let (error, _) = refused(&ours, dialling, &Peer::new(not_yet.clone()));
        assert!(
            matches!(error, HandshakeError::Certificate(CertificateError::NotValidYetContext { .. })),
            "{error}"
        );
        let (error, alert) = refused(&ours, dialling, &peer_trusting(&authority, &stranger));
        assert_eq!(error, HandshakeError::Certificate(CertificateError::UnknownIssuer));
        assert_eq!(error.to_string(), "invalid peer certificate: UnknownIssuer");
        assert_eq!(alert, AlertDescription::UnknownCA);
        let (error, _) = refused(&ours, dialling, &peer_trusting(&authority, &impostor));
        assert_eq!(
            error,
            HandshakeError::Certificate(CertificateError::BadSignature),
            "same name, other key"
        );
        let wrong = if dialling.is_some() { ClientAuth } else { ServerAuth };
        let misused = authority.sign(&id(WEB), (now - day, now + day), &[wrong]).unwrap();
        let (error, _) = refused(&ours, dialling, &Peer::new(misused));
        assert_eq!(error, HandshakeError::Certificate(CertificateError::InvalidPurpose));
    }
}

/// A server that would accept our side, so that only our judgement counts.
fn peer_trusting(authority: &Authority, issued: &Issued) -> Peer {
    Peer { client_roots: Some(authority.root_pem().to_owned()), ..Peer::new(issued.clone()) }
}

#[test]
fn a_client_without_certificate_is_refused() {
    let authority = authority();
    let ours = authority.issue(&id(API), HOUR).unwrap();
    let peer = Peer { issued: None, ..Peer::new(ours.clone()) };
    let (error, alert) = refused(&ours, None, &peer);
    assert_eq!(error, HandshakeError::NoCertificate);
    assert_eq!(alert, AlertDescription::CertificateRequired);
}

#[test]
fn without_h2_there_is_no_connection() {
    let authority = authority();
    let ours = authority.issue(&id(API), HOUR).unwrap();
    for dialling in [Some(&[WEB][..]), None] {
        let silent = Peer { alpn: Vec::new(), ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
        let (error, alert) = refused(&ours, dialling, &silent);
        assert_eq!(error, HandshakeError::NotH2(None));
        assert_eq!(error.to_string(), "the peer doesn't speak h2 (ALPN absent)");
        assert_eq!(alert, AlertDescription::NoApplicationProtocol);
    }
    let old =
        Peer { alpn: vec![b"http/1.1".to_vec()], ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
    let (_, alert) = refused(&ours, None, &old);
    assert_eq!(alert, AlertDescription::NoApplicationProtocol);
    // Here the peer is the one to refuse.
    let ours = credential(&ours, API, Library::Ring);
    let dialled = Handshake::client(&ours, expect(&[WEB])).unwrap();
    seeded(|rng| {
        let (done, _) = shake(dialled, &mut old.server(), rng);
        assert_eq!(done.err(), Some(HandshakeError::Alert(AlertDescription::NoApplicationProtocol)));
    });
}

#[test]
fn peers_without_a_common_group_are_refused() {
    let authority = authority();
    let profile = Profile { exchange: Exchange::PostQuantumOnly, ..Profile::default() };
    let ours = authority.credential(&id(API), HOUR, profile).unwrap();
    let classical = Peer { x25519_only: true, ..Peer::new(authority.issue(&id(WEB), HOUR).unwrap()) };
    seeded(|rng| {
        let (done, alert) = shake(Handshake::server(&ours).unwrap(), &mut classical.client(), rng);
        assert!(matches!(done.err(), Some(HandshakeError::Protocol(_))));
        assert_eq!(alert, Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)));
    });
}

#[test]
fn a_client_that_knows_tls12_only_gets_protocol_version() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    // A ClientHello as TLS 1.2 has it: version, random, no session, one suite, no compression, no extensions.
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x30, 1, 0]);
    let length = u8::try_from(body.len()).unwrap();
    let mut hello = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    hello.extend(body);
    let mut alert = Vec::new();
    let error = Handshake::server(&ours).unwrap().advance(&mut hello, &mut alert).err().unwrap();
    assert!(matches!(error, HandshakeError::Protocol(rustls::Error::PeerIncompatible(_))), "{error}");
    assert_eq!(alert[..5], [21, 3, 3, 0, 2]);
    assert!(
        [40, 70, 109].contains(&alert[6]),
        "handshake_failure, protocol_version, missing_extension: {alert:?}"
    );
}

#[test]
fn what_is_no_tls_is_refused_at_once() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    for text in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n"]
    {
        let mut handshake = Handshake::server(&ours).unwrap();
        let error = handshake.advance(&mut text.to_vec(), &mut Vec::new()).err();
        assert!(matches!(error, Some(HandshakeError::Protocol(_))), "{error:?}");
        let again = handshake.advance(&mut Vec::new(), &mut Vec::new()).err();
        assert!(matches!(again, Some(HandshakeError::Keys(_))), "a failed handshake stays failed: {again:?}");
    }
}

#[test]
fn an_endless_handshake_ends() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    let mut handshake = Handshake::server(&ours).unwrap();
    // A hello that announces 65,535 bytes and sends them one in a record.
    let mut bytes = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xff];
    for _ in 0..60_000 {
        bytes.extend([22, 3, 1, 0, 1, 0]);
    }
    let error = handshake.advance(&mut bytes, &mut Vec::new()).err();
    assert_eq!(error, Some(HandshakeError::TooLong));
}

#[test]
fn a_server_that_refuses_us_is_heard_after_the_switch() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    let mut peer = Peer::new(authority.issue(&id(WEB), HOUR).unwrap());
    peer.client_roots = Some(Authority::new("elsewhere").unwrap().root_pem().to_owned());
    let mut theirs = peer.server();
    seeded(|rng| {
        let (done, error) = shake(Handshake::client(&ours, expect(&[WEB])).unwrap(), &mut theirs, rng);
        assert!(matches!(error, Some(rustls::Error::InvalidCertificate(_))));
        let mut done = done.unwrap();
        let error = done.ours.open.open(&mut done.tail).unwrap_err();
        assert_eq!(error, RecordError::Alert(48));
        assert_eq!(error.to_string(), "received fatal alert: UnknownCA");
        assert_eq!(error.alert(), None);
    });
}

/// Opens the client's last flight with its handshake secret, puts `more` behind the Finished, and seals all of it
/// again as one record.
fn reseal(secret: &[u8], flight: &[u8], more: &[u8]) -> Vec<u8> {
    let direction = Direction::new(Suite::Aes256GcmSha384, secret, 0).unwrap();
    let mut read = Armed::new(direction.clone(), Library::Ring).unwrap();
    let (mut rest, mut messages) = (flight.to_vec(), Vec::new());
    while let Some(header) = rest.first_chunk::<5>().copied() {
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let mut body = rest[5..5 + length].to_vec();
        rest.drain(..5 + length);
        if header[0] == 23 {
            let opened = read.key.open(read.nonce(), &header, &mut body).unwrap();
            read.direction.sequence += 1;
            assert_eq!(body[opened - 1], 22);
            messages.extend(&body[..opened - 1]);
        }
    }
    messages.extend(more);
    messages.push(22);
    let write = Armed::new(direction, Library::Ring).unwrap();
    let [high, low] = u16::try_from(messages.len() + 16).unwrap().to_be_bytes();
    let header = [23, 3, 3, high, low];
    let tag = write.key.seal(write.nonce(), &header, &mut messages).unwrap();
    [&header[..], &messages, &tag].concat()
}

#[test]
fn a_message_that_is_split_across_the_switch_is_refused() {
    let authority = authority();
    let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
    let peer = Peer::new(authority.issue(&id(WEB), HOUR).unwrap());
    for (more, accepted) in [(&[][..], true), (&[24][..], false), (&[24, 0, 0, 1, 0][..], false)] {
        let (mut theirs, secret) = peer.client_with_secret();
        let (mut handshake, flight) = up_to_last_flight(&ours, &mut theirs, |_: &mut Connection| {});
        let mut resealed = reseal(&secret(), &flight, more);
        let outcome = handshake.advance(&mut resealed, &mut Vec::new());
        assert_eq!(outcome.is_ok(), accepted, "{more:?}");
    }
}

proptest! {
    #[test]
    fn bytes_from_nowhere_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), head in 0..4_usize) {
        // Half of them look like records for a while.
        let heads: [&[u8]; 4] = [&[], &[22, 3, 1], &[22, 3, 1, 0, 40, 1, 0, 0, 36, 3, 3], &[23, 3, 3, 0, 30]];
        let authority = authority();
        let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
        let bytes = [heads[head], &bytes].concat();
        let _ = Handshake::server(&ours).unwrap().advance(&mut bytes.clone(), &mut Vec::new());
        let _ = Handshake::client(&ours, expect(&[WEB])).unwrap().advance(&mut bytes.clone(), &mut Vec::new());
    }

    #[test]
    fn a_flipped_bit_anywhere_in_the_last_flight_is_refused(at in any::<proptest::sample::Index>(), bit in 0..8) {
        let authority = authority();
        let ours = authority.credential(&id(API), HOUR, Profile::default()).unwrap();
        let mut theirs = Peer::new(authority.issue(&id(WEB), HOUR).unwrap()).client();
        let (mut handshake, mut flight) = up_to_last_flight(&ours, &mut theirs, |_: &mut Connection| {});
        // Not authenticated by rustls: the dummy change_cipher_spec (6 bytes), and the outer type and version in
        // the headers, for which it puts in the values that they must have.
        let mut authentic = Vec::new();
        let mut record = 6;
        while record < flight.len() {
            let length = usize::from(u16::from_be_bytes([flight[record + 3], flight[record + 4]]));
            authentic.extend(record + 3..record + 5 + length);
            record += 5 + length;
        }
        let at = authentic[at.index(authentic.len())];
        flight[at] ^= 1_u8 << bit;
        let outcome = handshake.advance(&mut flight, &mut Vec::new());
        prop_assert!(!matches!(outcome, Ok(crate::tls::handshake::Progress::Done(_))));
    }
}
