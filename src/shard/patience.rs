//! What a connection waits for before it can be carried: the mesh's record of its pod, a certificate, and in on-demand
//! mode the addresses that its way needs. Each wait has a bound; one that takes a while says in the log why.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::base::limits::{HOST_WAIT_MS, WAIT_TOLD_MS};
use crate::base::text::Text;
use crate::bridge::identities::Standing;
use crate::bridge::order::PodInfo;
use crate::bridge::report::Report;
use crate::mesh::identity::Identity;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;
use crate::shard::Shard;
use crate::shard::failure::Failure;
use crate::tls::config::Credential;

/// One look at what is waited for.
enum Look<R> {
    Here(R),
    /// Not yet, and why.
    NotYet(Text),
}

impl Shard {
    /// The mesh's record of a pod of this node.
    pub async fn local_workload(&self, pod: &PodInfo) -> Result<(Arc<Snapshot>, Arc<Workload>), Failure> {
        let PodInfo { name, namespace, service_account } = pod;
        let look = || {
            let snapshot = self.published.load();
            let found = snapshot.local_workload((name, namespace, service_account)).cloned();
            match found.filter(|_| snapshot.synced) {
                Some(workload) => Look::Here((snapshot, workload)),
                None if snapshot.synced => Look::NotYet("the control plane has not told of it".into()),
                None => Look::NotYet("the mesh is not known yet".into()),
            }
        };
        if let Look::Here(found) = look() {
            return Ok(found);
        }
        let who = format!("{service_account}.{namespace} ({name})");
        let what = format!("the workload {who}");
        self.until(&what, self.settings.workload_deadline, look).await.map_err(|_| {
            tracing::warn!(target: "ztunnel::state", "timed out waiting for workload '{who}' from xds");
            Failure::LocalWorkload(format!("unknown workload {who}"))
        })
    }

    /// A valid certificate of an identity; asks for it where there is none yet. A failed attempt doesn't end the wait:
    /// the next one may do better within the bound.
    pub async fn credential(&self, identity: &Identity) -> Result<Arc<Credential>, Failure> {
        let look = || match self.identities.lookup(identity, SystemTime::now()) {
            Some(Standing::Available(credential)) => Look::Here(credential),
            Some(Standing::Unavailable(why)) => Look::NotYet(why),
            Some(Standing::Initializing) | None => Look::NotYet("it is being signed".into()),
        };
        if let Look::Here(credential) = look() {
            return Ok(credential);
        }
        let started = Instant::now();
        self.report(Report::Want(identity.clone())).await;
        let what = format!("the certificate of {identity}");
        let deadline = self.settings.certificate_deadline;
        let outcome = self.until(&what, deadline, look).await;
        self.stats.timings.certificate_wait.record(started.elapsed());
        outcome.map_err(|why| Failure::Identity(why.to_string()))
    }

    /// The snapshot in which nothing is `missing` any more, but for names that the mesh is known not to have. Asks for
    /// the others, each once.
    pub async fn looked_up(
        &self,
        missing: impl Fn(&Snapshot) -> Vec<Text>,
    ) -> Result<Arc<Snapshot>, Failure> {
        let started = Instant::now();
        let mut asked: Vec<Text> = Vec::new();
        loop {
            let changed = self.looked.subscribe();
            let snapshot = self.published.load();
            let now = Instant::now();
            let mut names = missing(&snapshot);
            names.retain(|name| !self.absent.holds(name, now));
            let Some(first) = names.first().cloned() else { return Ok(snapshot) };
            for name in names {
                if !asked.contains(&name) {
                    self.report(Report::Lookup(name.clone())).await;
                    asked.push(name);
                }
            }
            let left = self.settings.workload_deadline.saturating_sub(started.elapsed());
            if monoio::time::timeout(left, changed.wait()).await.is_err() {
                return Err(Failure::LookUp(first));
            }
        }
    }

    /// Asks for a name that the mesh is not known to lack, and doesn't wait for it.
    pub async fn ask_for(&self, name: Text) {
        if !self.absent.holds(&name, Instant::now()) {
            self.report(Report::Lookup(name)).await;
        }
    }

    /// The addresses of a host name, asked for where no fresh answer is at hand; `None` where nobody knew any in time.
    pub async fn resolved(&self, host: &Text) -> Option<Arc<[IpAddr]>> {
        let look = || match self.hosts.lookup(host, Instant::now()) {
            Some(answer) => Look::Here(answer.addresses),
            None => Look::NotYet("its name servers have not answered".into()),
        };
        if let Look::Here(addresses) = look() {
            return addresses;
        }
        self.report(Report::Resolve(host.clone())).await;
        let deadline = Duration::from_millis(HOST_WAIT_MS);
        self.until(&format!("the addresses of {host}"), deadline, look).await.ok().flatten()
    }

    /// Looks again whenever the snapshot or an identity changed, until the bound is over; then gives the last reason.
    async fn until<R>(&self, what: &str, deadline: Duration, look: impl Fn() -> Look<R>) -> Result<R, Text> {
        let started = Instant::now();
        let mut told = false;
        loop {
            let changed = self.looked.subscribe();
            let why = match look() {
                Look::Here(found) => {
                    if told {
                        tracing::debug!("{what} came after {:?}", started.elapsed());
                    }
                    return Ok(found);
                }
                Look::NotYet(why) => why,
            };
            let left = deadline.saturating_sub(started.elapsed());
            let to_tell = if told { left } else { left.min(Duration::from_millis(WAIT_TOLD_MS)) };
            if monoio::time::timeout(to_tell, changed.wait()).await.is_ok() {
                continue;
            }
            if started.elapsed() >= deadline {
                return Err(why);
            }
            told = true;
            if self.wait_told.due(Instant::now(), WAIT_TOLD_MS).is_some() {
                tracing::info!("a connection waits for {what}: {why}");
            }
        }
    }
}
