//! The CNI agent's part towards a node proxy: one pod, handed over once for each connection of the proxy.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prost::Message;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::topology::Side;

/// The agent's own limits: deadline of a read or write, and size of a datagram.
const DEADLINE: Duration = Duration::from_secs(5);
const DATAGRAM_BYTES: usize = 1_024;
const POLL: Duration = Duration::from_millis(200);

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    service_account: String,
}

#[derive(Clone, PartialEq, Message)]
struct Add {
    #[prost(string, tag = "1")]
    uid: String,
    #[prost(message, optional, tag = "2")]
    workload_info: Option<Info>,
}

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct PodRequest {
    #[prost(message, optional, tag = "1")]
    add: Option<Add>,
    #[prost(message, optional, tag = "3")]
    snapshot_sent: Option<Empty>,
}

#[derive(Clone, PartialEq, Message)]
struct Ack {
    #[prost(string, tag = "1")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodResponse {
    #[prost(message, optional, tag = "1")]
    ack: Option<Ack>,
}

/// Listens until dropped.
pub struct Agent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    pub fn start(socket: &Path, side: Side, namespace: PathBuf) -> Result<Self> {
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        // A socket file of an earlier run would refuse the bind.
        let _ = std::fs::remove_file(socket);
        listener.bind(&SockAddr::unix(socket)?).with_context(|| format!("{}", socket.display()))?;
        listener.listen(1)?;
        listener.set_read_timeout(Some(POLL))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("agent".into()).spawn(move || {
            let mut held = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Ok((peer, _)) = listener.accept() else { continue };
                match hand_over(&peer, side, &namespace) {
                    Ok(()) => held.push(peer),
                    Err(fault) => complain(side, &fault),
                }
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only panics if one of our own assertions fails; there is nothing left to do then.
            let _ = thread.join();
        }
    }
}

fn hand_over(peer: &Socket, side: Side, namespace: &Path) -> Result<()> {
    peer.set_read_timeout(Some(DEADLINE))?;
    peer.set_write_timeout(Some(DEADLINE))?;
    receive(peer).context("hello")?;
    let info =
        Info { name: side.name().into(), namespace: "default".into(), service_account: side.name().into() };
    let add = Add { uid: format!("{}-uid", side.name()), workload_info: Some(info) };
    send(peer, &PodRequest { add: Some(add), snapshot_sent: None }, Some(namespace))?;
    acknowledged(peer).context("add")?;
    send(peer, &PodRequest { add: None, snapshot_sent: Some(Empty {}) }, None)?;
    acknowledged(peer).context("snapshot")
}

fn send(peer: &Socket, request: &PodRequest, namespace: Option<&Path>) -> Result<()> {
    let bytes = request.encode_to_vec();
    let file = namespace.map(File::open).transpose()?;
    let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "no room for a descriptor");
    }
    sendmsg(peer, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn acknowledged(peer: &Socket) -> Result<()> {
    let response = PodResponse::decode(receive(peer)?.as_slice())?;
    let ack = response.ack.context("a response without ack")?;
    ensure!(ack.error.is_empty(), "refused: {}", ack.error);
    Ok(())
}

fn receive(peer: &Socket) -> Result<Vec<u8>> {
    let mut bytes = vec![0; DATAGRAM_BYTES];
    let (length, _) = recv(peer, bytes.as_mut_slice(), RecvFlags::empty())?;
    ensure!(length > 0, "the proxy closed the connection");
    bytes.truncate(length);
    Ok(bytes)
}

#[expect(clippy::print_stderr, reason = "a command-line tool's complaint")]
fn complain(side: Side, fault: &anyhow::Error) {
    eprintln!("agent of the {} node: {fault:#}", side.name());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use std::io::IoSliceMut;

    #[test]
    fn a_proxy_gets_hold_of_the_namespace_and_the_end_of_the_snapshot() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let agent = Agent::start(&path, Side::Server, "/proc/self/ns/net".into()).unwrap();
        let proxy = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        proxy.set_read_timeout(Some(DEADLINE)).unwrap();
        proxy.connect(&SockAddr::unix(&path).unwrap()).unwrap();
        proxy.send(&[0x08, 0x01]).unwrap();

        let mut bytes = [0; DATAGRAM_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let length = recvmsg(&proxy, parts, &mut control, RecvFlags::empty()).unwrap().bytes;
        let descriptors: usize = control
            .drain()
            .map(|message| {
                let RecvAncillaryMessage::ScmRights(descriptors) = message else { return 0 };
                descriptors.count()
            })
            .sum();
        assert_eq!(descriptors, 1);
        let add = PodRequest::decode(&bytes[..length]).unwrap().add.unwrap();
        assert_eq!(add.workload_info.unwrap().service_account, "server");

        let ack = PodResponse { ack: Some(Ack::default()) }.encode_to_vec();
        assert_eq!(ack, [0x0a, 0x00]);
        proxy.send(&ack).unwrap();
        let snapshot = PodRequest::decode(receive(&proxy).unwrap().as_slice()).unwrap();
        assert_eq!(snapshot, PodRequest { add: None, snapshot_sent: Some(Empty {}) });
        proxy.send(&ack).unwrap();
        drop(agent);
    }
}
