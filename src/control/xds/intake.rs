//! From the bytes of responses to changes of the mesh: decodes each resource once, as its part arrives, and keeps the
//! books by what came of it. One resource that can't be read is refused by name, its neighbours are used.

use std::sync::Arc;
use std::time::Instant;

use tracing::{error, warn};

use super::frames::Part;
use super::ledger::{Head, Kind, Ledger, Step};
use crate::bridge::absent::AbsentNames;
use crate::mesh::delta::Change;
use crate::mesh::snapshot::Snapshot;
use crate::wire::xds::{Address, Memory, Resource, Response, ResponseError, address, authorization};

/// The reading side of a stream.
pub struct Intake {
    pub ledger: Ledger,
    memory: Memory,
    head: Head,
    /// Resources of the response under way, and the bytes of their payloads.
    resources: usize,
    payload_bytes: usize,
}

impl Intake {
    pub fn new(ledger: Ledger) -> Self {
        let memory = Memory::default();
        Self { ledger, memory, head: Head::default(), resources: 0, payload_bytes: 0 }
    }

    /// The stream is over.
    pub fn end(&mut self) {
        self.ledger.end();
        (self.head, self.resources, self.payload_bytes) = (Head::default(), 0, 0);
    }

    /// Takes a part in; the last one of a response makes the step. What is told of a workload that `current` has just
    /// so shares its memory, so that a whole push anew needs none. What appears is struck off `absent`. After an error
    /// the stream is of no use: there is nothing that could be answered.
    pub fn part(
        &mut self,
        part: Part,
        current: &Snapshot,
        absent: &mut AbsentNames,
        now: Instant,
    ) -> Result<Option<Step>, ResponseError> {
        let response = Response::parse(part.bytes)?;
        for resource in response.resources() {
            self.resources += 1;
            match resource {
                Ok(resource) => {
                    self.payload_bytes += resource.value.len();
                    absent.remove(resource.aliases().chain([resource.name]));
                    self.resource(&resource, current);
                }
                Err(error) => {
                    let Some(name) = error.name() else { return Err(error) };
                    let number = format!("resource {}", self.resources);
                    let name = if name.is_empty() { &number } else { name };
                    self.ledger.refuse(name, error.to_string());
                }
            }
        }
        let Response { type_url, nonce, removed, .. } = response;
        for (known, new) in [(&mut self.head.type_url, type_url), (&mut self.head.nonce, nonce)] {
            if !new.is_empty() {
                *known = new;
            }
        }
        self.head.removed.extend(removed);
        Ok(part.last.then(|| self.finish(now)))
    }

    fn finish(&mut self, now: Instant) -> Step {
        let head = std::mem::take(&mut self.head);
        let kind = Kind::of(&head.type_url);
        if kind.is_none() {
            error!(target: "ztunnel::xds::client", "unknown type {:?}", head.type_url);
        }
        // Whatever a control plane calls a type of its own isn't to become a label.
        let url = kind.map_or("unknown", Kind::type_url);
        metrics::counter!("istio_xds_message", "url" => url).increment(1);
        metrics::counter!("istio_xds_message_bytes", "url" => url).increment(self.payload_bytes as u64);
        (self.resources, self.payload_bytes) = (0, 0);
        let step = self.ledger.finish(head, now);
        if !step.refused.is_empty() {
            metrics::counter!("ringway_xds_resources_refused").increment(step.refused.len() as u64);
        }
        step
    }

    fn resource(&mut self, resource: &Resource<'_>, current: &Snapshot) {
        let name = resource.name;
        let Some(kind) = Kind::of(resource.type_url) else {
            let reason = format!("unknown type {:?}", resource.type_url);
            return self.ledger.refuse(name, reason);
        };
        let change = match kind {
            Kind::Address => address(resource.value, &mut self.memory).map(|address| match address {
                Address::Workload(workload) => Change::Workload(match current.workload(&workload.uid) {
                    Some(known) if **known == workload => known.clone(),
                    Some(_) | None => Arc::new(workload),
                }),
                Address::Service(service) => {
                    Change::Service { service: Arc::new(service), endpoints: Vec::new() }
                }
            }),
            Kind::Authorization => {
                authorization(resource.value, &mut self.memory.shared.texts).map(|(policy, problems)| {
                    for problem in problems {
                        warn!("a match of a policy can't be read, it denies: {name}: {problem}");
                        self.ledger
                            .object(name, format!("taken, and denies where it can't be read: {problem}"));
                    }
                    if let Some(remark) = policy.remark() {
                        warn!("policy {name}: {remark}");
                    }
                    Change::Policy { key: name.into(), policy: Arc::new(policy) }
                })
            }
        };
        match change {
            Ok(change) => {
                self.ledger.accept(kind, (name, resource.version), change, resource.aliases());
            }
            Err(refusal) => self.ledger.refuse(name, refusal.to_string()),
        }
    }
}
