//! Messages byte by byte: what is read of queries and replies, what answers look like, and what no message may do.

use std::net::IpAddr;

use proptest::prelude::*;

use super::answer::Owned;
use super::*;

fn name(host: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for label in host.split('.').filter(|label| !label.is_empty()) {
        out.push(u8::try_from(label.len()).unwrap());
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

/// A query with RD and id 0x1234, and EDNS where a payload is given.
fn query(host: &str, kind: u16, payload: Option<u16>) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(payload.is_some())];
    message.extend(name(host));
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    if let Some(payload) = payload {
        message.extend([0, 0, 41]);
        message.extend(payload.to_be_bytes());
        message.extend([0, 0, 0x80, 0, 0, 0]);
    }
    message
}

fn answered(message: &[u8], owned: Owned<'_>, limit: usize) -> Vec<u8> {
    let mut out = b"before".to_vec();
    answer::write(message, &Query::parse(message).unwrap(), owned, limit, &mut out);
    assert!(out.starts_with(b"before"));
    out.split_off(6)
}

fn ips(count: u8) -> Vec<IpAddr> {
    (0..count).map(|last| IpAddr::from([240, 0, 0, last])).collect()
}

fn record(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = owner.to_vec();
    record.extend(kind.to_be_bytes());
    record.extend([0, 1]);
    record.extend(ttl.to_be_bytes());
    record.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    record.extend_from_slice(data);
    record
}

/// A reply to `query("a.b", A, None)` with these flags and sections.
fn reply(flags: u16, answers: &[Vec<u8>], authorities: &[Vec<u8>], additionals: &[Vec<u8>]) -> Vec<u8> {
    let mut message = query("a.b", 1, None);
    message[2..4].copy_from_slice(&(flags | 0x8180).to_be_bytes());
    for (at, section) in [(7, answers), (9, authorities), (11, additionals)] {
        message[at] = u8::try_from(section.len()).unwrap();
        message.extend(section.concat());
    }
    message
}

fn soa(ttl: u32, minimum: u32) -> Vec<u8> {
    let data = [&name("ns"), &name("mail"), &[0; 16][..], &minimum.to_be_bytes()].concat();
    record(&name("b"), 6, ttl, &data)
}

const TO_QUESTION: &[u8] = &[0xc0, 12];

#[test]
fn a_query_is_read_with_its_edns() {
    let parsed = Query::parse(&query("WWW.Example.com", 28, Some(1_232))).unwrap();
    let question = parsed.question.clone().unwrap();
    assert_eq!((question.host.as_deref(), question.kind, question.class), (Some("www.example.com"), 28, 1));
    assert_eq!(question.family(), Some(Family::V6));
    let edns = Edns { payload_bytes: 1_232, version: 0, dnssec_ok: true, has_options: false };
    assert_eq!((parsed.edns, parsed.is_plain, parsed.datagram_bytes()), (Some(edns), true, 1_232));
    let plain = Query::parse(&query("a", 1, None)).unwrap();
    assert_eq!((plain.edns, plain.datagram_bytes()), (None, 512));
    assert_eq!(Query::parse(&query("a", 1, Some(100))).unwrap().datagram_bytes(), 512);
    assert_eq!(Query::parse(&query("", 2, None)).unwrap().question.unwrap().host.as_deref(), Some(""));
    assert_eq!(shown_name(&query("WWW.x", 1, None)), "www.x.");
    assert_eq!(shown_name(&query("", 1, None)), ".");
}

#[test]
fn what_isnt_a_query_is_told_apart() {
    let good = query("a.b", 1, None);
    assert_eq!(Query::parse(&good[..11]), Err(Unfit::Short));
    for end in 12..good.len() {
        assert_eq!(Query::parse(&good[..end]), Err(Unfit::Malformed), "{end}");
    }
    let spoilt = |at: usize, byte| {
        let mut message = good.clone();
        message[at] = byte;
        Query::parse(&message)
    };
    assert_eq!(spoilt(2, 0x81), Err(Unfit::Response(0x1234)));
    assert_eq!(spoilt(5, 2), Err(Unfit::Malformed), "two questions");
    assert_eq!(spoilt(12, 0xc0), Err(Unfit::Malformed), "a pointer to itself");
    assert_eq!(spoilt(12, 64), Err(Unfit::Malformed), "a label of 64");
    assert_eq!(spoilt(11, 9), Err(Unfit::Malformed), "records that aren't there");
    let mut twice = query("a", 1, Some(512));
    let opt = twice[twice.len() - 11..].to_vec();
    twice.extend(opt);
    twice[11] = 2;
    assert_eq!(Query::parse(&twice), Err(Unfit::Malformed), "two of EDNS");
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert!(Query::parse(&query(&long, 1, None)).is_ok());
    assert_eq!(Query::parse(&query(&format!("{long}d"), 1, None)), Err(Unfit::Malformed), "a name of 256");
    let update = spoilt(2, 0x28).unwrap();
    assert_eq!((update.header.opcode(), update.is_plain), (5, false));
    assert!(spoilt(5, 0).unwrap().question.is_none());
    let odd = Query::parse(&query("a b.c", 1, None)).unwrap();
    assert_eq!(odd.question.unwrap().host, None, "no host has this name");
    assert_eq!(shown_name(&query("a b.c", 1, None)), "a\\032b.c.");
}

#[test]
fn an_answer_says_what_the_mesh_knows() {
    let asked = query("a.b", 1, Some(4_096));
    let out = answered(&asked, Owned { alias: None, addresses: &ips(2) }, 4_096);
    let mut expected = vec![0x12, 0x34, 0x85, 0x80, 0, 1, 0, 2, 0, 0, 0, 1];
    expected.extend_from_slice(&asked[12..21]);
    expected.extend(record(TO_QUESTION, 1, 30, &[240, 0, 0, 0]));
    expected.extend(record(TO_QUESTION, 1, 30, &[240, 0, 0, 1]));
    expected.extend([0, 0, 41, 0x10, 0, 0, 0, 0x80, 0, 0, 0]);
    assert_eq!(out, expected);
    assert_eq!(reply::addresses(&out), ips(2));
    assert!(reply::answers(&out, &asked));
    let empty = answered(&query("a.b", 28, None), Owned { alias: Some("a"), addresses: &[] }, 512);
    assert_eq!(&empty[2..12], [0x85, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(empty.len(), 21);
}

#[test]
fn an_alias_comes_first_and_owns_the_addresses() {
    let asked = query("web.NS1.d", 1, None);
    let out = answered(&asked, Owned { alias: Some("web"), addresses: &ips(1) }, 512);
    let lower = name("web.ns1.d");
    let target_at = asked.len() + lower.len() + 10;
    let pointer = [0xc0, u8::try_from(target_at).unwrap()];
    let expected = [record(&lower, 5, 30, &name("web")), record(&pointer, 1, 30, &[240, 0, 0, 0])].concat();
    assert_eq!((&out[12..asked.len()], &out[asked.len()..]), (&asked[12..], &expected[..]));
    assert_eq!(out[7], 2);
}

/// The row of the reference's matrix: 256 records are 74 in a datagram of 1,232 bytes, and all of them by TCP.
#[test]
fn what_doesnt_fit_is_left_out_and_told() {
    let addresses: Vec<_> = ips(255).into_iter().chain([IpAddr::from([241, 0, 0, 0])]).collect();
    let asked = query("large.example", 1, Some(1_232));
    let owned = Owned { alias: None, addresses: &addresses };
    let datagram = answered(&asked, owned, Query::parse(&asked).unwrap().datagram_bytes());
    let header = Header::read(&datagram).unwrap();
    assert_eq!((header.counts, header.is_truncated()), ([1, 74, 0, 1], true));
    let whole = answered(&asked, owned, 65_535);
    let header = Header::read(&whole).unwrap();
    assert_eq!((header.counts, header.is_truncated()), ([1, 256, 0, 1], false));
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "D".repeat(61)].join(".");
    let out = answered(&query(&long, 1, None), Owned { alias: Some(&long[..200]), addresses: &ips(9) }, 512);
    assert!(out.len() <= 512 && Header::read(&out).unwrap().is_truncated());
}

#[test]
fn errors_carry_the_question_where_there_is_one() {
    let mut out = Vec::new();
    answer::write_error(&query("a.b", 1, Some(512)), Rcode::ServFail, &mut out);
    assert_eq!(&out[..12], [0x12, 0x34, 0x81, 0x02, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out.len(), 21);
    out.clear();
    answer::write_error(&query("a.b", 1, None)[..14], Rcode::FormErr, &mut out);
    assert_eq!(out, [0x12, 0x34, 0x81, 0x01, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn only_the_reply_to_the_very_question_is_taken() {
    let asked = query("a.b", 1, None);
    let good = reply(0, &[], &[], &[]);
    assert!(reply::answers(&good, &asked));
    let spoilt = |at: usize, byte| {
        let mut message = good.clone();
        message[at] = byte;
        reply::answers(&message, &asked)
    };
    assert!(!spoilt(0, 0x13), "another id");
    assert!(!spoilt(2, 0x01), "a query");
    assert!(!spoilt(2, 0xa9), "another opcode");
    assert!(!spoilt(13, b'x'), "another name");
    assert!(!spoilt(18, 28), "another type");
    assert!(!spoilt(20, 3), "another class");
    assert!(spoilt(13, b'A'), "the same name in other letters");
    let bare = |rcode| [0x12, 0x34, 0x80, rcode, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(reply::answers(&bare(1), &asked) && reply::answers(&bare(4), &asked));
    assert!(!reply::answers(&bare(0), &asked) && !reply::answers(&bare(3), &asked));
    let mut update = asked.clone();
    update[2] = 0x28;
    assert!(reply::answers(&[0x12, 0x34, 0xa8, 0, 0, 0, 0, 0, 0, 0, 0, 0], &update));
}

#[test]
fn replies_are_kept_as_long_as_they_say() {
    let kept = |message: &[u8]| reply::keeping(message).map(|keeping| keeping.lifetime_s);
    let a = |ttl| record(TO_QUESTION, 1, ttl, &[1, 2, 3, 4]);
    assert_eq!(kept(&reply(0, &[a(60), a(20)], &[], &[a(5)])), Some(20));
    assert_eq!(kept(&reply(0, &[a(1 << 30)], &[], &[])), Some(3_600));
    assert_eq!(kept(&reply(0, &[a(0)], &[], &[])), None);
    assert_eq!(kept(&reply(0, &[a(1 << 31)], &[], &[])), None);
    assert_eq!(kept(&reply(3, &[], &[soa(300, 40)], &[])), Some(40));
    assert_eq!(kept(&reply(0, &[], &[soa(30, 40)], &[])), Some(30));
    assert_eq!(kept(&reply(3, &[], &[], &[])), None, "no SOA, no lifetime (RFC 2308)");
    assert_eq!(kept(&reply(0, &[], &[record(&name("b"), 2, 60, &name("ns"))], &[])), None, "a referral");
    assert_eq!(kept(&reply(2, &[a(60)], &[], &[])), None, "SERVFAIL");
    assert_eq!(kept(&reply(flag::TRUNCATED, &[a(60)], &[], &[])), None);
    assert_eq!(kept(&reply(0, &[a(60)], &[], &[record(&[0], 250, 0, &[1])])), None, "signed");
    let mut short = reply(0, &[a(60)], &[], &[]);
    short.pop();
    assert_eq!(kept(&short), None);
}

#[test]
fn a_kept_reply_ages_and_edns_does_not() {
    let a = record(TO_QUESTION, 1, 60, &[1, 2, 3, 4]);
    let opt = [0, 0, 41, 2, 0, 1, 2, 3, 4, 0, 0];
    let mut message = reply(0, &[a], &[], &[opt.to_vec()]);
    let keeping = reply::keeping(&message).unwrap();
    reply::age(&mut message, &keeping.ttls_at, 25);
    let expected = reply(0, &[record(TO_QUESTION, 1, 35, &[1, 2, 3, 4])], &[], &[opt.to_vec()]);
    assert_eq!(message, expected);
    reply::age(&mut message, &keeping.ttls_at, 99);
    assert_eq!(reply::addresses(&message), [IpAddr::from([1, 2, 3, 4])]);
}

#[test]
fn a_reply_that_is_too_long_keeps_its_question() {
    let mut out = Vec::new();
    reply::cut(&reply(3, &[record(TO_QUESTION, 1, 60, &[1, 2, 3, 4])], &[], &[]), &mut out);
    assert_eq!(out, reply(3 | flag::TRUNCATED, &[], &[], &[]));
}

#[test]
fn our_own_query_reads_back() {
    let mut out = Vec::new();
    assert!(write_query("a.example.com.", Family::V6, &mut out));
    let parsed = Query::parse(&out).unwrap();
    assert_eq!(parsed.question.unwrap().host.as_deref(), Some("a.example.com"));
    assert_eq!((parsed.edns.unwrap().payload_bytes, parsed.is_plain), (1_232, true));
    let long = "a".repeat(64);
    for wrong in ["", ".", "a..b", &long, &["abc"; 64].join("."), "a b"] {
        assert!(!write_query(wrong, Family::V4, &mut Vec::new()), "{wrong}");
    }
}

proptest! {
    #[test]
    fn fuzz_dns_survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        fuzz_dns(&data);
    }

    #[test]
    fn fuzz_dns_survives_spoiling(
        host in "([a-zA-Z]{1,9}\\.){0,5}[a-z]{1,9}",
        count in 0_u8..9,
        spoilt in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in 0_usize..30,
    ) {
        let asked = query(&host, 1, Some(600));
        let mut data = vec![0];
        data.extend(answered(&asked, Owned { alias: None, addresses: &ips(count) }, 600));
        for (at, byte) in spoilt {
            let at = at.index(data.len());
            data[at] = byte;
        }
        data.truncate(data.len().saturating_sub(cut).max(1));
        fuzz_dns(&data);
        data[0] = u8::try_from(data.len() / 2).unwrap_or(255);
        fuzz_dns(&data);
    }
}
