//! Tunnels that are up, by whom they serve. Callers of a key that is being dialled wait for that dial: one handshake
//! for up to a tunnel's worth of waiters. A dial is a task of its own, so nobody's cancellation strands the others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

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
}

/// One pod's tunnels on this shard.
pub struct Pool {
    keys: RefCell<HashMap<Key, Rc<Slot>, foldhash::fast::RandomState>>,
    streams_each: usize,
    closed: Cell<bool>,
    stats: Rc<Stats>,
}

#[derive(Default)]
struct Slot {
    tunnels: RefCell<Vec<Pooled>>,
    waiters: RefCell<Vec<Rc<Waiter>>>,
    dialling: Cell<usize>,
}

/// A tunnel with the places taken on it.
#[derive(Clone)]
struct Pooled {
    tunnel: Rc<Tunnel>,
    taken: Rc<Cell<usize>>,
}

#[derive(Default)]
struct Waiter {
    signal: Signal,
    outcome: RefCell<Option<Result<Reservation, Failure>>>,
}

/// A place for one stream on a tunnel; dropping it gives the place back.
pub struct Reservation {
    pub tunnel: Rc<Tunnel>,
    taken: Rc<Cell<usize>>,
    slot: Rc<Slot>,
    streams_each: usize,
}

impl Pool {
    pub fn new(streams_each: u16, stats: Rc<Stats>) -> Self {
        Self {
            keys: RefCell::default(),
            streams_each: usize::from(streams_each).max(1),
            closed: Cell::new(false),
            stats,
        }
    }

    /// A place on a tunnel of this key: on one that is up, or on one that `dial` brings up.
    pub async fn acquire<D>(self: &Rc<Self>, key: &Key, dial: impl Fn() -> D) -> Result<Reservation, Failure>
    where
        D: Future<Output = Result<Rc<Tunnel>, Failure>> + 'static,
    {
        if self.closed.get() {
            return Err(Failure::PoolDraining);
        }
        let slot = self.slot(key);
        if let Some(reservation) = slot.reserve(self.streams_each) {
            bump(&self.stats.engine.pool_hits);
            return Ok(reservation);
        }
        let waiter = Rc::new(Waiter::default());
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

    fn slot(&self, key: &Key) -> Rc<Slot> {
        let mut keys = self.keys.borrow_mut();
        match keys.get(key) {
            Some(slot) => slot.clone(),
            None => keys.entry(key.clone()).or_default().clone(),
        }
    }

    fn dial<D>(self: &Rc<Self>, key: Key, slot: &Rc<Slot>, dial: D)
    where
        D: Future<Output = Result<Rc<Tunnel>, Failure>> + 'static,
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
    pub fn tick(&self) {
        self.keys.borrow_mut().retain(|_, slot| !slot.is_unused());
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
    pub fn tunnels(&self) -> Vec<Rc<Tunnel>> {
        let keys = self.keys.borrow();
        keys.values()
            .flat_map(|slot| {
                slot.tunnels.borrow().iter().map(|pooled| pooled.tunnel.clone()).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl Slot {
    fn reserve(self: &Rc<Self>, streams_each: usize) -> Option<Reservation> {
        let mut tunnels = self.tunnels.borrow_mut();
        tunnels.retain(|pooled| !pooled.tunnel.is_finished());
        let found =
            tunnels.iter().find(|pooled| pooled.taken.get() < streams_each && pooled.tunnel.has_room())?;
        Some(self.take(found, streams_each))
    }

    fn take(self: &Rc<Self>, pooled: &Pooled, streams_each: usize) -> Reservation {
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

    /// A tunnel has come up: as many waiters as it carries get a place.
    fn welcome(self: &Rc<Self>, tunnel: Rc<Tunnel>, streams_each: usize) {
        let pooled = Pooled { tunnel, taken: Rc::default() };
        self.tunnels.borrow_mut().push(pooled);
        self.serve_waiters(streams_each);
    }

    fn serve_waiters(self: &Rc<Self>, streams_each: usize) {
        while !self.waiters.borrow().is_empty() {
            let Some(reservation) = self.reserve(streams_each) else { return };
            let waiter = self.waiters.borrow_mut().remove(0);
            *waiter.outcome.borrow_mut() = Some(Ok(reservation));
            waiter.signal.raise();
        }
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

    fn is_unused(&self) -> bool {
        self.tunnels.borrow_mut().retain(|pooled| !pooled.tunnel.is_finished());
        self.tunnels.borrow().is_empty() && self.waiters.borrow().is_empty() && self.dialling.get() == 0
    }
}

/// Counts a dial while it is under way, also where its task is dropped.
struct Underway<'a>(&'a Rc<Slot>);

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.0.dialling.set(self.0.dialling.get() - 1);
    }
}

/// Takes a waiter out of the queue where it leaves early.
struct Leaving<'a> {
    slot: &'a Rc<Slot>,
    waiter: &'a Rc<Waiter>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.slot.waiters.borrow_mut().retain(|other| !Rc::ptr_eq(other, self.waiter));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - 1);
        if !self.slot.waiters.borrow().is_empty() {
            self.slot.serve_waiters(self.streams_each);
        }
    }
}
