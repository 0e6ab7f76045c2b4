//! One CONNECT stream of a tunnel, as the task that relays it sees it. The tunnel's task hands payload straight
//! to the application's socket; what that doesn't take waits here, never more than the stream's window.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice};
use std::rc::{Rc, Weak};

use crate::shard::ending::Fault;
use crate::shard::meter::{Meter, Way};
use crate::shard::signal::Signal;
use crate::shard::socket::Socket;
use crate::shard::tunnel::Tunnel;
use crate::wire::h2::{Code, StreamId};

/// Shared by the tunnel's task and the relay's. Everything that happens to it raises `signal`.
pub struct Stream {
    pub id: StreamId,
    pub signal: Signal,
    /// The way of what the peer sends.
    pub way: Way,
    tunnel: Weak<Tunnel>,
    /// In a box, since few streams have one, and not for long.
    answer: Cell<Option<Box<Answer>>>,
    waiting: RefCell<Waiting>,
    sink: RefCell<Option<Sink>>,
    peer_finished: Cell<bool>,
    /// The application has finished too: closing its socket sends the FIN.
    app_finished: Cell<bool>,
    cut: Cell<Option<Cut>>,
    /// The application's socket failed while it was being written.
    sink_failed: Cell<Option<ErrorKind>>,
    /// When the stream last made progress; streams that wait for the tunnel go in this order.
    pub progress: Cell<u64>,
}

/// The far side's answer to our CONNECT.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub baggage: Option<Vec<u8>>,
}

/// What ended a stream before both of its sides did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Cut {
    /// The peer reset it, or refused it: REFUSED_STREAM also where it is above the last one of a GOAWAY.
    #[error("stream reset: {0}")]
    Reset(Code),
    /// Its tunnel ended under it.
    #[error("stream lost with its tunnel")]
    Lost,
    /// Its tunnel broke under it.
    #[error("stream lost with its tunnel: {0}")]
    Broken(Fault),
    /// Its tunnel's peer may not be talked to any more.
    #[error("peer certificate revoked by CRL")]
    Revoked,
}

impl Cut {
    /// Whether the same request may find its way by another tunnel. The peer has not looked at one that it
    /// refused (RFC 9113 section 8.7); one that was lost has at least got no answer.
    pub fn may_try_again(self) -> bool {
        matches!(self, Self::Lost | Self::Broken(_) | Self::Reset(Code::REFUSED_STREAM))
    }
}

struct Sink {
    socket: Rc<Socket>,
    meter: Rc<Meter>,
}

/// Payload that the application didn't take yet.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    start: usize,
}

impl Stream {
    pub fn new(id: StreamId, tunnel: Weak<Tunnel>, way: Way) -> Rc<Self> {
        Rc::new(Self {
            id,
            signal: Signal::default(),
            way,
            tunnel,
            answer: Cell::default(),
            waiting: RefCell::default(),
            sink: RefCell::default(),
            peer_finished: Cell::new(false),
            app_finished: Cell::new(false),
            cut: Cell::new(None),
            sink_failed: Cell::new(None),
            progress: Cell::new(0),
        })
    }

    /// The tunnel, while it is up.
    pub fn tunnel(&self) -> Option<Rc<Tunnel>> {
        self.tunnel.upgrade()
    }

    pub fn take_answer(&self) -> Option<Answer> {
        self.answer.take().map(|answer| *answer)
    }

    pub fn cut(&self) -> Option<Cut> {
        self.cut.get()
    }

    pub fn sink_failed(&self) -> Option<ErrorKind> {
        self.sink_failed.get()
    }

    /// The peer has sent its last byte.
    pub fn peer_finished(&self) -> bool {
        self.peer_finished.get()
    }

    /// The peer's last byte has been handed to the application.
    pub fn drained(&self) -> bool {
        self.peer_finished.get() && !self.has_waiting()
    }

    pub fn has_waiting(&self) -> bool {
        let waiting = self.waiting.borrow();
        waiting.start < waiting.bytes.len()
    }

    /// Payload that the application hasn't taken.
    pub(super) fn waiting_bytes(&self) -> usize {
        let waiting = self.waiting.borrow();
        waiting.bytes.len() - waiting.start
    }

    /// From here on payload goes to this socket; what has come already is handed over at once.
    pub fn attach(&self, socket: Rc<Socket>, meter: Rc<Meter>) {
        *self.sink.borrow_mut() = Some(Sink { socket, meter });
        self.hand_over_waiting();
    }

    /// Hands waiting payload to the application as far as it takes it, then its end.
    pub fn hand_over_waiting(&self) {
        let sink = self.sink.borrow();
        let Some(sink) = sink.as_ref() else { return };
        let mut taken = 0;
        {
            let mut waiting = self.waiting.borrow_mut();
            while let Some(rest) = waiting.bytes.get(waiting.start..).filter(|rest| !rest.is_empty()) {
                match sink.socket.send(rest) {
                    Ok(sent) => {
                        waiting.start += sent;
                        taken += sent;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => {
                        self.fail_sink(&error);
                        break;
                    }
                }
            }
            if waiting.start >= waiting.bytes.len() {
                let emptied = std::mem::take(&mut *waiting).bytes;
                if let Some(tunnel) = self.tunnel.upgrade().filter(|_| emptied.capacity() > 0) {
                    tunnel.buffers.put_spare(emptied);
                }
            }
        }
        self.taken(sink, taken);
        if self.drained() && self.sink_failed.get().is_none() {
            self.finish_sink(sink);
        }
    }

    /// Lets go of the application's socket: whoever still holds the stream doesn't keep it open.
    pub fn detach(&self) {
        *self.sink.borrow_mut() = None;
    }

    /// The application has sent its last byte.
    pub fn app_finished(&self) {
        self.app_finished.set(true);
    }

    fn finish_sink(&self, sink: &Sink) {
        if !self.app_finished.get() {
            sink.socket.finish();
        }
    }

    fn taken(&self, sink: &Sink, bytes: usize) {
        if bytes == 0 {
            return;
        }
        sink.meter.add(self.way, bytes);
        if let Some(tunnel) = self.tunnel.upgrade() {
            tunnel.consumed(self.id, bytes);
        }
    }

    fn fail_sink(&self, error: &io::Error) {
        self.sink_failed.set(Some(error.kind()));
        self.signal.raise();
    }

    // What follows is called by the tunnel's task only.

    pub(super) fn on_answer(&self, answer: Answer) {
        self.answer.set(Some(Box::new(answer)));
        self.signal.raise();
    }

    /// Payload from the peer: returns how much the application took at once.
    pub(super) fn on_payload(&self, parts: &[IoSlice<'_>], total: usize) -> usize {
        if self.sink_failed.get().is_some() || self.cut.get().is_some() {
            return total;
        }
        let mut sent = 0;
        if let Some(sink) = self.sink.borrow().as_ref().filter(|_| !self.has_waiting()) {
            let written = match parts {
                [one] => sink.socket.send(one),
                parts => sink.socket.send_vectored(parts),
            };
            match written {
                Ok(count) => {
                    sent = count;
                    sink.meter.add(self.way, count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.fail_sink(&error);
                    return total;
                }
            }
        }
        if sent < total {
            self.keep(parts, sent);
            self.signal.raise();
        }
        sent
    }

    fn keep(&self, parts: &[IoSlice<'_>], mut skip: usize) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.start > waiting.bytes.len() / 2 {
            let start = std::mem::take(&mut waiting.start);
            waiting.bytes.drain(..start);
        }
        if waiting.bytes.capacity() == 0
            && let Some(tunnel) = self.tunnel.upgrade()
        {
            waiting.bytes = tunnel.buffers.take_spare();
        }
        for part in parts {
            let rest = part.get(skip.min(part.len())..).unwrap_or_default();
            skip = skip.saturating_sub(part.len());
            waiting.bytes.extend_from_slice(rest);
        }
    }

    pub(super) fn on_finish(&self) {
        self.peer_finished.set(true);
        if !self.has_waiting()
            && let Some(sink) = self.sink.borrow().as_ref()
        {
            self.finish_sink(sink);
        }
        self.signal.raise();
    }

    pub(super) fn on_cut(&self, cut: Cut) {
        if self.cut.get().is_none() {
            self.cut.set(Some(cut));
            self.signal.raise();
        }
    }
}
