//! Somebody outside the mesh calls a pod in plain text: port 15006. Policies decide without an identity.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::base::net::{Captured, Source};
use crate::bridge::report::LiveProtocol;
use crate::mesh::admit::guess_service;
use crate::mesh::labels::{Reporter, Security};
use crate::mesh::plan::Refuse;
use crate::mesh::workload::Workload;
use crate::path::record::{About, Record, Side, deny_early};
use crate::shard::closer::Closer;
use crate::shard::decision::{self, Caller};
use crate::shard::failure::Failure;
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::socket::{Held, Socket};
use crate::shard::splice::Splice;
use crate::shard::table::{Entered, Entry, Original, Subject};
use crate::sys::origdst::original_destination;

/// Carries one plain connection to the pod's application.
pub async fn serve(world: Rc<PodWorld>, accepted: Accepted) {
    let Accepted { fd, source, at, counted: _counted } = accepted;
    let Some((splice, record, _entered)) = Box::pin(prepare(&world, fd, source, at)).await else { return };
    drop(world);
    record.end(splice.run().await);
}

async fn prepare(
    world: &Rc<PodWorld>,
    fd: OwnedFd,
    source: Source,
    since: Instant,
) -> Option<(Splice, Record, Entered)> {
    let shard = &world.shard;
    let target = original_destination(fd.as_fd(), source).ok()?;
    let held = Held::new(Socket::new(fd).ok()?);
    let Entrance { record, entered, closer, local } = match enter(world, source, target).await {
        Ok(entered) => entered,
        Err(failure) => {
            deny_early(world, source.0, target.0, &failure);
            return None;
        }
    };
    match reach(world, source, target, &entered, &local).await {
        Ok(server) => {
            record.reached(since);
            let client = held.reached();
            let (meter, buffers) = (record.meter().clone(), shard.buffers.clone());
            let splice = Splice { client, server, meter, buffers, closer, clean: Cell::new(false) };
            Some((splice, record, entered))
        }
        Err(failure) => {
            record.fail(&failure);
            None
        }
    }
}

/// A connection that may be put to the policies.
struct Entrance {
    record: Record,
    entered: Entered,
    closer: Closer,
    local: Arc<Workload>,
}

/// Opens the record and enters the table, before any policy is asked.
async fn enter(world: &Rc<PodWorld>, source: Source, target: Captured) -> Result<Entrance, Failure> {
    let shard = &world.shard;
    if shard.settings.illegal_ports.contains(&target.port()) {
        return Err(Failure::Refused(Refuse::SelfCall));
    }
    let (snapshot, local) = shard.local_workload(&world.pod.info).await?;
    let caller = snapshot.workload_at(&shard.settings.network, source.ip()).cloned();
    let record = Record::open(
        shard,
        About {
            pod: world.tally.clone(),
            reporter: Reporter::Destination,
            src_addr: source.0,
            dst_addr: target.0,
            hbone_addr: None,
            source: Side::of(caller, None),
            destination: Side::of(Some(local.clone()), Some(local.identity())),
            service: guess_service(&snapshot, &local, None, target.port()),
            security: Security::Unknown,
            via: None,
        },
    );
    let closer = Closer::default();
    let entry = Entry {
        pod: world.pod.uid.clone(),
        src: source.0,
        original: Original::Host(None),
        actual_dst: target.0,
        protocol: LiveProtocol::Tcp,
        closer: closer.clone(),
        subject: Some(Box::new(Subject {
            source: source.ip(),
            identity: None,
            destination: target.0,
            asked: None,
        })),
        detail: None,
    };
    let entered = shard.table.enter_at(&local, &snapshot, entry);
    record.show_in(&entered);
    Ok(Entrance { record, entered, closer, local })
}

async fn reach(
    world: &Rc<PodWorld>,
    source: Source,
    target: Captured,
    entered: &Entered,
    local: &Workload,
) -> Result<Socket, Failure> {
    decision::admit(&world.shard, entered, Caller { workload: local, request: None })?;
    let from = world.keeps_source.then_some(source.ip());
    world.dial_app(target.0, from).await.map_err(|error| Failure::Application(error.to_string()))
}
