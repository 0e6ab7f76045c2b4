//! Whether the tunnels that are up may stay so: peers that new revocation lists name are cut off, tunnels of ours whose
//! credential isn't right any more take no new streams, and those that carry nothing have a bound. What lists and
//! credentials mean is decided in `tls::tenure`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use crate::bridge::identities::{Identities, Standing};
use crate::shard::pool::Carries;
use crate::shard::tunnel::Tunnel;
use crate::tls::revocation::Lists;

/// Ends every tunnel whose peer the lists in force, which are these, revoke; how many. A chain that many tunnels
/// share is verified once.
pub(super) fn end_revoked(tunnels: &[Rc<Tunnel>], lists: &Lists) -> u64 {
    let mut verdicts = HashMap::<_, bool, foldhash::fast::RandomState>::default();
    let mut ended = 0;
    for tunnel in tunnels {
        let revoked = *verdicts.entry(tunnel.peer.key()).or_insert_with(|| tunnel.peer.is_revoked(lists));
        if revoked && tunnel.end_revoked() {
            let peer = tunnel.peer.identity.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!(
                target: "ztunnel::proxy::connection_manager",
                "tunnel with {} ({peer}) closed: peer certificate revoked by CRL",
                tunnel.remote,
            );
            ended += 1;
        }
    }
    ended
}

/// Lets a tunnel of ours take no new streams once its own certificate has ended, its identity is gone, or the
/// identity's newest credential has other roots. A mere renewal changes nothing; open streams go on in any case.
pub(super) fn retire(tunnel: &Tunnel, identities: &Identities, now: SystemTime) -> bool {
    if tunnel.is_finished() || lasts(tunnel, identities, now) {
        return false;
    }
    tunnel.drain();
    true
}

fn lasts(tunnel: &Tunnel, identities: &Identities, now: SystemTime) -> bool {
    match identities.lookup(&tunnel.tenure.identity, now) {
        Some(Standing::Available(current)) => tunnel.tenure.lasts(Some(&current), now),
        // Nothing valid is there to compare with, so only the tunnel's own certificate counts.
        Some(Standing::Initializing | Standing::Unavailable(_)) => now < tunnel.tenure.ends,
        None => tunnel.tenure.lasts(None, now),
    }
}

/// What an address has idle beyond `most`: those idle for longest.
pub(super) fn surplus<T>(idle: impl Iterator<Item = (IpAddr, Instant, T)>, most: usize) -> Vec<T> {
    let mut of_address = HashMap::<_, Vec<_>, foldhash::fast::RandomState>::default();
    for (address, since, one) in idle {
        of_address.entry(address).or_default().push((since, one));
    }
    let mut surplus = Vec::new();
    for mut held in of_address.into_values().filter(|held| held.len() > most) {
        held.sort_by_key(|(since, _)| *since);
        held.truncate(held.len().saturating_sub(most));
        surplus.extend(held.into_iter().map(|(_, one)| one));
    }
    surplus
}
