//! HPACK against RFC 7541's examples and the library codecs, fields and tables included.

use proptest::prelude::*;

use super::super::hpack::{Corrupt, Decoder, List};
use super::super::huffman::tests::encode as huffman;
use super::super::{ConnectHead, connect_block, response_block};

type Field = (Vec<u8>, Vec<u8>);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, Corrupt> {
    let mut fields = Vec::new();
    decoder.decode(block, usize::MAX, |name, value| fields.push((name.to_vec(), value.to_vec())))?;
    Ok(fields)
}

fn fields(pairs: &[(&str, &str)]) -> Vec<Field> {
    pairs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

#[test]
fn appendix_c_3_and_4_requests_plain_and_huffman() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let packed = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, packed] {
        let mut decoder = Decoder::default();
        let get =
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
        assert_eq!(decode(&mut decoder, &hex(blocks[0])).unwrap(), fields(&get));
        assert_eq!(decoder.table_bytes(), 57);
        let mut second = fields(&get);
        second.extend(fields(&[("cache-control", "no-cache")]));
        assert_eq!(decode(&mut decoder, &hex(blocks[1])).unwrap(), second);
        assert_eq!(decoder.table_bytes(), 110);
        let third = [
            (":method", "GET"),
            (":scheme", "https"),
            (":path", "/index.html"),
            (":authority", "www.example.com"),
            ("custom-key", "custom-value"),
        ];
        assert_eq!(decode(&mut decoder, &hex(blocks[2])).unwrap(), fields(&third));
        assert_eq!(decoder.table_bytes(), 164);
    }
}

#[test]
fn appendix_c_6_answers_with_eviction() {
    let mut decoder = Decoder::default();
    decoder.limit_table(256);
    let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e \
        919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let rest = [("cache-control", "private"), date, ("location", "https://www.example.com")];
    let status = |code| fields(&[(":status", code)]).into_iter().chain(fields(&rest)).collect::<Vec<_>>();
    assert_eq!(decode(&mut decoder, &hex(first)).unwrap(), status("302"));
    assert_eq!(decoder.table_bytes(), 222);
    assert_eq!(decode(&mut decoder, &hex("4883 640e ffc1 c0bf")).unwrap(), status("307"));
    assert_eq!(decoder.table_bytes(), 222);
    let third = "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad \
        94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed \
        4ee5 b106 3d50 07";
    let expected = [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ];
    assert_eq!(decode(&mut decoder, &hex(third)).unwrap(), fields(&expected));
    assert_eq!(decoder.table_bytes(), 215);
}

#[test]
fn broken_blocks_are_named() {
    let cases: [(&[u8], Corrupt); 14] = [
        (&[0x80], Corrupt::Index { index: 0 }),
        (&[0x80 | 62], Corrupt::Index { index: 62 }),
        (&[0x7f, 0x00, 0x00], Corrupt::Index { index: 63 }),
        (&[0xff], Corrupt::Truncated),
        (&[0xff, 0x80, 0x80, 0x80, 0x80, 0x00], Corrupt::Integer),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f], Corrupt::Integer),
        (&[0x40], Corrupt::Truncated),
        (&[0x40, 0x02, b'a'], Corrupt::Truncated),
        (&[0x00, 0x01, b'a', 0x7f, 0xff, 0xff, 0x7f], Corrupt::Truncated),
        (&[0x00, 0x81, 0xff, 0x00], Corrupt::Padding),
        (&[0x3f, 0xe2, 0x1f], Corrupt::TableSize { size: 4_097, limit: 4_096 }),
        (&[0x82, 0x20], Corrupt::UpdatePlace),
        (&[0x20, 0x20, 0x20], Corrupt::UpdatePlace),
        (&[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 0x00], Corrupt::EndOfString),
    ];
    for (block, expected) in cases {
        assert_eq!(decode(&mut Decoder::default(), block), Err(expected), "{block:02x?}");
    }
    assert_eq!(decode(&mut Decoder::default(), &[0x20, 0x3f, 0xe1, 0x1f, 0x82]).unwrap().len(), 1);
}

#[test]
fn an_acknowledged_table_of_nothing_leaves_nothing_to_refer_to() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &[0x40, 1, b'a', 1, b'b']).unwrap();
    assert_eq!(decode(&mut decoder, &[0x80 | 62]).unwrap(), fields(&[("a", "b")]));
    decoder.limit_table(0);
    assert_eq!(decode(&mut decoder, &[0x80 | 62]), Err(Corrupt::Index { index: 62 }));
    assert_eq!(decode(&mut decoder, &[0x21]), Err(Corrupt::TableSize { size: 1, limit: 0 }));
    assert_eq!(decode(&mut decoder, &[0x20, 0x40, 1, b'a', 1, b'b']).unwrap(), fields(&[("a", "b")]));
    assert_eq!(decoder.table_bytes(), 0);
}

#[test]
fn the_list_limit_counts_every_field_and_spares_the_table() {
    let mut decoder = Decoder::default();
    let mut block = vec![0x40, 1, b'a', 100];
    block.extend_from_slice(&[b'v'; 100]);
    block.extend_from_slice(&[0x80 | 62; 1_000]);
    let mut seen = 0;
    assert_eq!(decoder.decode(&block, 133 * 7 + 132, |_, _| seen += 1), Ok(List::TooLarge));
    assert_eq!(seen, 7);
    assert_eq!(decoder.decode(&[0x80 | 62], 133, |_, _| seen += 1), Ok(List::Whole));
    assert_eq!(seen, 8);
}

#[test]
fn what_we_encode_others_read() {
    let long = "k8s.pod.name=client,".repeat(20);
    let head = ConnectHead {
        authority: "web.default.svc.cluster.local:80",
        baggage: Some(&long),
        forwarded: Some("for=\"10.0.0.1:54780\";host=web"),
        traceparent: Some("00-defbed8555fddf63118875fdbad554dd-b2ae71933cf09761-00"),
        x_forwarded_network: Some("network-2"),
    };
    let mut block = vec![super::super::encode::TABLE_CLOSED];
    connect_block(&mut block, &head);
    let expected = fields(&[
        (":method", "CONNECT"),
        (":authority", head.authority),
        ("baggage", &long),
        ("forwarded", head.forwarded.unwrap()),
        ("traceparent", head.traceparent.unwrap()),
        ("x-forwarded-network", "network-2"),
    ]);
    read_by_all(&block, &expected);
    for status in [200, 204, 206, 304, 400, 401, 404, 500, 503, 999] {
        let mut block = Vec::new();
        response_block(&mut block, status, Some("cloud.region=r1"));
        read_by_all(&block, &fields(&[(":status", &status.to_string()), ("baggage", "cloud.region=r1")]));
    }
    let huge = "x".repeat(70_000);
    let mut block = Vec::new();
    response_block(&mut block, 200, Some(&huge));
    read_by_all(&block, &fields(&[(":status", "200"), ("baggage", &huge)]));
}

fn read_by_all(block: &[u8], expected: &[Field]) {
    assert_eq!(decode(&mut Decoder::default(), block).unwrap(), expected);
    assert_eq!(loona_hpack::Decoder::new().decode(block).unwrap(), expected);
    let mut seen = Vec::new();
    httlib_hpack::Decoder::default().decode(&mut block.to_vec(), &mut seen).unwrap();
    let seen: Vec<Field> = seen.into_iter().map(|(name, value, _)| (name, value)).collect();
    assert_eq!(seen, expected);
}

/// Names that repeat, in the static table or not; values of any bytes.
fn field() -> impl Strategy<Value = (Field, u8)> {
    let names = ["baggage", ":authority", ":status", "x", "forwarded", "cookie", "a-name-that-is-quite-long"];
    let value = prop_oneof![
        Just(b"CONNECT".to_vec()),
        Just(b"200".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(0x20..0x7f_u8, 1..60),
    ];
    (proptest::sample::select(names.to_vec()), value, any::<u8>())
        .prop_map(|(name, value, flags)| ((name.as_bytes().to_vec(), value), flags))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Many blocks in a row, so that the tables fill, evict and are referred to.
    #[test]
    fn what_others_encode_we_read(
        blocks in proptest::collection::vec(proptest::collection::vec(field(), 0..12), 1..20),
    ) {
        let mut loona = loona_hpack::Encoder::new();
        let mut httlib = httlib_hpack::Encoder::with_dynamic_size(4_096);
        let (mut ours, mut ours_too) = (Decoder::default(), Decoder::default());
        for block in &blocks {
            let expected: Vec<Field> = block.iter().map(|(field, _)| field.clone()).collect();
            let pairs = expected.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            let bytes = loona.encode(pairs);
            prop_assert_eq!(decode(&mut ours, &bytes).unwrap(), expected.clone());
            let mut bytes = Vec::new();
            for ((name, value), flags) in block {
                // Never both with indexing and never indexed.
                let flags = if flags & 4 != 0 { flags & 0x17 } else { flags & 0x1b };
                httlib.encode((name.clone(), value.clone(), flags), &mut bytes).unwrap();
            }
            prop_assert_eq!(decode(&mut ours_too, &bytes).unwrap(), expected);
            prop_assert!(ours.table_bytes() <= 4_096 && ours_too.table_bytes() <= 4_096);
        }
    }

    /// Whatever the bytes: where a library decoder takes a block, so do we, with the same fields.
    #[test]
    fn any_bytes_mean_the_same_to_others(block in proptest::collection::vec(any::<u8>(), 0..60)) {
        let ours = decode(&mut Decoder::default(), &block);
        let theirs = loona_hpack::Decoder::new().decode(&block);
        if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
            prop_assert_eq!(ours, theirs);
        }
        if let Err(Corrupt::Truncated | Corrupt::Index { .. }) = ours {
            prop_assert!(theirs.is_err());
        }
    }

    #[test]
    fn huffman_and_back(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        let packed = huffman(&text);
        let mut block = vec![0x00, 0x01, b'n', 0xff];
        let mut rest = packed.len();
        if rest < 127 {
            block.pop();
            block.push(0x80 | u8::try_from(rest).unwrap());
        } else {
            rest -= 127;
            while rest >= 128 {
                block.push(0x80 | u8::try_from(rest & 0x7f).unwrap());
                rest >>= 7;
            }
            block.push(u8::try_from(rest).unwrap());
        }
        block.extend_from_slice(&packed);
        prop_assert_eq!(decode(&mut Decoder::default(), &block).unwrap(), vec![(b"n".to_vec(), text)]);
    }
}
