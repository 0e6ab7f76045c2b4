//! Peers that are revoked while their tunnels are up, and tunnels whose own credential isn't right any more.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::fixture::*;
use crate::bridge::identities::{Identities, Standing};
use crate::shard::closer::CloseReason;
use crate::shard::ending::Ending;
use crate::shard::peers::{end_revoked, retire, surplus};
use crate::shard::pool::{Carries, Key, Pool, Reservation};
use crate::shard::tunnel::{Tunnel, TunnelEnd};
use crate::tls::cert::Authority;
use crate::tls::config::{Credential, Profile};
use crate::tls::revocation::{Revocations, read};

const HOUR: Duration = Duration::from_secs(3_600);

fn credential(authority: &Authority, name: &str, revocations: &Arc<Revocations>) -> Arc<Credential> {
    let profile = Profile { revocations: revocations.clone(), ..Profile::default() };
    Arc::new(authority.credential(&identity(name), HOUR, profile).unwrap())
}

#[test]
fn a_peer_that_is_revoked_loses_its_tunnel_and_streams_at_once_and_nobody_else_does() {
    on_both_loops(async || {
        let authority = Authority::new("cluster.local").unwrap();
        let revocations = Arc::<Revocations>::default();
        revocations.replace(Vec::new());
        let server = credential(&authority, "server", &revocations);
        let (bad, good) =
            (credential(&authority, "client", &revocations), credential(&authority, "client", &revocations));
        let first = Box::pin(Pair::between(&bad, &server)).await;
        let second = Box::pin(Pair::between(&good, &server)).await;
        let (near, far) = first.through().await;
        let (other_near, other_far) = second.through().await;
        let tunnels = [first.server.clone(), first.client.clone(), second.server.clone()];
        assert_eq!(end_revoked(&tunnels, &revocations.current()), 0);

        let list = authority.revoke(&[&bad.chain()[0].pem]);
        revocations.replace(read(list.as_bytes()).unwrap());
        assert_eq!(end_revoked(&tunnels, &revocations.current()), 1);
        assert_eq!(end_revoked(&tunnels, &revocations.current()), 0, "each once");
        assert_eq!(far.ending.await, Some(Ending::Closed(CloseReason::Revoked)));
        assert!(far.app.is_reset().await);
        assert_eq!(first.server_end.await, TunnelEnd::Revoked);
        // The peer hears GOAWAY and an orderly end, not a broken wire.
        assert_eq!(first.client_end.await, TunnelEnd::PeerClosed);
        assert_eq!(near.ending.await, Some(Ending::Reset));
        other_near.app.send(b"still here").await.unwrap();
        assert_eq!(other_far.app.read_exactly(10).await.unwrap(), b"still here");
    });
}

fn key(expected: &[&str]) -> Key {
    Key {
        source: "10.0.0.1".parse().unwrap(),
        identity: identity("client"),
        expected: expected.iter().map(|name| identity(name)).collect(),
        destination: "10.0.0.2:15008".parse().unwrap(),
        inner: None,
        authority: None,
    }
}

/// A pool that dials by handing out these tunnels, one after the other.
struct Dials {
    pool: Rc<Pool<Tunnel>>,
    ready: Vec<Rc<Tunnel>>,
    dialled: Rc<Cell<usize>>,
}

impl Dials {
    fn new(ready: Vec<Rc<Tunnel>>) -> Self {
        Self { pool: Rc::new(Pool::new(100, Rc::default())), ready, dialled: Rc::default() }
    }

    async fn acquire(&self, expected: &[&str]) -> Reservation {
        let dial = || {
            let tunnel = self.ready[self.dialled.get()].clone();
            self.dialled.set(self.dialled.get() + 1);
            async { Ok(tunnel) }
        };
        self.pool.acquire(&key(expected), dial).await.map_err(|failure| failure.to_string()).unwrap()
    }
}

#[test]
fn a_pooled_tunnel_takes_no_new_streams_once_its_own_side_is_not_right_any_more() {
    on_both_loops(async || {
        let (old, new) = (Authority::new("cluster.local").unwrap(), Authority::new("cluster.local").unwrap());
        let none = Arc::<Revocations>::default();
        let (client, server) = (credential(&old, "client", &none), credential(&old, "server", &none));
        let first = Box::pin(Pair::between(&client, &server)).await;
        let second = Box::pin(Pair::between(&client, &server)).await;
        let dials = Dials::new(vec![first.client.clone(), second.client.clone()]);
        let identities = Identities::default();
        let put = |credential: &Arc<Credential>| {
            identities.set(identity("client"), Standing::Available(credential.clone()));
        };
        let now = SystemTime::now();

        // A renewal by the same root changes nothing, and neither does one that fails.
        put(&client);
        let reservation = dials.acquire(&["server"]).await;
        let (near, far) = first.through().await;
        assert!(!retire(&reservation.tunnel, &identities, now));
        put(&credential(&old, "client", &none));
        assert!(!retire(&reservation.tunnel, &identities, now));
        identities.set(identity("client"), Standing::Unavailable("no answer".into()));
        assert!(!retire(&reservation.tunnel, &identities, now));
        drop(dials.acquire(&["server"]).await);
        assert_eq!(dials.dialled.get(), 1);

        // Another root: the next connection gets a tunnel of its own, the open stream goes on.
        put(&credential(&new, "client", &none));
        assert!(retire(&reservation.tunnel, &identities, now));
        assert!(!retire(&reservation.tunnel, &identities, now), "once");
        let next = dials.acquire(&["server"]).await;
        assert!(dials.dialled.get() == 2 && !Rc::ptr_eq(&next.tunnel, &reservation.tunnel));
        near.app.send(b"live").await.unwrap();
        assert_eq!(far.app.read_exactly(4).await.unwrap(), b"live");
        far.app.send(b"back").await.unwrap();
        assert_eq!(near.app.read_exactly(4).await.unwrap(), b"back");
        near.app.0.finish();
        far.app.0.finish();
        assert_eq!(near.ending.await, Some(Ending::Finished));
        assert_eq!(first.client_end.await, TunnelEnd::Finished, "and then the old tunnel goes");
    });
}

#[test]
fn a_tunnel_ends_its_work_with_its_certificate_and_with_its_identity() {
    on_both_loops(async || {
        let authority = Authority::new("cluster.local").unwrap();
        let none = Arc::<Revocations>::default();
        let (client, server) =
            (credential(&authority, "client", &none), credential(&authority, "server", &none));
        let identities = Identities::default();
        let now = SystemTime::now();
        let up = async || Box::pin(Pair::between(&client, &server)).await;
        // The certificate has ended, whether or not there is a new one.
        for renewed in [true, false] {
            let pair = up().await;
            let standing = if renewed {
                Standing::Available(credential(&authority, "client", &none))
            } else {
                Standing::Initializing
            };
            identities.set(identity("client"), standing);
            assert!(!retire(&pair.client, &identities, now));
            assert!(retire(&pair.client, &identities, now + 2 * HOUR) && pair.client.is_finished());
        }
        let pair = up().await;
        identities.forget(&identity("client"));
        assert!(retire(&pair.client, &identities, now) && pair.client.is_finished());
    });
}

#[test]
fn a_destination_of_other_identities_gets_another_tunnel() {
    on_both_loops(async || {
        let first = Box::pin(Pair::new()).await;
        let second = Box::pin(Pair::new()).await;
        let dials = Dials::new(vec![first.client.clone(), second.client.clone()]);
        let before = dials.acquire(&["server", "moved"]).await;
        let after = dials.acquire(&["moved"]).await;
        assert!(dials.dialled.get() == 2 && !Rc::ptr_eq(&before.tunnel, &after.tunnel));
    });
}

#[test]
fn an_address_keeps_the_tunnels_it_used_last() {
    let address = |last: u8| std::net::IpAddr::from([10, 0, 0, last]);
    let now = Instant::now();
    let held: Vec<_> = [(1, 30), (2, 99), (1, 10), (1, 40), (1, 20), (2, 98), (3, 0)]
        .into_iter()
        .map(|(last, age)| (address(last), now - Duration::from_secs(age), age))
        .collect();
    let mut over = surplus(held.iter().copied(), 2);
    over.sort_unstable();
    assert_eq!(over, [30, 40]);
    assert_eq!(surplus(held.into_iter(), 4), Vec::<u64>::new());
}
