//! Tunnels that are up, by whom they serve. Callers of a key that is being dialled wait for that dial: one handshake
//! for up to a tunnel's worth of waiters. A dial is a task of its own, so nobody's cancellation strands the others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::limits;
use crate::base::text::Text;
use crate::mesh::identity::Identity;
use crate::shard::failure::Failure;
use crate::shard::signal::Signal;
use crate::shard::stats::{Stats, bump};
use crate::shard::tunnel::Tunnel;

/// Whom a tunnel serves. The source address is in it because the far side reports and checks it; the pod is, because
/// each pod has a pool of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub source: IpAddr,
    pub identity: Identity,
    /// Identities that the far side may have, in order.
    pub expected: Arc<[Identity]>,
    pub destination: SocketAddr,
    /// A nested tunnel: whom its own far end may be, behind `destination`.
    pub inner: Option<Arc<[Identity]>>,
    /// What a nested tunnel's outer stream was asked for.
    pub authority: Option<Text>,
}

/// What a pool keeps, as far as a pool cares.
pub trait Carries: 'static {
    /// Streams that the far side takes at once, as far as that is known.
    fn most_streams(&self) -> usize;
    /// Whether another stream can be opened now.
    fn has_room(&self) -> bool;
    /// No new stream will ever be opened here.
    fn is_finished(&self) -> bool;
    /// Since when it has had no stream; none while it has one, or is going away.
    fn idle_since(&self) -> Option<Instant>;
    /// No new streams; those that are open go on.
    fn drain(&self);
    fn abort(&self);
}

/// One pod's tunnels on this shard.
pub struct Pool<T: Carries = Tunnel> {
    keys: RefCell<HashMap<Key, Rc<Slot<T>>, foldhash::fast::RandomState>>,
    streams_each: usize,
    closed: Cell<bool>,
    stats: Rc<Stats>,
}

struct Slot<T: Carries> {
    tunnels: RefCell<Vec<Pooled<T>>>,
    waiters: RefCell<Vec<Rc<Waiter<T>>>>,
    dialling: Cell<usize>,
}

/// A tunnel with the places taken on it.
struct Pooled<T> {
    tunnel: Rc<T>,
    taken: Rc<Cell<usize>>,
}

struct Waiter<T: Carries> {
    signal: Signal,
    outcome: RefCell<Option<Result<Reservation<T>, Failure>>>,
}

/// A place for one stream on a tunnel; dropping it gives the place back.
pub struct Reservation<T: Carries = Tunnel> {
    pub tunnel: Rc<T>,
    taken: Rc<Cell<usize>>,
    slot: Rc<Slot<T>>,
    streams_each: usize,
}

impl<T: Carries> Pool<T> {
    pub fn new(streams_each: u16, stats: Rc<Stats>) -> Self {
        Self {
            keys: RefCell::default(),
            streams_each: usize::from(streams_each).max(1),
            closed: Cell::new(false),
            stats,
        }
    }

    /// A place on a tunnel of this key: on one that is up, or on one that `dial` brings up.
    pub async fn acquire<D>(
        self: &Rc<Self>,
        key: &Key,
        dial: impl Fn() -> D,
    ) -> Result<Reservation<T>, Failure>
    where
        D: Future<Output = Result<Rc<T>, Failure>> + 'static,
    {
        if self.closed.get() {
            return Err(Failure::PoolDraining);
        }
        let slot = self.slot(key);
        if let Some(reservation) = slot.reserve(self.streams_each) {
            bump(&self.stats.engine.pool_hits);
            return Ok(reservation);
        }
        bump(&self.stats.engine.pool_misses);
        let waiter = Rc::new(Waiter { signal: Signal::default(), outcome: RefCell::default() });
        slot.waiters.borrow_mut().push(waiter.clone());
        let _leaving = Leaving { slot: &slot, waiter: &waiter };
        loop {
            if slot.needs_dial(self.streams_each) {
                self.dial(key.clone(), &slot, dial());
            }
            waiter.signal.wait().await;
            if let Some(outcome) = waiter.outcome.take() {
                return outcome;
            }
        }
    }

    fn slot(&self, key: &Key) -> Rc<Slot<T>> {
        let mut keys = self.keys.borrow_mut();
        match keys.get(key) {
            Some(slot) => slot.clone(),
            None => keys.entry(key.clone()).or_default().clone(),
        }
    }

    fn dial<D>(self: &Rc<Self>, key: Key, slot: &Rc<Slot<T>>, dial: D)
    where
        D: Future<Output = Result<Rc<T>, Failure>> + 'static,
    {
        bump(&self.stats.engine.pool_dials);
        slot.dialling.set(slot.dialling.get() + 1);
        let (pool, slot) = (self.clone(), slot.clone());
        monoio::spawn(async move {
            let underway = Underway(&slot);
            let outcome = Box::pin(dial).await;
            drop(underway);
            match outcome {
                Ok(tunnel) if pool.closed.get() => tunnel.abort(),
                Ok(tunnel) => slot.welcome(tunnel, pool.streams_each),
                Err(failure) => slot.fail_all(&failure),
            }
            slot.nudge_leftover();
            pool.tidy(&key);
        });
    }

    /// Forgets tunnels that will take no more streams, and keys without any.
    fn tidy(&self, key: &Key) {
        let mut keys = self.keys.borrow_mut();
        if keys.get(key).is_some_and(|slot| slot.is_unused()) {
            keys.remove(key);
        }
    }

    /// Looks after all of it; called about once a second.
    pub fn tick(&self, now: Instant) {
        self.keys.borrow_mut().retain(|_, slot| {
            slot.let_surplus_go(now);
            !slot.is_unused()
        });
    }

    /// Whether it knows no peer.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.borrow().is_empty()
    }

    /// Ends every tunnel, also those still being dialled, and everybody's wait for one.
    pub fn close(&self) {
        self.closed.set(true);
        for tunnel in self.tunnels() {
            tunnel.abort();
        }
        for slot in self.keys.borrow().values() {
            slot.fail_waiters(&Failure::PoolDraining);
        }
    }

    /// Tunnels that are up.
    pub fn tunnels(&self) -> Vec<Rc<T>> {
        let keys = self.keys.borrow();
        keys.values()
            .flat_map(|slot| {
                slot.tunnels.borrow().iter().map(|pooled| pooled.tunnel.clone()).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl<T: Carries> Default for Slot<T> {
    fn default() -> Self {
        Self { tunnels: RefCell::default(), waiters: RefCell::default(), dialling: Cell::new(0) }
    }
}

impl<T: Carries> Pooled<T> {
    /// Places are counted against the far side's number too: whoever has one may not have opened its stream yet.
    fn has_place(&self, streams_each: usize) -> bool {
        self.taken.get() < streams_each.min(self.tunnel.most_streams()) && self.tunnel.has_room()
    }
}

impl<T: Carries> Slot<T> {
    fn reserve(self: &Rc<Self>, streams_each: usize) -> Option<Reservation<T>> {
        let mut tunnels = self.tunnels.borrow_mut();
        tunnels.retain(|pooled| !pooled.tunnel.is_finished());
        let found = tunnels.iter().find(|pooled| pooled.has_place(streams_each))?;
        Some(self.take(found, streams_each))
    }

    fn take(self: &Rc<Self>, pooled: &Pooled<T>, streams_each: usize) -> Reservation<T> {
        pooled.taken.set(pooled.taken.get() + 1);
        Reservation {
            tunnel: pooled.tunnel.clone(),
            taken: pooled.taken.clone(),
            slot: self.clone(),
            streams_each,
        }
    }

    /// More wait than the dials under way will serve.
    fn needs_dial(&self, streams_each: usize) -> bool {
        self.waiters.borrow().len() > self.dialling.get() * streams_each
    }

    /// A tunnel has come up: as many waiters as it carries get a place. One that carries nobody counts as a failed
    /// dial, or those who wait would dial for ever.
    fn welcome(self: &Rc<Self>, tunnel: Rc<T>, streams_each: usize) {
        let pooled = Pooled { tunnel, taken: Rc::default() };
        self.tunnels.borrow_mut().push(pooled);
        let waiting = self.waiters.borrow().len();
        if self.serve_waiters(streams_each) == 0 && waiting > 0 {
            self.fail_all(&Failure::Http2("the peer takes no streams".to_owned()));
        }
    }

    /// Returns how many got a place.
    fn serve_waiters(self: &Rc<Self>, streams_each: usize) -> usize {
        let mut served = 0;
        while !self.waiters.borrow().is_empty() {
            let Some(reservation) = self.reserve(streams_each) else { break };
            let waiter = self.waiters.borrow_mut().remove(0);
            *waiter.outcome.borrow_mut() = Some(Ok(reservation));
            waiter.signal.raise();
            served += 1;
        }
        served
    }

    fn fail_all(&self, failure: &Failure) {
        if self.dialling.get() > 0 {
            // Another dial is under way, and what it brings may serve everybody who waits.
            return;
        }
        self.fail_waiters(failure);
    }

    fn fail_waiters(&self, failure: &Failure) {
        for waiter in self.waiters.take() {
            *waiter.outcome.borrow_mut() = Some(Err(failure.clone()));
            waiter.signal.raise();
        }
    }

    /// A tunnel may carry fewer streams than hoped: whoever still waits, with no dial under way, starts another.
    fn nudge_leftover(&self) {
        if self.dialling.get() == 0
            && let Some(waiter) = self.waiters.borrow().first()
        {
            waiter.signal.raise();
        }
    }

    /// Of the tunnels without a stream one is kept for whoever comes next. The others are what a burst left: they go
    /// soon, not only when the last one does.
    fn let_surplus_go(&self, now: Instant) {
        let enough = Duration::from_millis(limits::SURPLUS_TUNNEL_MS);
        let is_surplus = |pooled: &Pooled<T>| {
            let idle = pooled.tunnel.idle_since().map(|since| now.saturating_duration_since(since));
            pooled.taken.get() == 0 && idle.is_some_and(|idle| idle > enough)
        };
        let tunnels = self.tunnels.borrow();
        let idle = tunnels.iter().filter(|pooled| is_surplus(pooled));
        idle.skip(1).for_each(|pooled| pooled.tunnel.drain());
    }

    fn is_unused(&self) -> bool {
        self.tunnels.borrow_mut().retain(|pooled| !pooled.tunnel.is_finished());
        self.tunnels.borrow().is_empty() && self.waiters.borrow().is_empty() && self.dialling.get() == 0
    }
}

/// Counts a dial while it is under way, also where its task is dropped.
struct Underway<'a, T: Carries>(&'a Rc<Slot<T>>);

impl<T: Carries> Drop for Underway<'_, T> {
    fn drop(&mut self) {
        self.0.dialling.set(self.0.dialling.get() - 1);
    }
}

/// Takes a waiter out of the queue where it leaves early.
struct Leaving<'a, T: Carries> {
    slot: &'a Rc<Slot<T>>,
    waiter: &'a Rc<Waiter<T>>,
}

impl<T: Carries> Drop for Leaving<'_, T> {
    fn drop(&mut self) {
        self.slot.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, self.waiter));
        // It may be the one that was asked to dial for the others.
        self.slot.nudge_leftover();
    }
}

impl<T: Carries> Drop for Reservation<T> {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - 1);
        if !self.slot.waiters.borrow().is_empty() {
            self.slot.serve_waiters(self.streams_each);
        }
    }
}
