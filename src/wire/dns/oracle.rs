//! Our reading and writing of messages against hickory-proto's: where both understand a message, they must agree.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as Asked};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use proptest::collection::vec;
use proptest::prelude::*;

use super::answer::Owned;
use super::*;
use crate::base::limits::DNS_CACHED_MOST_S;

fn names() -> impl Strategy<Value = Name> {
    // Few letters, so that names are compressed; any byte now and then.
    let byte = prop_oneof![20 => b'a'..=b'c', 2 => b'A'..=b'C', 1 => any::<u8>()];
    vec(vec(byte, 1..8), 0..6).prop_map(|labels| Name::from_labels(labels).unwrap())
}

fn kinds() -> impl Strategy<Value = RecordType> {
    let usual = [RecordType::A, RecordType::AAAA, RecordType::TXT, RecordType::SRV, RecordType::SOA];
    prop_oneof![proptest::sample::select(usual.to_vec()), (256_u16..).prop_map(RecordType::from)]
}

fn edns() -> impl Strategy<Value = Option<Edns>> {
    proptest::option::of((512_u16.., any::<bool>()).prop_map(|(payload, dnssec_ok)| {
        let mut edns = Edns::new();
        edns.set_max_payload(payload).set_version(0).set_dnssec_ok(dnssec_ok);
        edns
    }))
}

fn records() -> impl Strategy<Value = Record> {
    let data = prop_oneof![
        any::<[u8; 4]>().prop_map(|octets| RData::A(A(octets.into()))),
        any::<[u8; 16]>().prop_map(|octets| RData::AAAA(AAAA(octets.into()))),
        names().prop_map(|name| RData::CNAME(CNAME(name))),
    ];
    (names(), 0_u32..100_000, data).prop_map(|(name, ttl, data)| Record::from_rdata(name, ttl, data))
}

/// A message as hickory writes it, and then perhaps with a few other bytes.
fn messages(kind: MessageType) -> impl Strategy<Value = Vec<u8>> {
    let parts = (any::<u16>(), any::<bool>(), names(), kinds(), edns(), vec(records(), 0..6));
    let spoilt = vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4);
    (parts, spoilt).prop_map(move |((id, recursion, name, asked, edns, answers), spoilt)| {
        let mut message = Message::new(id, kind, OpCode::Query);
        message.metadata.recursion_desired = recursion;
        message.add_query(Asked::query(name, asked));
        if kind == MessageType::Response {
            message.add_answers(answers);
        }
        if let Some(edns) = edns {
            message.set_edns(edns);
        }
        let mut bytes = message.to_vec().unwrap();
        for (at, byte) in spoilt {
            *at.get_mut(&mut bytes) = byte;
        }
        bytes
    })
}

/// The host that a name is to us.
fn host(name: &Name) -> Option<String> {
    let labels: Vec<_> = name.iter().map(<[u8]>::to_ascii_lowercase).collect();
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
    let is_host = labels.iter().flatten().all(is_plain);
    is_host.then(|| labels.iter().map(|label| String::from_utf8_lossy(label)).collect::<Vec<_>>().join("."))
}

proptest! {
    #[test]
    fn a_query_is_read_as_hickory_reads_it(message in messages(MessageType::Query)) {
        let (Ok(ours), Ok(theirs)) = (Query::parse(&message), Message::from_vec(&message)) else { return Ok(()) };
        prop_assert_eq!(ours.header.id, theirs.metadata.id);
        prop_assert_eq!(ours.header.opcode(), u16::from(u8::from(theirs.metadata.op_code)));
        if ours.header.opcode() != 0 {
            return Ok(());
        }
        let asked = theirs.queries.first();
        prop_assert_eq!(ours.question.is_some(), asked.is_some());
        if let (Some(question), Some(asked)) = (&ours.question, asked) {
            prop_assert_eq!(question.host.as_deref().map(str::to_owned), host(&asked.name));
            prop_assert_eq!((question.kind, question.class), (asked.query_type.into(), asked.query_class.into()));
        }
        if let (Some(ours), Some(theirs)) = (ours.edns, &theirs.edns) {
            prop_assert_eq!(ours.payload_bytes.max(512), theirs.max_payload());
            prop_assert_eq!((ours.version, ours.dnssec_ok), (theirs.version(), theirs.flags().dnssec_ok));
        }
    }

    #[test]
    fn whatever_hickory_asks_is_a_query(name in names(), kind in kinds(), edns in edns()) {
        let mut message = Message::query();
        message.add_query(Asked::query(name.clone(), kind));
        let told = edns.as_ref().map(Edns::max_payload);
        if let Some(edns) = edns {
            message.set_edns(edns);
        }
        let ours = Query::parse(&message.to_vec().unwrap()).unwrap();
        prop_assert_eq!(ours.edns.map(|edns| edns.payload_bytes), told);
        prop_assert!(ours.is_plain);
        prop_assert_eq!(ours.question.unwrap().host.map(String::from), host(&name));
    }

    #[test]
    fn a_replys_addresses_and_lifetime_are_what_hickory_finds(message in messages(MessageType::Response)) {
        let Ok(theirs) = Message::from_vec(&message) else { return Ok(()) };
        if theirs.queries.len() != 1 || question_of(&message).is_none() {
            return Ok(());
        }
        let address = |record: &Record| record.data.ip_addr();
        let in_class = theirs.answers.iter().filter(|record| record.dns_class == DNSClass::IN);
        prop_assert_eq!(reply::addresses(&message), in_class.filter_map(address).collect::<Vec<_>>());
        if let Some(keeping) = reply::keeping(&message)
            && !theirs.answers.is_empty()
        {
            let least = theirs.answers.iter().map(|record| record.ttl).min().unwrap();
            prop_assert_eq!(keeping.lifetime_s, least.min(DNS_CACHED_MOST_S));
        }
    }

    #[test]
    fn hickory_reads_what_we_answer(
        id in any::<u16>(),
        labels in vec("[a-z0-9-]{1,12}", 1..6),
        alias in proptest::option::of("[a-z]{1,20}(\\.[a-z]{1,20}){0,4}"),
        ips in vec(any::<IpAddr>(), 0..40),
        limit in 200_usize..4_000,
    ) {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.add_query(Asked::query(Name::from_labels(labels.iter().map(String::as_bytes)).unwrap(), RecordType::A));
        let bytes = message.to_vec().unwrap();
        let (query, mut out) = (Query::parse(&bytes).unwrap(), Vec::new());
        let owned = Owned { alias: alias.as_deref(), addresses: &ips };
        answer::write(&bytes, &query, owned, limit, &mut out);
        let theirs = Message::from_vec(&out).unwrap();
        prop_assert_eq!((theirs.metadata.id, theirs.metadata.message_type), (id, MessageType::Response));
        prop_assert!(theirs.metadata.authoritative && theirs.metadata.recursion_available);
        prop_assert_eq!(&theirs.queries, &message.queries);
        let mut owner = message.queries[0].name.clone();
        let mut answers = theirs.answers.iter().peekable();
        if let Some(RData::CNAME(CNAME(target))) = answers.peek().map(|record| &record.data) {
            prop_assert_eq!(&answers.next().unwrap().name, &owner);
            prop_assert_eq!(host(target), alias);
            owner = target.clone();
        }
        let mut count = 0;
        for (record, ip) in answers.zip(&ips) {
            prop_assert_eq!(&record.name, &owner);
            let ours = match ip {
                IpAddr::V4(ip) => RData::A(A(*ip)),
                IpAddr::V6(ip) => RData::AAAA(AAAA(*ip)),
            };
            prop_assert_eq!(&record.data, &ours);
            count += 1;
        }
        prop_assert_eq!(theirs.metadata.truncation, count < ips.len());
    }
}
