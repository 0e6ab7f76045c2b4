//! Which certificates this node holds, and when each is signed anew. Decisions only: signing itself is `signing`'s.
//! Time comes in as wall-clock time, so that a clock that jumps (suspend and resume) makes a renewal due at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{debug, info, warn};

use crate::base::limits::{
    CLOCK_STEP_MS, IDENTITIES_KEPT, SIGNING_BACKOFF_FIRST_MS, SIGNING_BACKOFF_LAST_MS, SIGNING_DENIED_MS,
    SIGNINGS_AT_ONCE,
};
use crate::base::text::Text;
use crate::bridge::identities::{Identities, Known, Standing};
use crate::control::signing::Unsigned;
use crate::mesh::identity::Identity;
use crate::tls::config::Credential;

/// The keeper of certificates: decides what is signed next and tells the standing to `Identities`.
pub struct Ca {
    identities: Arc<Identities>,
    kept: HashMap<Identity, Kept>,
    queue: Queue,
    under_way: usize,
    tickets: u64,
    /// uid of a local workload -> its identity.
    local: HashMap<Text, Identity>,
    /// How many local workloads have an identity.
    workloads: HashMap<Identity, usize>,
    /// The wall clock when it was last looked at.
    clock: Option<SystemTime>,
    random: fastrand::Rng,
}

/// Leave to sign one identity; comes back with the outcome.
#[derive(Debug)]
pub struct Ticket {
    identity: Identity,
    number: u64,
}

impl Ticket {
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

/// What goes first when several are due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    /// A connection waits.
    Awaited,
    /// A local workload will need it.
    Ahead,
    /// One is held that is valid still.
    Renewal,
}

struct Kept {
    place: Place,
    backoff: Duration,
    held: Option<Arc<Credential>>,
    last_error: Option<Text>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Queued(Urgency, SystemTime),
    UnderWay(u64),
}

impl Kept {
    fn valid(&self, now: SystemTime) -> Option<&Arc<Credential>> {
        self.held.as_ref().filter(|held| held.not_after() > now)
    }
}

impl Ca {
    pub fn new(identities: Arc<Identities>, random: fastrand::Rng) -> Self {
        Self {
            identities,
            kept: HashMap::new(),
            queue: Queue::default(),
            under_way: 0,
            tickets: 0,
            local: HashMap::new(),
            workloads: HashMap::new(),
            clock: None,
            random,
        }
    }

    /// A connection waits for this identity. One whose last attempt failed keeps the time of its retry: until then
    /// the stored reason is the answer (as in the reference), so that connections never storm an authority.
    pub fn want(&mut self, identity: Identity, now: SystemTime) {
        self.take_up(identity, Urgency::Awaited, now);
    }

    /// A workload of this node came, changed or (`None`) left. The identity that no local workload has any more
    /// is forgotten; a new one is signed ahead of its first connection where `prefetch` says so.
    pub fn local(&mut self, uid: Text, identity: Option<Identity>, prefetch: bool, now: SystemTime) {
        let before = match identity.clone() {
            Some(identity) => self.local.insert(uid, identity),
            None => self.local.remove(&uid),
        };
        if before == identity {
            return;
        }
        if let Some(identity) = identity {
            *self.workloads.entry(identity.clone()).or_default() += 1;
            self.adopt(&identity, now);
            if prefetch {
                self.take_up(identity, Urgency::Ahead, now);
            }
        }
        if let Some(before) = before {
            self.left(&before);
        }
    }

    /// The next identity to sign, `None` where none is due or as many are under way as may be.
    pub fn next(&mut self, now: SystemTime) -> Option<Ticket> {
        self.follow_the_clock(now);
        while self.under_way < SIGNINGS_AT_ONCE {
            let (urgency, identity) = self.queue.take(now)?;
            if urgency != Urgency::Awaited && !self.workloads.contains_key(&identity) {
                self.let_end(identity, now);
                continue;
            }
            let Some(kept) = self.kept.get_mut(&identity) else { continue };
            self.tickets += 1;
            self.under_way += 1;
            kept.place = Place::UnderWay(self.tickets);
            return Some(Ticket { identity, number: self.tickets });
        }
        None
    }

    /// How long nothing is due; none where nothing can be until a signing under way has ended.
    pub fn quiet_for(&self, now: SystemTime) -> Option<Duration> {
        let due = self.queue.first_due().filter(|_| self.under_way < SIGNINGS_AT_ONCE)?;
        Some(due.duration_since(now).unwrap_or_default())
    }

    /// How a signing ended. Returns whether a shard should look again. The answer for an identity that was
    /// forgotten meanwhile is dropped.
    pub fn finished(
        &mut self,
        ticket: Ticket,
        outcome: Result<Credential, Unsigned>,
        now: SystemTime,
    ) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        let Ticket { identity, number } = ticket;
        if self.kept.get(&identity).is_none_or(|kept| kept.place != Place::UnderWay(number)) {
            debug!(target: "ztunnel::identity::manager", id = %identity, "the identity is no longer needed");
            return false;
        }
        match outcome.and_then(|credential| valid_now(credential, now)) {
            Ok(credential) => self.hold(&identity, credential, now),
            Err(unsigned) => self.put_off(&identity, &unsigned, now),
        }
    }

    /// Keeps an identity from now on, or hurries it on where it is kept.
    fn take_up(&mut self, identity: Identity, urgency: Urgency, now: SystemTime) {
        if let Some(kept) = self.kept.get_mut(&identity) {
            if let Place::Queued(before, due) = kept.place
                && urgency < before
                && kept.valid(now).is_none()
            {
                kept.place = Place::Queued(urgency, due);
                self.queue.remove(before, due, &identity);
                self.queue.put(urgency, due, identity);
            }
            return;
        }
        if self.kept.len() >= IDENTITIES_KEPT {
            self.forget_one_without_workload();
        }
        self.identities.set(identity.clone(), Standing::Initializing);
        self.queue.put(urgency, now, identity.clone());
        let place = Place::Queued(urgency, now);
        self.kept.insert(identity, Kept { place, backoff: first_backoff(), held: None, last_error: None });
    }

    fn hold(&mut self, identity: &Identity, credential: Credential, now: SystemTime) -> bool {
        let Some(kept) = self.kept.get_mut(identity) else { return false };
        // Counted from now: authorities begin a certificate some minutes back, which is much of a short life.
        let left = credential.not_after().duration_since(now).unwrap_or_default();
        let due = now + left.mul_f64(renewal_part(&mut self.random)).max(first_backoff());
        kept.backoff = first_backoff();
        kept.last_error = None;
        kept.held = Some(Arc::new(credential));
        self.plan(identity, Urgency::Renewal, due, now);
        true
    }

    fn put_off(&mut self, identity: &Identity, unsigned: &Unsigned, now: SystemTime) -> bool {
        let Some(kept) = self.kept.get_mut(identity) else { return false };
        let mut retry = kept.backoff.mul_f64(0.8 + 0.4 * self.random.f64());
        kept.backoff = (kept.backoff * 2).min(Duration::from_millis(SIGNING_BACKOFF_LAST_MS));
        if unsigned.denied {
            retry = retry.max(Duration::from_millis(SIGNING_DENIED_MS));
        }
        kept.last_error = Some(unsigned.why.clone());
        let due = now + retry;
        if let Some(until) = kept.valid(now).map(|held| held.not_after()) {
            let due = due.min(until);
            info!(
                target: "ztunnel::identity::manager", id = %identity,
                "certificate renewal failed ({unsigned}); retaining existing valid certificate until {until:?}; \
                 next retry at {due:?}"
            );
            self.plan(identity, Urgency::Renewal, due, now);
            return false;
        }
        kept.held = None;
        warn!(
            target: "ztunnel::identity::manager", id = %identity,
            "certificate fetch failed ({unsigned}) and no valid existing certificate; will retry in {retry:?} \
             (backoff capped at 150s)"
        );
        self.plan(identity, Urgency::Ahead, due, now);
        true
    }

    /// Puts an identity's next signing into the queue and tells its standing.
    fn plan(&mut self, identity: &Identity, urgency: Urgency, due: SystemTime, now: SystemTime) {
        let Some(kept) = self.kept.get_mut(identity) else { return };
        if let Place::Queued(before, at) = kept.place {
            self.queue.remove(before, at, identity);
        }
        kept.place = Place::Queued(urgency, due);
        self.queue.put(urgency, due, identity.clone());
        let standing = match (kept.valid(now), &kept.last_error) {
            (Some(held), _) => Standing::Available(held.clone()),
            (None, Some(error)) => Standing::Unavailable(error.clone()),
            (None, None) => Standing::Initializing,
        };
        let known = Known { standing, last_error: kept.last_error.clone(), next_attempt: Some(due) };
        self.identities.set(identity.clone(), known);
    }

    /// No local workload has it, and no connection waits: a certificate is asked for in nobody's name, so what is
    /// held is used until it ends, and then forgotten.
    fn let_end(&mut self, identity: Identity, now: SystemTime) {
        let end = self.kept.get(&identity).and_then(|kept| kept.valid(now)).map(|held| held.not_after());
        match end {
            Some(end) => self.plan(&identity, Urgency::Renewal, end, now),
            None => self.forget(&identity),
        }
    }

    /// What was kept for its connections alone is renewed from now on.
    fn adopt(&mut self, identity: &Identity, now: SystemTime) {
        let Some(kept) = self.kept.get(identity) else { return };
        if let (Place::Queued(Urgency::Renewal, due), Some(held)) = (kept.place, kept.valid(now)) {
            let life = held.not_after().duration_since(held.not_before()).unwrap_or_default();
            let due = (held.not_before() + life.mul_f64(renewal_part(&mut self.random))).min(due);
            self.plan(identity, Urgency::Renewal, due, now);
        }
    }

    /// One local workload less has this identity.
    fn left(&mut self, identity: &Identity) {
        let Some(count) = self.workloads.get_mut(identity) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.workloads.remove(identity);
            self.forget(identity);
        }
    }

    fn forget(&mut self, identity: &Identity) {
        let Some(kept) = self.kept.remove(identity) else { return };
        if let Place::Queued(urgency, due) = kept.place {
            self.queue.remove(urgency, due, identity);
        }
        self.identities.forget(identity);
    }

    /// Room for a new one: the one nobody local has that is due first.
    fn forget_one_without_workload(&mut self) {
        let due = |kept: &Kept| match kept.place {
            Place::Queued(_, due) => due,
            Place::UnderWay(_) => SystemTime::UNIX_EPOCH,
        };
        let spare = self.kept.iter().filter(|(identity, _)| !self.workloads.contains_key(*identity));
        let oldest = spare.min_by_key(|(_, kept)| due(kept)).map(|(identity, _)| identity.clone());
        if let Some(oldest) = oldest {
            self.forget(&oldest);
        }
    }

    /// A clock that was set back takes everything planned with it: else a retry would wait for days. What was signed by
    /// a time that is yet to come is refused by every peer, so it is signed anew; once, since an authority whose clock
    /// is ahead of ours signs nothing better.
    fn follow_the_clock(&mut self, now: SystemTime) {
        let before = self.clock.replace(now).unwrap_or(now);
        let Ok(back) = before.duration_since(now) else { return };
        if back < Duration::from_millis(CLOCK_STEP_MS) {
            return;
        }
        warn!("the clock went back by {back:?}: renewals are planned anew");
        self.queue = Queue::default();
        for (identity, kept) in &mut self.kept {
            if let Place::Queued(urgency, due) = kept.place {
                let unborn = kept.held.as_ref().is_some_and(|held| held.not_before() > now);
                let (urgency, due) = if unborn {
                    (Urgency::Ahead, now)
                } else {
                    (urgency, due.checked_sub(back).unwrap_or(SystemTime::UNIX_EPOCH))
                };
                kept.place = Place::Queued(urgency, due);
                self.queue.put(urgency, due, identity.clone());
            }
        }
    }
}

/// What is due, the most urgent first and then the oldest.
#[derive(Default)]
struct Queue {
    awaited: BTreeSet<(SystemTime, Identity)>,
    ahead: BTreeSet<(SystemTime, Identity)>,
    renewals: BTreeSet<(SystemTime, Identity)>,
}

impl Queue {
    fn of(&mut self, urgency: Urgency) -> &mut BTreeSet<(SystemTime, Identity)> {
        match urgency {
            Urgency::Awaited => &mut self.awaited,
            Urgency::Ahead => &mut self.ahead,
            Urgency::Renewal => &mut self.renewals,
        }
    }

    fn put(&mut self, urgency: Urgency, due: SystemTime, identity: Identity) {
        self.of(urgency).insert((due, identity));
    }

    fn remove(&mut self, urgency: Urgency, due: SystemTime, identity: &Identity) {
        self.of(urgency).remove(&(due, identity.clone()));
    }

    fn first_due(&self) -> Option<SystemTime> {
        let queues = [&self.awaited, &self.ahead, &self.renewals];
        queues.into_iter().filter_map(|queue| queue.first().map(|(due, _)| *due)).min()
    }

    fn take(&mut self, now: SystemTime) -> Option<(Urgency, Identity)> {
        for urgency in [Urgency::Awaited, Urgency::Ahead, Urgency::Renewal] {
            let queue = self.of(urgency);
            if queue.first().is_some_and(|(due, _)| *due <= now) {
                let (_, identity) = queue.pop_first()?;
                return Some((urgency, identity));
            }
        }
        None
    }
}

/// A certificate that isn't valid by our own clock would be refused by every peer.
fn valid_now(credential: Credential, now: SystemTime) -> Result<Credential, Unsigned> {
    let (from, until) = (credential.not_before(), credential.not_after());
    let shown = |at: SystemTime| time::OffsetDateTime::from(at);
    let what = if until <= now {
        format!("has already ended, at {}", shown(until))
    } else if from > now {
        format!("isn't valid before {}", shown(from))
    } else {
        return Ok(credential);
    };
    Err(Unsigned::failed(format_args!(
        "the certificate for {} {what}; now is {} (hint: compare this node's clock with the control plane's)",
        credential.identity(),
        shown(now)
    )))
}

/// Half of a life, up to a tenth of it earlier, so that a node's certificates drift apart.
fn renewal_part(random: &mut fastrand::Rng) -> f64 {
    0.5 - 0.1 * random.f64()
}

fn first_backoff() -> Duration {
    Duration::from_millis(SIGNING_BACKOFF_FIRST_MS)
}

#[cfg(test)]
#[path = "ca_tests.rs"]
mod tests;
