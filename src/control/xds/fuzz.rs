//! Entry points for the fuzz targets under loadtest/fuzz; the same run on random bytes as a short test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::frames::Frames;
use super::intake::Intake;
use super::ledger::{Head, Kind, Ledger};
use crate::base::limits::XDS_SETTLE_MS;
use crate::bridge::absent::AbsentNames;
use crate::mesh::delta::{Change, apply};
use crate::mesh::snapshot::Snapshot;
use crate::mesh::workload::Workload;

/// Any bytes as what a control plane sends, in chunks whose size the first byte tells.
#[doc(hidden)]
pub fn fuzz_stream(data: &[u8]) {
    let [size, stream @ ..] = data else { return };
    let (mut frames, mut intake) = (Frames::default(), Intake::new(Ledger::new(size & 1 == 1)));
    let (mut absent, now) = (AbsentNames::default(), Instant::now());
    let mut snapshot = Snapshot::default();
    intake.ledger.begin();
    for chunk in stream.chunks(usize::from(*size).max(1)) {
        let mut chunk = Bytes::copy_from_slice(chunk);
        loop {
            let part = match frames.next(&mut chunk) {
                Ok(Some(part)) => part,
                Ok(None) => break,
                Err(_) => return,
            };
            let Ok(step) = intake.part(part, &snapshot, &mut absent, now) else { return };
            let Some(step) = step else { continue };
            assert!(step.refused.is_empty() || step.answer.error_detail.is_some(), "a refusal untold");
            snapshot = apply(&snapshot, step.changes, None);
        }
    }
}

/// A control plane that holds pods, and a node that is told of them.
struct Play {
    /// It leaves out what is as declared and lists what is gone; or it sends all and lists nothing, without versions.
    honours: bool,
    holds: BTreeMap<String, u8>,
    ledger: Ledger,
    snapshot: Snapshot,
    now: Instant,
}

/// Pairs of bytes: what happens, and to which pod. Whatever happens, the node then holds what the control plane
/// holds.
#[doc(hidden)]
pub fn fuzz_deltas(data: &[u8]) {
    let [manner, acts @ ..] = data else { return };
    let mut play = Play {
        honours: manner & 1 == 0,
        holds: BTreeMap::new(),
        ledger: Ledger::new(false),
        snapshot: Snapshot::default(),
        now: Instant::now(),
    };
    play.reconnect();
    for act in acts.chunks_exact(2) {
        let [what, name] = act else { continue };
        let (what, content, uid) = (what & 7, what >> 3, format!("pod-{}", name % 16));
        match what {
            0..=2 => {
                play.holds.insert(uid.clone(), content);
                play.tell(&uid, content);
                play.finish(Vec::new());
            }
            3 => {
                play.holds.remove(&uid);
                play.finish(vec![uid]);
            }
            4 => {
                play.ledger.refuse(&uid, "odd".to_owned());
                play.finish(Vec::new());
            }
            5 => {
                // Breaks off; it is told at the reconnect.
                play.holds.insert(uid.clone(), content);
                play.tell(&uid, content);
                play.ledger.end();
                play.reconnect();
            }
            6 => {
                play.holds.remove(&uid);
                play.reconnect();
            }
            _ => play.reconnect(),
        }
        play.check();
    }
}

impl Play {
    fn version(&self, content: u8) -> String {
        if self.honours { format!("{content:x}") } else { String::new() }
    }

    fn tell(&mut self, uid: &str, content: u8) {
        let mut pod = Workload::plain(uid, "default", uid);
        pod.addresses = vec![[10, 0, 0, content].into()];
        let version = self.version(content);
        let change = Change::Workload(Arc::new(pod));
        self.ledger.accept(Kind::Address, (uid, &version), change, std::iter::empty());
    }

    fn finish(&mut self, removed: Vec<String>) -> bool {
        let head = Head { type_url: Kind::Address.type_url().to_owned(), nonce: "n".to_owned(), removed };
        let step = self.ledger.finish(head, self.now);
        self.snapshot = apply(&self.snapshot, step.changes, None);
        step.restart
    }

    fn reconnect(&mut self) {
        // Asked once more at most.
        for _ in 0..2 {
            let [addresses, _] = self.ledger.begin();
            let declared = addresses.initial_resource_versions;
            let mut gone = Vec::new();
            for (uid, content) in self.holds.clone() {
                let version = self.version(content);
                if !self.honours || version.is_empty() || declared.get(&uid) != Some(&version) {
                    self.tell(&uid, content);
                }
            }
            if self.honours {
                gone.extend(declared.into_keys().filter(|uid| !self.holds.contains_key(uid)));
            }
            if !self.finish(gone) {
                break;
            }
        }
        self.now += Duration::from_millis(XDS_SETTLE_MS);
        let gone = self.ledger.give_up(self.now);
        self.snapshot = apply(&self.snapshot, gone, None);
    }

    fn check(&self) {
        let seen: Vec<_> = self.snapshot.workloads().map(|pod| (&*pod.uid, pod.addresses.clone())).collect();
        let held = self.holds.iter().map(|(uid, content)| (uid.as_str(), vec![[10, 0, 0, *content].into()]));
        assert_eq!(seen, held.collect::<Vec<_>>());
        assert_eq!(self.ledger.held(), self.holds.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::xds::testing::{bad_pod, pod, policy, response};
    use crate::wire::xds::{ADDRESS_TYPE, AUTHORIZATION_TYPE};

    proptest! {
        #[test]
        fn fuzz_deltas_keep_the_model_whatever_comes(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            fuzz_deltas(&data);
        }

        #[test]
        fn fuzz_stream_survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..80)) {
            fuzz_stream(&data);
        }

        #[test]
        fn fuzz_stream_survives_spoiling(size: u8, at in any::<prop::sample::Index>(), with: u8, cut in 0_usize..20) {
            let messages = [
                response(ADDRESS_TYPE, "1", vec![pod("a", "1", 1), bad_pod("b", "2")], &["gone"]),
                response(AUTHORIZATION_TYPE, "2", vec![policy("p")], &[]),
            ];
            let mut stream = vec![size];
            for message in messages {
                stream.extend([0, 0, 0]);
                stream.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
                stream.extend(message);
            }
            let at = at.index(stream.len());
            stream[at] = with;
            stream.truncate(stream.len() - cut);
            fuzz_stream(&stream);
        }
    }
}
