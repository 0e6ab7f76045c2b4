//! One shard: what it knows, its log lines and its heartbeat. What connections wait for is in `shard::patience`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::base::text::Text;
use crate::bridge::absent::Absent;
use crate::bridge::hosts::Hosts;
use crate::bridge::identities::Identities;
use crate::bridge::lines::{LineSink, Lines};
use crate::bridge::mailbox::{Letterbox, Mailbox};
use crate::bridge::order::Order;
use crate::bridge::published::Published;
use crate::bridge::report::{Report, ShardStats};
use crate::bridge::settings::Settings;
use crate::mesh::seen::Seen;
use crate::shard::buffers::Buffers;
use crate::shard::dns::Datagram;
use crate::shard::flows::Flows;
use crate::shard::lateness::Lateness;
use crate::shard::orders;
use crate::shard::pod::{Accepted, PodWorld, Port};
use crate::shard::signal::{Broadcast, Signal};
use crate::shard::stats::Stats;
use crate::shard::table::Table;
use crate::shard::told::Told;
use crate::sys::heap;
use crate::sys::proc::{self, DescriptorRoom};
use crate::tls::revocation::Revocations;

/// Lines are handed to the writer in chunks of about this size, or after `limits::LINES_WAIT_MS`.
const LINES_BYTES: usize = 64 * 1024;

/// Where accepted connections go. `path` fills this in, since a shard must not know it.
#[derive(Clone, Copy)]
pub struct Ways {
    /// Spawns the task that serves the connection, inside the pod's gate.
    pub serve: fn(Rc<PodWorld>, Port, Accepted),
    /// Answers a datagram of the DNS port, or spawns the task that will.
    pub datagram: fn(&Rc<PodWorld>, &Datagram<'_>),
}

/// What a shard is started with.
pub struct Seed {
    pub index: usize,
    pub settings: Arc<Settings>,
    pub published: Arc<Published>,
    pub identities: Arc<Identities>,
    pub revocations: Arc<Revocations>,
    pub absent: Arc<Absent>,
    pub hosts: Arc<Hosts>,
    pub orders: Letterbox<Order>,
    pub reports: Mailbox<Report>,
    pub lines: LineSink,
    pub ways: Ways,
}

/// See above. All tasks of the shard hold it.
pub struct Shard {
    pub index: usize,
    pub settings: Arc<Settings>,
    pub published: Arc<Published>,
    pub buffers: Rc<Buffers>,
    pub stats: Rc<Stats>,
    pub table: Rc<Table>,
    /// Connections that have ended.
    pub flows: Flows,
    pub random: RefCell<fastrand::Rng>,
    pub descriptors: DescriptorRoom,
    /// What connections of this shard have met.
    pub seen: RefCell<Seen>,
    /// Where datagrams are read, one at a time.
    pub(super) datagram: RefCell<Vec<u8>>,
    /// When trouble with names was told last.
    pub dns_told: Told,
    pub ways: Ways,
    pub(super) pods: RefCell<HashMap<Text, Rc<PodWorld>, foldhash::fast::RandomState>>,
    /// Pods that were told to stop and still have connections.
    pub(super) leaving: RefCell<Vec<Rc<PodWorld>>>,
    pub(super) reports: Mailbox<Report>,
    /// Raised when the snapshot or an identity changed.
    pub(super) looked: Broadcast,
    /// Live connections are being asked again.
    pub(super) asking: Cell<bool>,
    pub(super) revocations: Arc<Revocations>,
    /// The generation of revocation lists that the tunnels were asked by last.
    pub(super) seen_revocations: Cell<u64>,
    pub(super) draining: Cell<bool>,
    /// That a connection waits.
    pub(super) wait_told: Told,
    pub(super) identities: Arc<Identities>,
    pub(super) absent: Arc<Absent>,
    pub(super) hosts: Arc<Hosts>,
    lateness: Lateness,
    /// Raised when a connection or a query has come: there may be deadlines again.
    stirred: Signal,
    lines: LineSink,
    unwritten: RefCell<(Vec<u8>, u64)>,
}

/// Runs a shard until its drain has ended.
pub async fn run(seed: Seed) {
    let table = Rc::new(Table::new(seed.settings.trust_domains.clone()));
    let shard = Rc::new(Shard {
        index: seed.index,
        settings: seed.settings,
        published: seed.published,
        buffers: Rc::default(),
        stats: Rc::default(),
        table,
        flows: Flows::default(),
        random: RefCell::new(fastrand::Rng::new()),
        descriptors: DescriptorRoom::keeping(limits::RESERVED_DESCRIPTORS),
        datagram: RefCell::default(),
        dns_told: Told::default(),
        ways: seed.ways,
        pods: RefCell::default(),
        leaving: RefCell::default(),
        reports: seed.reports,
        looked: Broadcast::default(),
        asking: Cell::new(false),
        revocations: seed.revocations,
        seen_revocations: Cell::new(0),
        draining: Cell::new(false),
        wait_told: Told::default(),
        identities: seed.identities,
        absent: seed.absent,
        hosts: seed.hosts,
        lateness: Lateness::new(),
        stirred: Signal::default(),
        seen: RefCell::default(),
        lines: seed.lines,
        unwritten: RefCell::default(),
    });
    let ticking = shard.clone();
    monoio::spawn(async move { ticking.tick_for_ever().await });
    orders::carry_out(&shard, seed.orders).await;
    shard.hand_over_lines();
}

impl Shard {
    async fn tick_for_ever(&self) {
        let mut quiet = 0_u32;
        loop {
            self.lateness.pass_a_tick(&self.stats.timings.tick_delay).await;
            let now = Instant::now();
            for pod in self.worlds() {
                pod.tick(now);
            }
            self.table.tick();
            self.buffers.shed_spare();
            self.hand_over_lines();
            quiet = if self.lateness.is_busy() { 0 } else { quiet.saturating_add(1) };
            if limits::GIVE_BACK_TICKS.contains(&quiet) {
                heap::give_back();
            }
            if quiet >= limits::GIVE_BACK_TICKS[0] && self.is_at_rest() {
                self.buffers.give_back();
                self.datagram.take();
                self.stirred.wait().await;
                quiet = 0;
            }
        }
    }

    /// Nobody has a deadline, and nothing waits to be given back.
    fn is_at_rest(&self) -> bool {
        self.unwritten.borrow().0.capacity() == 0 && self.worlds().iter().all(|pod| pod.is_at_rest())
    }

    /// Something has come in: the tick looks after it from now on. It looks once more in any case, so that nothing is
    /// missed that ends before it does.
    pub(super) fn stir(&self) {
        self.stirred.raise();
    }

    /// Every pod that is here, those that are leaving included.
    pub(super) fn worlds(&self) -> Vec<Rc<PodWorld>> {
        self.pods.borrow().values().chain(self.leaving.borrow().iter()).cloned().collect()
    }

    /// What is counted and held here, for one scrape.
    pub(super) async fn tell(&self) -> ShardStats {
        let mut told = self.stats.report(self.index).await;
        if self.revocations.generation() == 0 {
            told.crl_rejections = Vec::new();
        }
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        told.holding.label_sets = count(self.stats.label_sets());
        for pod in self.worlds() {
            pod.hold(&mut told.holding);
            told.work.tasks += count(pod.tasks());
            let info = &pod.pod.info;
            told.pod_sockets.push((info.namespace.clone(), info.name.clone(), pod.sockets()));
        }
        let usage = proc::thread_usage();
        told.work.busy_s = usage.cpu.as_secs_f64();
        told.work.parks = usage.voluntary_switches;
        told.work.longest_stall_s = self.lateness.longest_stall().as_secs_f64();
        told.work.cpu_wait_s = self.lateness.cpu_wait().as_secs_f64();
        told
    }

    /// Tells control; a full mailbox is waited for, since control's bookkeeping rests on reports.
    pub async fn report(&self, report: Report) {
        let mut report = report;
        while let Err(back) = self.reports.post(report) {
            report = back;
            monoio::time::sleep(Duration::from_millis(limits::MAILBOX_RETRY_MS)).await;
        }
    }

    /// Appends log lines; they leave in chunks, so that a busy shard doesn't wake the writer for each.
    pub fn write_line(self: &Rc<Self>, write: impl FnOnce(&mut Vec<u8>)) {
        let (first, full) = {
            let mut unwritten = self.unwritten.borrow_mut();
            write(&mut unwritten.0);
            unwritten.1 += 1;
            (unwritten.1 == 1, unwritten.0.len() >= LINES_BYTES)
        };
        if full {
            self.hand_over_lines();
        } else if first {
            let shard = self.clone();
            monoio::spawn(async move {
                monoio::time::sleep(Duration::from_millis(limits::LINES_WAIT_MS)).await;
                shard.hand_over_lines();
            });
        }
    }

    pub fn lines(&self) -> &LineSink {
        &self.lines
    }

    pub(super) fn hand_over_lines(&self) {
        let mut unwritten = self.unwritten.borrow_mut();
        // As much again is likely; a tick without lines gives it back.
        let next = Vec::with_capacity(unwritten.0.len());
        let (bytes, count) = std::mem::replace(&mut *unwritten, (next, 0));
        if count > 0 {
            self.lines.send(Lines { bytes, count });
        }
    }
}

/// The outcome, or `None` after so many milliseconds.
pub async fn within<R>(deadline_ms: u64, work: impl Future<Output = R>) -> Option<R> {
    monoio::time::timeout(Duration::from_millis(deadline_ms), work).await.ok()
}
