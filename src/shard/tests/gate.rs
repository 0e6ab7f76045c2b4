//! Gate, signal, broadcast: nobody is left inside, and no wake-up is lost.

use std::cell::Cell;
use std::future::{Ready, pending, ready};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::shard::gate::Gate;
use crate::shard::ready::{Woke, give_way, wait};
use crate::shard::signal::{Broadcast, Signal};
use crate::shard::tests::fixture::{on_both_loops, turn};
use crate::shard::within;

/// Tells when it is dropped.
struct Guard(Rc<Cell<usize>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn closing_a_gate_drops_who_is_inside() {
    on_both_loops(async || {
        let (gate, dropped) = (Rc::new(Gate::default()), Rc::new(Cell::new(0)));
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let (gate, guard) = (gate.clone(), Guard(dropped.clone()));
                monoio::spawn(async move {
                    gate.run(async move {
                        let _guard = guard;
                        pending::<()>().await;
                    })
                    .await
                })
            })
            .collect();
        turn().await;
        assert_eq!((gate.inside(), gate.registered()), (10, 10));
        gate.close();
        gate.emptied().await;
        assert_eq!((gate.inside(), gate.registered(), dropped.get()), (0, 0, 10));
        for task in tasks {
            assert_eq!(task.await, None);
        }
        assert_eq!(gate.run(async { 1 }).await, None, "nobody comes in any more");
    });
}

#[test]
fn who_leaves_in_order_is_not_kept() {
    on_both_loops(async || {
        let (gate, go) = (Rc::new(Gate::default()), Broadcast::default());
        for number in 0..10 {
            let (gate, go) = (gate.clone(), go.subscribe());
            monoio::spawn(async move {
                let inside = async {
                    go.wait().await;
                    number
                };
                assert_eq!(gate.run(inside).await, Some(number));
            });
        }
        turn().await;
        assert_eq!(gate.registered(), 10);
        go.raise();
        gate.emptied().await;
        assert_eq!(gate.registered(), 0);
        gate.emptied().await;
    });
}

/// A drain waits for the pod's connections, and so does the pod's removal during that drain.
#[test]
fn everybody_who_waits_for_an_empty_gate_is_told() {
    on_both_loops(async || {
        let (gate, told) = (Rc::new(Gate::default()), Rc::new(Cell::new(0)));
        let inside = gate.clone();
        monoio::spawn(async move { inside.run(pending::<()>()).await });
        turn().await;
        for _ in 0..3 {
            let (gate, told) = (gate.clone(), told.clone());
            monoio::spawn(async move {
                gate.emptied().await;
                told.set(told.get() + 1);
            });
        }
        turn().await;
        assert_eq!(told.get(), 0);
        gate.close();
        turn().await;
        turn().await;
        assert_eq!(told.get(), 3);
    });
}

#[test]
fn a_raise_before_the_wait_is_kept_once() {
    on_both_loops(async || {
        let signal = Signal::default();
        signal.raise();
        signal.raise();
        signal.wait().await;
        assert_eq!(within(5, signal.wait()).await, None, "two raises are one wake-up");
        let raising = signal.clone();
        monoio::spawn(async move {
            monoio::time::sleep(Duration::from_millis(1)).await;
            raising.raise();
        });
        signal.wait().await;
    });
}

#[test]
fn a_broadcast_reaches_all_and_keeps_none() {
    on_both_loops(async || {
        let broadcast = Broadcast::default();
        let (first, second) = (broadcast.subscribe(), broadcast.subscribe());
        drop(broadcast.subscribe());
        broadcast.raise();
        first.wait().await;
        second.wait().await;
        let late = broadcast.subscribe();
        assert_eq!(within(5, late.wait()).await, None, "told only of what comes later");
        broadcast.raise();
        late.wait().await;
    });
}

/// On epoll a socket with bytes is ready at once, every time; tasks and timers must still get their turn.
#[test]
fn what_is_always_ready_still_lets_others_run() {
    on_both_loops(async || {
        let (turns, rung) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(false)));
        let counted = turns.clone();
        let other = monoio::spawn(async move {
            for _ in 0..20 {
                counted.set(counted.get() + 1);
                give_way().await;
            }
        });
        let ringing = rung.clone();
        monoio::spawn(async move {
            monoio::time::sleep(Duration::from_millis(40)).await;
            ringing.set(true);
        });
        let heard = rung.clone();
        let busy = monoio::spawn(async move {
            let (signal, started) = (Signal::default(), Instant::now());
            while !heard.get() && started.elapsed() < Duration::from_secs(5) {
                let readable = pin!(Some(ready(())));
                assert_eq!(wait(&signal, readable, pin!(None::<Ready<()>>)).await, Woke::Readable);
            }
        });
        busy.await;
        assert!(rung.get(), "no timer fires while a socket is busy");
        other.await;
        assert_eq!(turns.get(), 20);
    });
}
