//! The CNI agent's messages (ZDS): one protobuf a datagram, 1,024 bytes at most. Bytes and types only; the
//! descriptor that accompanies an `Add` is counted here, but carried by `sys::fdpass`.

use prost::Message as _;

use crate::base::limits::ZDS_MESSAGE_BYTES;
use crate::base::text::beginning;

use crate::wire::pb::zds as pb;

/// What the agent says. Every uid is non-empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Serve this pod; one descriptor comes along. `info` is optional on the wire, but its absence is a breach of
    /// the protocol, which `control::session` answers.
    Add {
        uid: String,
        info: Option<Info>,
    },
    /// The pod is still wanted, though the agent doesn't have its namespace at hand.
    Keep {
        uid: String,
    },
    Del {
        uid: String,
    },
    /// Everything that runs on this node has been named.
    SnapshotSent,
}

/// Who a pod is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    pub name: String,
    pub namespace: String,
    pub service_account: String,
}

/// A datagram that can't be understood; the agent is told, and the connection made anew.
#[derive(Debug, thiserror::Error)]
pub enum ZdsError {
    #[error("a message of {0} bytes is larger than the {ZDS_MESSAGE_BYTES} that the protocol allows")]
    TooLong(usize),
    #[error("not a workload request: {0}")]
    Protobuf(#[from] prost::DecodeError),
    #[error(
        "a workload request without a payload that this version knows (first field on the wire: {first_field})"
    )]
    UnknownPayload { first_field: u32 },
    #[error("{kind} without a uid")]
    NoUid { kind: &'static str },
    #[error("{kind} must come with {expected} descriptor(s), but {found} came")]
    Descriptors { kind: &'static str, expected: usize, found: usize },
    #[error("not an answer: {0}")]
    NotAnAnswer(&'static str),
}

impl Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Add { .. } => "add",
            Self::Keep { .. } => "keep",
            Self::Del { .. } => "del",
            Self::SnapshotSent => "snapshot_sent",
        }
    }

    fn uid(&self) -> Option<&str> {
        match self {
            Self::Add { uid, .. } | Self::Keep { uid } | Self::Del { uid } => Some(uid),
            Self::SnapshotSent => None,
        }
    }

    /// Reads one datagram that came with `descriptors` file descriptors.
    pub fn decode(datagram: &[u8], descriptors: usize) -> Result<Self, ZdsError> {
        use pb::workload_request::Payload;
        if datagram.len() > ZDS_MESSAGE_BYTES {
            return Err(ZdsError::TooLong(datagram.len()));
        }
        let message = match pb::WorkloadRequest::decode(datagram)?.payload {
            Some(Payload::Add(add)) => Self::Add { uid: add.uid, info: add.workload_info.map(Info::from) },
            Some(Payload::Del(del)) => Self::Del { uid: del.uid },
            Some(Payload::Keep(keep)) => Self::Keep { uid: keep.uid },
            Some(Payload::SnapshotSent(pb::SnapshotSent {})) => Self::SnapshotSent,
            None => return Err(ZdsError::UnknownPayload { first_field: first_field(datagram) }),
        };
        if message.uid().is_some_and(str::is_empty) {
            return Err(ZdsError::NoUid { kind: message.kind() });
        }
        let expected = usize::from(matches!(message, Self::Add { .. }));
        if descriptors != expected {
            return Err(ZdsError::Descriptors { kind: message.kind(), expected, found: descriptors });
        }
        Ok(message)
    }

    /// The datagram, as an agent sends it (for agents in tests and in the demonstration).
    pub fn encode(&self) -> Vec<u8> {
        use pb::workload_request::Payload;
        let payload = match self.clone() {
            Self::Add { uid, info } => {
                Payload::Add(pb::AddWorkload { uid, workload_info: info.map(pb::WorkloadInfo::from) })
            }
            Self::Keep { uid } => Payload::Keep(pb::KeepWorkload { uid }),
            Self::Del { uid } => Payload::Del(pb::DelWorkload { uid }),
            Self::SnapshotSent => Payload::SnapshotSent(pb::SnapshotSent {}),
        };
        pb::WorkloadRequest { payload: Some(payload) }.encode_to_vec()
    }
}

/// The first datagram of a connection: we speak version 1.
pub fn hello() -> Vec<u8> {
    pb::ZdsHello { version: pb::Version::V1 as i32 }.encode_to_vec()
}

/// The version that a hello names.
pub fn hello_version(datagram: &[u8]) -> Result<i32, ZdsError> {
    Ok(pb::ZdsHello::decode(datagram)?.version)
}

/// The answer to one message. The agent reads it into 1,024 bytes, so a longer text is cut.
pub fn ack(error: Option<&str>) -> Vec<u8> {
    // Two tags and two lengths of at most three bytes each: 8 bytes around the text.
    const ROOM: usize = ZDS_MESSAGE_BYTES - 8;
    let error = error.map(|text| cut(text, ROOM)).unwrap_or_default();
    let payload = pb::workload_response::Payload::Ack(pb::Ack { error });
    pb::WorkloadResponse { payload: Some(payload) }.encode_to_vec()
}

/// What an answer says: `None` is success.
pub fn decode_ack(datagram: &[u8]) -> Result<Option<String>, ZdsError> {
    match pb::WorkloadResponse::decode(datagram)?.payload {
        Some(pb::workload_response::Payload::Ack(ack)) => {
            Ok(Some(ack.error).filter(|error| !error.is_empty()))
        }
        None => Err(ZdsError::NotAnAnswer("no ack in it")),
    }
}

/// Text of at most `bytes` bytes, marked where something was left out.
fn cut(text: &str, bytes: usize) -> String {
    const MARK: &str = "...";
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}{MARK}", beginning(text, bytes.saturating_sub(MARK.len())))
}

/// The field number at the front of a protobuf, 0 where there is none: names what a newer agent said.
fn first_field(datagram: &[u8]) -> u32 {
    let mut rest = datagram;
    prost::encoding::decode_key(&mut rest).map_or(0, |(field, _)| field)
}

impl From<pb::WorkloadInfo> for Info {
    fn from(info: pb::WorkloadInfo) -> Self {
        Self { name: info.name, namespace: info.namespace, service_account: info.service_account }
    }
}

impl From<Info> for pb::WorkloadInfo {
    fn from(info: Info) -> Self {
        Self { name: info.name, namespace: info.namespace, service_account: info.service_account }
    }
}

/// Any datagram: no panic, and what is understood prints and parses to itself.
#[doc(hidden)]
pub fn fuzz_zds(data: &[u8]) {
    for descriptors in 0..2 {
        if let Ok(message) = Message::decode(data, descriptors) {
            let again = Message::decode(&message.encode(), descriptors);
            assert!(again.is_ok_and(|again| again == message), "a message doesn't survive its own encoding");
        }
    }
    let text = String::from_utf8_lossy(data);
    let answer = ack(Some(&text));
    assert!(answer.len() <= ZDS_MESSAGE_BYTES, "an ack larger than the agent's buffer");
    let _ = decode_ack(data);
    let _ = hello_version(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info() -> Info {
        Info { name: "web".into(), namespace: "shop".into(), service_account: "seller".into() }
    }

    #[test]
    fn the_wire_form_is_the_agents() {
        assert_eq!(hello(), [0x08, 0x01]);
        assert_eq!(ack(None), [0x0a, 0x00]);
        assert_eq!(ack(Some("no")), [0x0a, 0x04, 0x0a, 0x02, b'n', b'o']);
        assert_eq!(Message::SnapshotSent.encode(), [0x1a, 0x00]);
        assert_eq!(Message::Del { uid: "u".into() }.encode(), [0x12, 0x03, 0x12, 0x01, b'u']);
        assert_eq!(Message::Keep { uid: "u".into() }.encode(), [0x2a, 0x03, 0x0a, 0x01, b'u']);
        let add = Message::Add { uid: "u".into(), info: Some(info()) }.encode();
        assert_eq!(add.get(..7).unwrap(), [0x0a, 0x18, 0x0a, 0x01, b'u', 0x12, 0x13]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |bytes: &[u8], descriptors| Message::decode(bytes, descriptors).unwrap_err().to_string();
        assert!(says(&[0x3a, 0x00], 0).contains("field on the wire: 7"));
        assert!(says(&[], 0).contains("without a payload"));
        assert!(says(&[0xff; 9], 0).contains("not a workload request"));
        assert!(says(&[0; 1_025], 0).contains("1025 bytes"));
        assert!(
            says(&Message::Add { uid: String::new(), info: None }.encode(), 1).contains("add without a uid")
        );
        let add = Message::Add { uid: "u".into(), info: None }.encode();
        assert!(says(&add, 0).contains("1 descriptor(s), but 0 came"));
        assert!(says(&Message::SnapshotSent.encode(), 1).contains("0 descriptor(s), but 1 came"));
        assert!(Message::decode(&add, 1).is_ok());
    }

    #[test]
    fn a_long_refusal_fits_the_agents_buffer_and_stays_text() {
        let answer = ack(Some(&"é".repeat(2_000)));
        assert!(answer.len() <= 1_024);
        let text = decode_ack(&answer).unwrap().unwrap();
        assert!(text.ends_with("...") && text.starts_with("éé"));
    }

    proptest! {
        #[test]
        fn fuzz_zds_survives_any_datagram(data in proptest::collection::vec(any::<u8>(), 0..1_200)) {
            fuzz_zds(&data);
        }

        #[test]
        fn fuzz_zds_survives_nearly_right_datagrams(
            uid in "[a-z]{0,8}", at in 0_usize..40, with: u8, cut in 0_usize..40,
        ) {
            let mut bytes = Message::Add { uid, info: Some(info()) }.encode();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            fuzz_zds(&bytes);
        }
    }
}
