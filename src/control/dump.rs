//! `/config_dump`: everything the process knows, as JSON with sorted keys (reference section 17.4).

use std::time::SystemTime;

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::bridge::identities::{Known, Standing};
use crate::bridge::report::LiveConnection;
use crate::control::live::protocol;
use crate::control::session::PodView;
use crate::mesh::identity::Identity;
use crate::mesh::snapshot::Snapshot;
use crate::tls::cert::CertificateInfo;
use crate::wire::dump;

/// What goes into a dump.
pub struct Dump<'a> {
    pub snapshot: &'a Snapshot,
    pub identities: &'a [(Identity, Known)],
    /// In shared mode.
    pub pods: Option<Vec<PodView>>,
    pub live: &'a [LiveConnection],
    pub version: &'a Value,
    pub config: &'a Value,
    /// What the local file holds; `None` where there is none.
    pub static_config: Option<Value>,
}

impl Dump<'_> {
    pub fn value(self) -> Value {
        let mut all = mesh(self.snapshot);
        let nothing = || json!({"workloads": [], "policies": [], "services": []});
        all.insert("staticConfig".into(), self.static_config.unwrap_or_else(nothing));
        all.insert("version".into(), self.version.clone());
        all.insert("config".into(), self.config.clone());
        all.insert("certificates".into(), self.identities.iter().map(certificate).collect());
        if let Some(pods) = self.pods {
            let states = pods.iter().map(|pod| (pod.uid.to_string(), workload_state(pod, self.live)));
            all.insert("workloadState".into(), Value::Object(states.collect()));
        }
        Value::Object(all)
    }
}

/// Workloads, services and policies.
pub(super) fn mesh(snapshot: &Snapshot) -> Map<String, Value> {
    let workloads = snapshot.workloads().map(|workload| dump::workload(workload));
    let services =
        snapshot.services().map(|service| dump::service(service, snapshot.endpoints(&service.key)));
    let policies = snapshot.policies().map(|(_, policy)| dump::policy(policy));
    let mut all = Map::new();
    all.insert("workloads".into(), workloads.collect());
    all.insert("services".into(), services.collect());
    all.insert("policies".into(), policies.collect());
    all.insert("stagedServices".into(), dump::staged(snapshot));
    all
}

fn workload_state(pod: &PodView, live: &[LiveConnection]) -> Value {
    let info = json!({
        "name": &*pod.info.name,
        "namespace": &*pod.info.namespace,
        "serviceAccount": &*pod.info.service_account,
    });
    if !pod.up {
        return json!({"state": "Pending", "info": info});
    }
    let of = |inbound| {
        let of_pod = live.iter().filter(|live| live.pod == pod.uid && live.inbound == inbound);
        let mut of_pod: Vec<_> = of_pod.collect();
        // Shards answer in any order; what is looked at twice should look the same.
        of_pod.sort_unstable_by_key(|live| (live.src, live.actual_dst, live.original_dst.as_deref()));
        of_pod.into_iter().map(connection).collect::<Value>()
    };
    json!({"state": "Up", "info": info, "connections": {"inbound": of(true), "outbound": of(false)}})
}

fn connection(live: &LiveConnection) -> Value {
    json!({
        "src": live.src.to_string(),
        "originalDst": live.original_dst,
        "actualDst": live.actual_dst.to_string(),
        "protocol": protocol(live.protocol),
    })
}

/// The reference's four keys; ours beside them where there is something to say.
fn certificate((identity, known): &(Identity, Known)) -> Value {
    let (state, chain, roots) = match &known.standing {
        Standing::Initializing => ("Initializing".to_owned(), &[][..], &[][..]),
        Standing::Available(credential) => ("Available".to_owned(), credential.chain(), credential.roots()),
        Standing::Unavailable(error) => (format!("Unavailable: {error}"), &[][..], &[][..]),
    };
    let mut shown = json!({
        "identity": identity.to_string(),
        "state": state,
        "certChain": chain.iter().map(one_certificate).collect::<Value>(),
        "rootCerts": roots.iter().map(one_certificate).collect::<Value>(),
    });
    let valid_until = match &known.standing {
        Standing::Available(credential) => Some(moment(credential.not_after()).into()),
        Standing::Initializing | Standing::Unavailable(_) => None,
    };
    let ours = [
        ("validUntil", valid_until),
        ("lastError", known.last_error.as_deref().map(Value::from)),
        ("nextAttempt", known.next_attempt.map(|at| moment(at).into())),
    ];
    if let Value::Object(shown) = &mut shown {
        shown.extend(ours.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    }
    shown
}

fn one_certificate(info: &CertificateInfo) -> Value {
    json!({
        "pem": base64(narrow(&info.pem).as_bytes()),
        "serialNumber": info.serial,
        "validFrom": moment(info.not_before),
        "expirationTime": moment(info.not_after),
    })
}

/// Whole seconds of UTC; nothing for a year that RFC 3339 can't write.
pub(super) fn moment(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at).replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}

/// The same PEM with lines of 60, as the reference writes it.
fn narrow(pem: &str) -> String {
    const COLUMNS: usize = 60;
    let mut narrow = String::with_capacity(pem.len() + pem.len() / COLUMNS);
    let mut column = 0;
    for line in pem.lines() {
        if line.starts_with("-----") {
            if column > 0 {
                narrow.push('\n');
            }
            narrow.push_str(line);
            narrow.push('\n');
            column = 0;
            continue;
        }
        for letter in line.chars() {
            if column == COLUMNS {
                narrow.push('\n');
                column = 0;
            }
            narrow.push(letter);
            column += 1;
        }
    }
    narrow
}

/// RFC 4648 section 4.
pub(super) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| ALPHABET.get((bits & 63) as usize).map_or('=', |letter| char::from(*letter));
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut part = group.iter().map(|byte| u32::from(*byte));
        let mut next = || part.next().unwrap_or(0);
        let bits = next() << 16 | next() << 8 | next();
        text.push(letter(bits >> 18));
        text.push(letter(bits >> 12));
        text.push(if group.len() > 1 { letter(bits >> 6) } else { '=' });
        text.push(if group.len() > 2 { letter(bits) } else { '=' });
    }
    text
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
