//! Brings an inner tunnel up (reference section 6.3): a stream of a tunnel to another network's gateway, a TLS client
//! on it that expects the far end's names, and HTTP/2 within.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

use crate::base::limits;
use crate::path::reach::{Asker, Unreached};
use crate::shard::closer::Closer;
use crate::shard::failure::Failure;
use crate::shard::link::{Raising, raise_tunnel};
use crate::shard::meter::Meter;
use crate::shard::nested::{Nested, pair};
use crate::shard::pod::PodWorld;
use crate::shard::pool::Key;
use crate::shard::ready::either;
use crate::shard::relay::StreamRelay;
use crate::shard::signal::Signal;
use crate::shard::within;

/// Dials for the inner pool's key. The outer request speaks for the connection that asked first.
pub(super) async fn dial_nested(world: Rc<PodWorld>, key: Key, asker: Asker) -> Result<Rc<Nested>, Failure> {
    let expected = key.inner.clone().unwrap_or_else(|| [].into());
    let outer = Key { inner: None, ..key };
    let ended = Signal::default();
    let reached =
        Box::pin(asker.reach(&world, &outer, None)).await.map_err(|Unreached { failure, .. }| failure)?;
    let (near, far) = pair().map_err(|error| Failure::io(&error))?;
    let closer = Closer::default();
    closer.wake(reached.unrelayed.stream.signal.clone());
    let relay = StreamRelay {
        app: Rc::new(far),
        tunnel: reached.place.tunnel().clone(),
        stream: reached.unrelayed.relayed(),
        // What the application says is counted within.
        meter: Meter::new(Rc::default(), std::time::Instant::now()),
        closer,
        clean: Cell::new(false),
    };
    let (place, over) = (reached.place, Over(ended.clone()));
    monoio::spawn(async move {
        let mut relay = pin!(relay.run());
        let finished = either(async { Some(relay.as_mut().await) }, async {
            ended.wait().await;
            None
        });
        if finished.await.is_none() {
            // The inner tunnel's last bytes are still on their way.
            let _ = within(limits::LINGER_MS, relay).await;
        }
        drop(place);
    });
    let credential = world.shard.credential(&outer.identity).await?;
    let raising = Raising {
        socket: near,
        remote: outer.destination,
        expected,
        idle_release: std::time::Duration::from_millis(limits::NESTED_LIFE_MS),
    };
    let tunnel = raise_tunnel(&world, raising, &credential, move || drop(over)).await?;
    Ok(Rc::new(Nested::new(tunnel)))
}

/// Tells the outer relay that the inner tunnel is over, also where it never came up.
struct Over(Signal);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.raise();
    }
}
