//! A pod asks a name: port 15053, by datagram or TCP (reference section 10). The mesh answers for its own at once;
//! everything else goes to the pod's name server as it is, and its reply comes back as it is.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::base::text::Text;
use crate::bridge::report::DnsLabels;
use crate::mesh::dns::Asker;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::shard::dns::{AskError, Datagram, Over, take_frame};
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::ready::{Woke, wait};
use crate::shard::signal::Signal;
use crate::shard::socket::Socket;
use crate::shard::stats::{DnsCounters, bump};
use crate::sys::origdst::original_destination;
use crate::wire::dns::answer::{self, Owned};
use crate::wire::dns::{AXFR, Header, IXFR, Query, Question, Rcode, Unfit, kind_name, reply, shown_name};

/// Answers a datagram, now or by a task.
pub fn datagram(world: &Rc<PodWorld>, datagram: &Datagram<'_>) {
    let (port, from) = (datagram.port, datagram.from);
    let arrived = Instant::now();
    match Asked::read(world, datagram.message, Over::Udp) {
        Step::Answer(answer) => {
            port.answer(world, &answer, from);
            answered(world, arrived);
        }
        Step::Nothing => {}
        Step::Wait(asked) => {
            let (there, port, message) = (world.clone(), port.clone(), datagram.message.to_vec());
            world.spawn(async move {
                let server = there.asked_server(&port, from);
                if let Some(answer) = asked.finish(&there, &message, server).await {
                    port.answer(&there, &answer, from);
                    answered(&there, arrived);
                }
            });
        }
    }
}

fn answered(world: &PodWorld, arrived: Instant) {
    world.shard.stats.timings.dns_request.record(arrived.elapsed());
}

/// Answers a connection's queries, in the order in which the answers are there (RFC 7766 section 6.2.1.1).
pub async fn serve(world: Rc<PodWorld>, accepted: Accepted) {
    let server = original_destination(accepted.fd.as_fd(), accepted.source).ok().map(|captured| captured.0);
    let Ok(socket) = Socket::new(accepted.fd) else { return };
    let client = Rc::new(Client {
        socket,
        unsent: RefCell::default(),
        owed: Rc::default(),
        wake: Signal::default(),
        server,
    });
    Box::pin(converse(&world, &client)).await;
}

/// A connection of an asker.
struct Client {
    socket: Socket,
    unsent: RefCell<Vec<u8>>,
    /// Queries that wait for their answer.
    owed: Rc<Cell<usize>>,
    wake: Signal,
    /// Whom it meant to ask.
    server: Option<SocketAddr>,
}

async fn converse(world: &Rc<PodWorld>, client: &Rc<Client>) {
    let idle = Duration::from_millis(limits::DNS_IDLE_MS);
    let (mut unread, mut ended) = (Vec::new(), false);
    let (mut readable, mut writable) = (pin!(None), pin!(None));
    loop {
        while client.has_room()
            && let Some(message) = take_frame(&mut unread)
        {
            client.take(world, message);
        }
        let Ok(sent) = client.flush() else { return };
        if ended && sent && client.owed.get() == 0 {
            return;
        }
        if !ended && client.has_room() && readable.is_none() {
            readable.set(Some(client.socket.readable()));
        }
        if !sent && writable.is_none() {
            writable.set(Some(client.socket.writable()));
        }
        let woke = wait(&client.wake, readable.as_mut(), writable.as_mut());
        match monoio::time::timeout(idle, woke).await {
            // Silent, or it doesn't read what it asked for.
            Err(_) if client.owed.get() == 0 || !sent => return,
            Err(_) => {}
            Ok(Woke::Signal | Woke::Writable) => {}
            Ok(Woke::Readable) => match client.read(&mut unread) {
                Ok(0) => ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            },
        }
    }
}

impl Client {
    fn has_room(&self) -> bool {
        self.owed.get() < limits::DNS_PIPELINED && self.unsent.borrow().len() < limits::DNS_UNREAD_BYTES
    }

    fn read(&self, unread: &mut Vec<u8>) -> std::io::Result<usize> {
        let mut chunk = [0; 2_048];
        let count = self.socket.receive(&mut chunk)?;
        unread.extend_from_slice(chunk.get(..count).unwrap_or_default());
        Ok(count)
    }

    /// Whether all is sent.
    fn flush(&self) -> std::io::Result<bool> {
        let mut unsent = self.unsent.borrow_mut();
        while !unsent.is_empty() {
            match self.socket.send(&unsent) {
                Ok(count) => drop(unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn push(&self, answer: &[u8]) {
        let Ok(length) = u16::try_from(answer.len()) else { return };
        let mut unsent = self.unsent.borrow_mut();
        unsent.extend(length.to_be_bytes());
        unsent.extend_from_slice(answer);
        self.wake.raise();
    }

    fn take(self: &Rc<Self>, world: &Rc<PodWorld>, message: Vec<u8>) {
        let arrived = Instant::now();
        match Asked::read(world, &message, Over::Tcp) {
            Step::Answer(answer) => {
                self.push(&answer);
                answered(world, arrived);
            }
            Step::Nothing => {}
            Step::Wait(asked) => {
                let (client, there, owed) = (self.clone(), world.clone(), Owed::of(self));
                world.spawn(async move {
                    let _owed = owed;
                    if asked.is_transfer() {
                        client.transfer(&there, &asked, &message).await;
                    } else if let Some(answer) = asked.finish(&there, &message, client.server).await {
                        client.push(&answer);
                        answered(&there, arrived);
                    }
                });
            }
        }
    }

    async fn transfer(&self, world: &Rc<PodWorld>, asked: &Asked, message: &[u8]) {
        let started = Instant::now();
        let counters = asked.counters(world);
        let outcome = match world.name_servers(self.server).first() {
            None => Err(AskError::NoServer),
            Some(server) => {
                let take = async |part: Vec<u8>| {
                    let until = Instant::now() + Duration::from_millis(limits::DNS_IDLE_MS);
                    while self.unsent.borrow().len() >= limits::DNS_UNREAD_BYTES && Instant::now() < until {
                        monoio::time::sleep(Duration::from_millis(limits::TRANSFER_PAUSE_MS)).await;
                    }
                    self.push(&part);
                    Instant::now() < until
                };
                world.transfer(message, *server, take).await
            }
        };
        asked.count_forwarded(&counters, started, outcome.is_err());
        match outcome {
            Ok(()) => asked.tell(message, &"forwarded", 0, 0),
            Err(error) => {
                asked.tell(message, &format_args!("forwarding failed ({error})"), 0, 0);
                let mut out = Vec::new();
                answer::write_error(message, Rcode::ServFail, &mut out);
                self.push(&out);
            }
        }
    }
}

/// One answer that a connection's asker waits for.
struct Owed(Rc<Client>);

impl Owed {
    fn of(client: &Rc<Client>) -> Self {
        client.owed.set(client.owed.get() + 1);
        Self(client.clone())
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.owed.set(self.0.owed.get().saturating_sub(1));
        self.0.wake.raise();
    }
}

/// What a message came to.
enum Step {
    Answer(Vec<u8>),
    Nothing,
    /// For the mesh's record of the asker, or for a name server.
    Wait(Asked),
}

/// A query with its asker, where that is known already.
struct Asked {
    query: Query,
    over: Over,
    workload: Option<Arc<Workload>>,
}

impl Asked {
    /// Answers at once what can be answered at once.
    fn read(world: &Rc<PodWorld>, message: &[u8], over: Over) -> Step {
        let query = match Query::parse(message) {
            Ok(query) => query,
            Err(Unfit::Short) => return Step::Nothing,
            Err(unfit) => {
                if let Unfit::Response(_) = unfit
                    && let Some(kept_back) = world.shard.dns_told.due(Instant::now(), limits::DNS_TOLD_MS)
                {
                    tracing::warn!(target: "ztunnel::dns", "{unfit} ({kept_back} such lines kept back)");
                }
                let mut out = Vec::new();
                answer::write_error(message, Rcode::FormErr, &mut out);
                return Step::Answer(out);
            }
        };
        let info = &world.pod.info;
        let snapshot = world.shard.published.peek();
        let workload = snapshot.local_workload((&info.name, &info.namespace, &info.service_account));
        let mut asked = Self { query, over, workload: None };
        let Some(workload) = workload.filter(|_| snapshot.synced) else { return Step::Wait(asked) };
        bump(&asked.counters_of(world, Some(workload)).requests);
        if let Some(answer) = asked.mesh_answer(world, message, &snapshot, workload) {
            return Step::Answer(answer);
        }
        asked.workload = Some(workload.clone());
        Step::Wait(asked)
    }

    /// The mesh's answer, where the name is its own.
    fn mesh_answer(
        &self,
        world: &PodWorld,
        message: &[u8],
        snapshot: &Snapshot,
        workload: &Workload,
    ) -> Option<Vec<u8>> {
        let question = self.query.question.as_ref().filter(|_| self.query.header.opcode() == 0)?;
        let (family, host) = (question.family()?, question.host.as_deref()?);
        let search = world.search(&workload.namespace);
        let (asker, names) = (Asker::of(workload, &search), &world.shard.settings.dns.names);
        let owned = names.look_up(snapshot, asker, host)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        names.addresses(
            snapshot,
            asker,
            owned.service,
            family == crate::wire::dns::Family::V6,
            &mut addresses,
        );
        world.shard.random.borrow_mut().shuffle(&mut addresses);
        let mut out = Vec::with_capacity(limits::DNS_PLAIN_BYTES);
        let said = Owned { alias: owned.alias, addresses: &addresses };
        answer::write(message, &self.query, said, self.limit_bytes(), &mut out);
        let result = match addresses.len() {
            0 => "service does not support this record type",
            _ => "success",
        };
        // Only the CNAME is counted, as the reference does; our own field has the addresses.
        let aliases = usize::from(owned.alias.is_some() && !addresses.is_empty());
        self.tell_of(Some(workload), message, &result, aliases, addresses.len());
        Some(out)
    }

    /// What couldn't be answered at once: waits for the mesh's record of the asker, then for a name server.
    async fn finish(
        mut self,
        world: &Rc<PodWorld>,
        message: &[u8],
        server: Option<SocketAddr>,
    ) -> Option<Vec<u8>> {
        if self.workload.is_none() {
            let known = match world.place_for_query() {
                Ok(_place) => world.shard.local_workload(&world.pod.info).await.ok(),
                Err(_crowded) => None,
            };
            let Some((snapshot, workload)) = known else {
                bump(&self.counters(world).requests);
                return Some(failure(message));
            };
            bump(&self.counters_of(world, Some(&workload)).requests);
            if let Some(answer) = self.mesh_answer(world, message, &snapshot, &workload) {
                return Some(answer);
            }
            self.workload = Some(workload);
        }
        let started = Instant::now();
        let outcome = self.forward(world, message, server).await;
        let counters = self.counters(world);
        self.count_forwarded(&counters, started, outcome.is_err());
        match outcome {
            Ok(said) => {
                let answers = Header::read(&said).map_or(0, |header| header.counts[1]);
                let result = if answers == 0 { "no records" } else { "forwarded" };
                self.tell(message, &result, answers.into(), 0);
                // What other opcodes answer isn't ours to cut.
                if said.len() <= self.limit_bytes() || self.query.header.opcode() != 0 {
                    return Some(said);
                }
                let mut out = Vec::new();
                reply::cut(&said, &mut out);
                Some(out)
            }
            Err(error) => {
                self.tell(message, &format_args!("forwarding failed ({error})"), 0, 0);
                if let Some(kept_back) = world.shard.dns_told.due(Instant::now(), limits::DNS_TOLD_MS) {
                    let pod = &world.pod.info.name;
                    tracing::warn!(
                        target: "ztunnel::dns",
                        "a query of pod {pod} could not be forwarded: {error} ({kept_back} such lines kept back)",
                    );
                }
                Some(failure(message))
            }
        }
    }

    async fn forward(
        &self,
        world: &Rc<PodWorld>,
        message: &[u8],
        server: Option<SocketAddr>,
    ) -> Result<Vec<u8>, AskError> {
        let servers = world.name_servers(server);
        let first = *servers.first().ok_or(AskError::NoServer)?;
        if let Some(known) = world.remembered(message, &self.query, first, self.limit_bytes()) {
            return Ok(known);
        }
        let reply = Box::pin(world.ask(message, &servers, self.over)).await?;
        world.remember(message, &self.query, first, &reply);
        Ok(reply)
    }

    fn is_transfer(&self) -> bool {
        let kind = self.query.question.as_ref().map(|question| question.kind);
        matches!(kind, Some(AXFR | IXFR)) && self.query.header.opcode() == 0 && self.workload.is_some()
    }

    fn limit_bytes(&self) -> usize {
        match self.over {
            Over::Udp => self.query.datagram_bytes(),
            Over::Tcp => limits::DNS_MESSAGE_BYTES,
        }
    }

    fn kind(&self) -> &'static str {
        self.query.question.as_ref().map_or("unknown", |Question { kind, .. }| kind_name(*kind))
    }

    fn counters(&self, world: &PodWorld) -> Rc<DnsCounters> {
        self.counters_of(world, self.workload.as_deref())
    }

    fn counters_of(&self, world: &PodWorld, workload: Option<&Workload>) -> Rc<DnsCounters> {
        world.shard.stats.names(DnsLabels {
            kind: self.kind(),
            tcp: self.over == Over::Tcp,
            service: workload.map_or_else(Text::default, |workload| workload.canonical_name.clone()),
            revision: workload.map_or_else(Text::default, |workload| workload.canonical_revision.clone()),
        })
    }

    fn count_forwarded(&self, counters: &DnsCounters, started: Instant, failed: bool) {
        bump(&counters.forwarded);
        if failed {
            bump(&counters.failed);
        }
        counters.took(started.elapsed());
    }

    fn tell(&self, message: &[u8], result: &dyn Display, endpoints: usize, addresses: usize) {
        self.tell_of(self.workload.as_deref(), message, result, endpoints, addresses);
    }

    /// The debug line of one query (reference section 10.5); `addresses` is ours.
    fn tell_of(
        &self,
        workload: Option<&Workload>,
        message: &[u8],
        result: &dyn Display,
        endpoints: usize,
        addresses: usize,
    ) {
        if !tracing::enabled!(target: "dns", tracing::Level::DEBUG) {
            return;
        }
        let (name, namespace) = workload.map_or(("unknown", "unknown"), |of| (&*of.name, &*of.namespace));
        let (kind, domain) = (self.kind().to_ascii_uppercase(), shown_name(message));
        let result = result.to_string();
        tracing::event!(
            target: "dns",
            tracing::Level::DEBUG,
            src.workload = name,
            src.namespace = namespace,
            query = kind,
            domain = domain,
            result = result,
            endpoints = endpoints,
            addresses = addresses,
        );
    }
}

fn failure(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    answer::write_error(message, Rcode::ServFail, &mut out);
    out
}
