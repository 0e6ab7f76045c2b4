//! The endpoints of a service, laid out for one draw in O(log n): sorted by what the balancer prefers, each with
//! the capacities before it summed up, so that those which fit a caller best stand side by side. A draw is only a
//! proposal: what depends on port and network is looked at afterwards (`mesh::balance`).

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::mesh::service::{LoadBalancerMode, Scope, Service};
use crate::mesh::workload::Workload;

/// A table that is made when it is first asked for. Clones share what is made already; none equals another less for it.
#[derive(Clone, Default)]
pub(crate) struct Lazy(OnceLock<Option<Arc<Choices>>>);

impl Lazy {
    /// Readers never wait for each other: two that come at once both make it, and one of the two stays.
    pub fn get_or_make(&self, make: impl FnOnce() -> Option<Choices>) -> Option<&Choices> {
        if self.0.get().is_none() {
            let _ = self.0.set(make().map(Arc::new));
        }
        self.0.get().and_then(Option::as_deref)
    }
}

impl PartialEq for Lazy {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// See above.
pub(crate) struct Choices {
    whole: Table,
    /// Where the network is preferred first: the same without regard to networks, for callers that have nobody in
    /// theirs.
    apart: Option<Table>,
    strict: bool,
}

/// Members sorted by the values of `scopes`, in this order.
struct Table {
    scopes: Vec<Scope>,
    members: Vec<Member>,
}

struct Member {
    workload: Arc<Workload>,
    /// Capacities up to this one, it included.
    until: u64,
}

/// Neighbours in a table that fit a caller equally well.
pub(crate) struct Near<'a> {
    members: &'a [Member],
    from: u64,
}

impl Choices {
    /// `members`: those that the service's health policy admits.
    pub fn new(service: &Service, members: impl Iterator<Item = Arc<Workload>>) -> Self {
        let mode = service.mode();
        let scopes = match (&service.load_balancer, mode) {
            (None, _) | (_, LoadBalancerMode::Standard) => &[][..],
            (Some(balancer), _) => &balancer.routing_preferences,
        };
        let members: Vec<_> = members.collect();
        let apart = match scopes {
            [Scope::Network, rest @ ..] => Some(Table::new(rest, &members)),
            _ => None,
        };
        let strict = mode == LoadBalancerMode::Strict;
        Self { whole: Table::new(scopes, &members), apart, strict }
    }

    /// Those that fit the caller best; nobody where a strict balancer finds nobody near.
    pub fn best(&self, source: &Workload) -> Option<Near<'_>> {
        let all = self.whole.scopes.len();
        if self.strict {
            return self.whole.near(source, all);
        }
        let least = usize::from(self.apart.is_some());
        let found = (least..=all).rev().find_map(|depth| self.whole.near(source, depth));
        found.or_else(|| {
            let apart = self.apart.as_ref()?;
            (0..all).rev().find_map(|depth| apart.near(source, depth))
        })
    }
}

impl Table {
    fn new(scopes: &[Scope], members: &[Arc<Workload>]) -> Self {
        let mut sorted = members.to_vec();
        if !scopes.is_empty() {
            sorted.sort_by(|left, right| compare(scopes, left, right));
        }
        let mut until = 0;
        let members = sorted.into_iter().map(|workload| {
            until += u64::from(workload.capacity);
            Member { workload, until }
        });
        Self { scopes: scopes.to_vec(), members: members.collect() }
    }

    /// Members that agree with the caller in the first so many scopes; `None` where there is none.
    fn near(&self, source: &Workload, depth: usize) -> Option<Near<'_>> {
        let scopes = self.scopes.get(..depth)?;
        let place = |before: fn(Ordering) -> bool| {
            self.members.partition_point(|member| before(compare(scopes, &member.workload, source)))
        };
        let Range { start, end } = place(Ordering::is_lt)..place(Ordering::is_le);
        let members = self.members.get(start..end).filter(|members| !members.is_empty())?;
        let before = start.checked_sub(1).and_then(|before| self.members.get(before));
        Some(Near { members, from: before.map_or(0, |member| member.until) })
    }
}

impl<'a> Near<'a> {
    /// One of them by capacity; `None` where none has any.
    pub fn draw(&self, random: &mut fastrand::Rng) -> Option<&'a Arc<Workload>> {
        let until = self.members.last()?.until;
        if until <= self.from {
            return None;
        }
        let drawn = random.u64(self.from..until);
        let place = self.members.partition_point(|member| member.until <= drawn);
        self.members.get(place).map(|member| &member.workload)
    }
}

fn compare(scopes: &[Scope], left: &Workload, right: &Workload) -> Ordering {
    let each = scopes.iter().map(|scope| value(*scope, left).cmp(value(*scope, right)));
    each.fold(Ordering::Equal, Ordering::then)
}

/// What a scope compares.
pub(super) fn value(scope: Scope, workload: &Workload) -> &str {
    match scope {
        Scope::Region => &workload.locality.region,
        Scope::Zone => &workload.locality.zone,
        Scope::Subzone => &workload.locality.subzone,
        Scope::Node => &workload.node,
        Scope::Cluster => &workload.cluster_id,
        Scope::Network => &workload.network,
    }
}
