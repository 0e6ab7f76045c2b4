//! A small name server that does as it is told, byte by byte, and askers: dig, and bare sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ringway::demo::topology::Pod;

use crate::world::STEP;

pub const A: u16 = 1;
pub const TXT: u16 = 16;

/// What was asked: the bytes, from where, over what.
#[derive(Clone, Debug)]
pub struct Heard {
    pub message: Vec<u8>,
    pub from: SocketAddr,
    pub tcp: bool,
}

impl Heard {
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.message[0], self.message[1]])
    }
}

/// What is said to it.
pub enum Say {
    Reply(Vec<u8>),
    /// From another port than the one that was asked.
    Elsewhere(Vec<u8>),
    Later(Duration, Vec<u8>),
}

/// Runs until it is dropped.
pub struct NameServer {
    heard: Arc<Mutex<Vec<Heard>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl NameServer {
    /// Listens on port 53 of the pod, both transports; `say` gets the query and how many came before it.
    pub fn start(pod: &Pod, say: impl Fn(&Heard, usize) -> Vec<Say> + Send + Sync + 'static) -> Self {
        Self::start_at(pod, pod.at(53), say)
    }

    /// The same on another address of the pod.
    pub fn start_at(
        pod: &Pod,
        at: SocketAddr,
        say: impl Fn(&Heard, usize) -> Vec<Say> + Send + Sync + 'static,
    ) -> Self {
        let (udp, tcp) = pod
            .space
            .enter(|| (UdpSocket::bind(at).expect("port 53"), TcpListener::bind(at).expect("port 53")))
            .expect("the pod");
        udp.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        tcp.set_nonblocking(true).expect("a non-blocking listener");
        let (heard, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let say = Arc::new(say);
        let elsewhere = pod.space.enter(|| UdpSocket::bind((at.ip(), 0)).expect("a port")).expect("the pod");
        let threads = vec![
            std::thread::spawn({
                let (heard, stop, say) = (heard.clone(), stop.clone(), say.clone());
                move || serve_udp(&udp, &elsewhere, &heard, &stop, &*say)
            }),
            std::thread::spawn({
                let (heard, stop) = (heard.clone(), stop.clone());
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        let Ok((stream, from)) = tcp.accept() else {
                            std::thread::sleep(Duration::from_millis(5));
                            continue;
                        };
                        let (heard, say) = (heard.clone(), say.clone());
                        std::thread::spawn(move || serve_tcp(stream, from, &heard, &*say));
                    }
                }
            }),
        ];
        Self { heard, stop, threads }
    }

    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

type Speaker<'a> = &'a (dyn Fn(&Heard, usize) -> Vec<Say> + Send + Sync);

fn note(heard: &Mutex<Vec<Heard>>, one: &Heard) -> usize {
    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    heard.push(one.clone());
    heard.len() - 1
}

fn serve_udp(
    socket: &UdpSocket,
    elsewhere: &UdpSocket,
    heard: &Mutex<Vec<Heard>>,
    stop: &AtomicBool,
    say: Speaker<'_>,
) {
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((count, from)) = socket.recv_from(&mut buffer) else { continue };
        let one = Heard { message: buffer[..count].to_vec(), from, tcp: false };
        let before = note(heard, &one);
        for said in say(&one, before) {
            // The asker may have gone.
            let _ = match said {
                Say::Reply(bytes) => socket.send_to(&bytes, from),
                Say::Elsewhere(bytes) => elsewhere.send_to(&bytes, from),
                Say::Later(after, bytes) => {
                    let socket = socket.try_clone().expect("a socket");
                    std::thread::spawn(move || {
                        std::thread::sleep(after);
                        let _ = socket.send_to(&bytes, from);
                    });
                    Ok(0)
                }
            };
        }
    }
}

fn serve_tcp(mut stream: TcpStream, from: SocketAddr, heard: &Mutex<Vec<Heard>>, say: Speaker<'_>) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(STEP));
    while let Ok(message) = read_frame(&mut stream) {
        let one = Heard { message, from, tcp: true };
        let before = note(heard, &one);
        for said in say(&one, before) {
            let (Say::Reply(bytes) | Say::Elsewhere(bytes) | Say::Later(_, bytes)) = said;
            if write_frame(&mut stream, &bytes).is_err() {
                return;
            }
        }
    }
}

pub fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message)?;
    Ok(message)
}

pub fn write_frame(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(message.len()).expect("a message");
    stream.write_all(&[&length.to_be_bytes()[..], message].concat())
}

/// A query with RD and no EDNS.
pub fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.').filter(|label| !label.is_empty()) {
        message.push(u8::try_from(label.len()).expect("a label"));
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend([0, 1]);
    message
}

/// Where the question of a message ends; all of it, where there is none.
pub fn question_end(message: &[u8]) -> usize {
    let mut at = 12;
    while let Some(length) = message.get(at).filter(|length| **length != 0) {
        at += 1 + usize::from(*length);
    }
    (at + 5).min(message.len())
}

/// The name asked for, in lower case.
pub fn asked_name(message: &[u8]) -> String {
    let (mut at, mut labels) = (12, Vec::new());
    while let Some(length) = message.get(at).filter(|length| **length != 0) {
        let end = at + 1 + usize::from(*length);
        labels.push(String::from_utf8_lossy(message.get(at + 1..end).unwrap_or_default()).to_lowercase());
        at = end;
    }
    labels.join(".")
}

/// A reply with these low flag bits (rcode and above) and records that belong to the asked name.
pub fn reply(query: &[u8], flags: u16, records: &[(u16, u32, Vec<u8>)]) -> Vec<u8> {
    let mut message = query[..question_end(query)].to_vec();
    message[2..4].copy_from_slice(&(0x8180 | flags).to_be_bytes());
    message[4..12].copy_from_slice(&[0, 1, 0, u8::try_from(records.len()).expect("records"), 0, 0, 0, 0]);
    for (kind, ttl, data) in records {
        message.extend([0xc0, 12]);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message.extend(ttl.to_be_bytes());
        message.extend(u16::try_from(data.len()).expect("data").to_be_bytes());
        message.extend_from_slice(data);
    }
    message
}

/// Sends one datagram from a pod and waits for the answer; none within `within`.
pub fn ask(from: &Pod, server: SocketAddr, message: &[u8], within: Duration) -> Option<Vec<u8>> {
    let bind = if server.is_ipv4() { from.at(0) } else { from.at6(0) };
    let socket = from.space.enter(|| UdpSocket::bind(bind).expect("a port")).expect("the pod");
    socket.connect(server).expect("a server");
    socket.set_read_timeout(Some(within)).expect("a timeout");
    socket.send(message).expect("sending");
    let mut buffer = vec![0; 65_536];
    let count = socket.recv(&mut buffer).ok()?;
    Some(buffer[..count].to_vec())
}

pub fn rcode(message: &[u8]) -> u8 {
    message[3] & 15
}

/// What dig says, whole.
#[track_caller]
pub fn dig(from: &Pod, words: &[&str]) -> String {
    let mut arguments = vec!["+nocookie", "+time=6", "+tries=1"];
    arguments.extend(words);
    let output = from.space.output("dig", &arguments).expect("dig (bind9-dnsutils)");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "dig {}: {said}", words.join(" "));
    said
}

/// The parts of dig's answer that must be the same through a proxy: all but ids, times, sizes and the server.
pub fn comparable(said: &str) -> String {
    let odd = [";; Query time", ";; SERVER", ";; WHEN", ";; MSG SIZE", "; <<>> DiG"];
    let lines = said.lines().filter(|line| !odd.iter().any(|start| line.starts_with(start)));
    lines.map(|line| line.split(", id: ").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}
