//! What control orders, carried out in the order it was posted. What takes time runs as a task of its own.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use monoio::net::UnixStream;

use crate::base::limits;
use crate::base::text::Text;
use crate::bridge::mailbox::Letterbox;
use crate::bridge::order::{Order, Pod};
use crate::bridge::report::Report;
use crate::shard::Shard;
use crate::shard::peers;
use crate::shard::pod::PodWorld;
use crate::shard::ready::{Woke, wait};
use crate::shard::recheck;
use crate::shard::shard::within;
use crate::shard::signal::Signal;
use crate::shard::survey;

/// Takes orders until a drain has been ordered and has ended.
pub(super) async fn carry_out(shard: &Rc<Shard>, orders: Letterbox<Order>) {
    let bell = match orders.bell().try_clone().and_then(UnixStream::from_std) {
        Ok(bell) => bell,
        Err(error) => {
            tracing::error!("shard {} can't hear its orders: {error}", shard.index);
            return;
        }
    };
    let drained = Signal::default();
    let mut ringing = pin!(None);
    loop {
        orders.silence();
        while let Some(order) = orders.take() {
            carry_out_one(shard, order, &drained);
        }
        if ringing.is_none() {
            ringing.set(Some(bell.readable(false)));
        }
        let never = pin!(None::<std::future::Pending<()>>);
        match wait(&drained, ringing.as_mut(), never).await {
            Woke::Signal => return,
            Woke::Readable | Woke::Writable => {}
        }
    }
}

fn carry_out_one(shard: &Rc<Shard>, order: Order, drained: &Signal) {
    match order {
        Order::Start(pod) => start(shard, pod),
        Order::Stop { uid } => stop(shard, uid),
        Order::Look => look(shard),
        Order::Beat(answer) => drop(answer.try_send(())),
        Order::Scrape(answer) => {
            let shard = shard.clone();
            monoio::spawn(async move { drop(answer.try_send(shard.tell().await)) });
        }
        Order::Forget(told) => shard.stats.forget(&told),
        Order::Connections(answer) => {
            let shard = shard.clone();
            monoio::spawn(async move { drop(answer.try_send(survey::connections(&shard).await)) });
        }
        Order::Flows { after, answer } => drop(answer.try_send(shard.flows.page(shard.index, after))),
        Order::Status(answer) => {
            let shard = shard.clone();
            monoio::spawn(async move { drop(answer.try_send(survey::status(&shard).await)) });
        }
        Order::DrainPod { uid, grace } => drain_pod(shard, &uid, grace),
        Order::Drain { grace } => {
            shard.draining.set(true);
            let (shard, drained) = (shard.clone(), drained.clone());
            monoio::spawn(async move {
                drain(&shard, grace).await;
                drained.raise();
            });
        }
    }
}

fn start(shard: &Rc<Shard>, pod: Arc<Pod>) {
    let uid = pod.uid.clone();
    let result = if shard.draining.get() {
        Err("the process ends".to_owned())
    } else if shard.pods.borrow().contains_key(&uid) {
        Err(format!("pod {uid} has listeners already"))
    } else {
        PodWorld::start(shard, pod)
    };
    let result = result.map(|world| drop(shard.pods.borrow_mut().insert(uid.clone(), world)));
    let shard = shard.clone();
    monoio::spawn(async move {
        let index = shard.index;
        shard.report(Report::Started { uid, shard: index, result }).await;
    });
}

/// The pod is gone: its connections end at once.
fn stop(shard: &Rc<Shard>, uid: Text) {
    let world = shard.pods.borrow_mut().remove(&uid);
    let shard = shard.clone();
    monoio::spawn(async move {
        if let Some(world) = world {
            shard.leaving.borrow_mut().push(world.clone());
            world.end().await;
            shard.leaving.borrow_mut().retain(|other| !Rc::ptr_eq(other, &world));
        }
        let index = shard.index;
        shard.report(Report::Stopped { uid, shard: index }).await;
    });
}

/// The pod stays on the shard, without listeners, until it is stopped.
fn drain_pod(shard: &Rc<Shard>, uid: &Text, grace: Duration) {
    let Some(world) = shard.pods.borrow().get(uid).filter(|world| !world.is_draining()).cloned() else {
        return;
    };
    monoio::spawn(async move {
        let _ = within(millis(grace), end_gracefully(&world, grace)).await;
        world.end().await;
    });
}

/// Wakes whoever waits for the mesh or a certificate, and asks live connections again where that changed something
/// for them, or where their peers may have been revoked.
fn look(shard: &Rc<Shard>) {
    revoke(shard);
    shard.looked.raise();
    recheck::ask_again(shard);
}

/// Ends the tunnels, and with them the streams, of peers that new revocation lists name.
fn revoke(shard: &Rc<Shard>) {
    let lists = shard.revocations.current();
    if shard.seen_revocations.replace(lists.generation()) == lists.generation() {
        return;
    }
    let tunnels: Vec<_> = shard.worlds().iter().flat_map(|pod| pod.tunnels()).collect();
    let ended = peers::end_revoked(&tunnels, &lists);
    let counter = &shard.stats.engine.tunnels_revoked;
    counter.set(counter.get() + ended);
}

/// Listeners go to the successor, tunnels take no new streams, and what is open goes on until its end or the grace's.
async fn drain(shard: &Rc<Shard>, grace: Duration) {
    let pods: Vec<_> = shard.pods.borrow().values().cloned().collect();
    let ends: Vec<_> = pods
        .iter()
        .cloned()
        .map(|world| {
            monoio::spawn(async move { within(millis(grace), end_gracefully(&world, grace)).await.is_some() })
        })
        .collect();
    for (world, end) in pods.iter().zip(ends) {
        if !end.await {
            tracing::warn!(
                target: "ztunnel::drain",
                "drain duration expired with pending connections, forcefully shutting down",
            );
        }
        let _ = within(limits::FORCED_END_MS, world.end()).await;
    }
    shard.hand_over_lines();
    shard.report(Report::Drained { shard: shard.index }).await;
}

async fn end_gracefully(world: &Rc<PodWorld>, grace: Duration) {
    world.drain_tunnels();
    world.close_doors(grace).await;
    world.drain_tunnels();
    world.gate.emptied().await;
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
