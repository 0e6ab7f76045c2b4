//! What the CNI agent and a proxy say to each other: one protobuf a datagram, a descriptor beside each `add`.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(int32, tag = "1")]
    pub version: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct WorkloadInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub service_account: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AddWorkload {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(message, optional, tag = "2")]
    pub workload_info: Option<WorkloadInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DelWorkload {
    #[prost(string, tag = "2")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeepWorkload {
    #[prost(string, tag = "1")]
    pub uid: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SnapshotSent {}

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(oneof = "Payload", tags = "1, 2, 3, 5")]
    pub payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
    #[prost(message, tag = "5")]
    Keep(KeepWorkload),
}

#[derive(Clone, PartialEq, Message)]
pub struct Ack {
    #[prost(string, tag = "1")]
    pub error: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub ack: Option<Ack>,
}
