//! `/why?from=NAMESPACE/POD&to=HOST:PORT` of the admin port: what would become of a connection, as text, or with
//! `format=json` as an object. The explanation is `mesh::why`'s.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::json;

use crate::base::net::Captured;
use crate::bridge::settings::Settings;
use crate::control::http::{self, Reply};
use crate::mesh::authority::Authority;
use crate::mesh::identity::TrustDomains;
use crate::mesh::route::Request;
use crate::mesh::seen::View;
use crate::mesh::snapshot::Snapshot;
use crate::mesh::why::{Why, why};
use crate::mesh::workload::Workload;

/// A question that can't be answered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unasked {
    #[error("which connection? usage: /why?from=NAMESPACE/POD&to=ADDRESS-OR-HOST:PORT[&format=json]")]
    Incomplete,
    #[error("no workload {0:?} is known: expected NAMESPACE/NAME, or one of its addresses")]
    NoSource(String),
    #[error("{0:?} isn't ADDRESS:PORT or HOST:PORT")]
    NoTarget(String),
    #[error("no service with the host name {0:?} is visible to the caller, or it has no address")]
    NoHost(String),
}

/// Answers one question.
pub(super) fn answer(
    snapshot: &Snapshot,
    settings: &Settings,
    parameter: impl Fn(&str) -> Option<String>,
) -> Reply {
    let told = match (parameter("from"), parameter("to")) {
        (Some(from), Some(to)) => {
            let sight = Sight {
                network: &settings.network,
                ipv6: settings.ipv6,
                least_connections: settings.least_connections,
                domains: &settings.trust_domains,
            };
            explain(snapshot, &sight, &from, &to)
        }
        _ => Err(Unasked::Incomplete),
    };
    match told {
        Err(error) => http::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        Ok(told) if parameter("format").as_deref() == Some("json") => {
            let body = json!({"allowed": told.is_allowed(), "explanation": told.to_string()});
            let reply = http::plain(StatusCode::OK, format!("{body}\n"));
            http::with_header(reply, CONTENT_TYPE.as_str(), "application/json")
        }
        Ok(told) => http::text(StatusCode::OK, told.to_string()),
    }
}

/// What of the configuration decides about connections.
pub(super) struct Sight<'a> {
    pub network: &'a str,
    pub ipv6: bool,
    pub least_connections: bool,
    pub domains: &'a TrustDomains,
}

pub(super) fn explain(snapshot: &Snapshot, sight: &Sight<'_>, from: &str, to: &str) -> Result<Why, Unasked> {
    let source = source(snapshot, sight.network, from).ok_or_else(|| Unasked::NoSource(from.to_owned()))?;
    let target = target(snapshot, source, to)?;
    let alike = |ip: &&IpAddr| ip.is_ipv4() == target.is_ipv4();
    let own = source.addresses.iter().find(alike).or(source.addresses.first()).copied();
    let request = Request {
        snapshot,
        network: sight.network,
        source,
        caller: own.unwrap_or(target.ip()),
        target: Captured(target),
        ipv6: sight.ipv6,
        view: View { least_connections: sight.least_connections, ..View::default() },
    };
    Ok(why(&request, sight.domains, &mut fastrand::Rng::new()))
}

fn source<'a>(snapshot: &'a Snapshot, network: &str, from: &str) -> Option<&'a Arc<Workload>> {
    if let Ok(ip) = from.parse() {
        return snapshot.workload_at(network, ip);
    }
    let (namespace, name) = from.split_once('/')?;
    snapshot.workload_named(namespace, name)
}

fn target(snapshot: &Snapshot, source: &Workload, to: &str) -> Result<SocketAddr, Unasked> {
    match Authority::parse(to).map_err(|_| Unasked::NoTarget(to.to_owned()))? {
        Authority::Address(address) => Ok(address),
        Authority::Host { name, port } => {
            let service = snapshot.service_by_host(name, Some(&source.namespace));
            let vip = service.and_then(|service| service.vips.first());
            vip.map(|vip| SocketAddr::new(vip.ip, port)).ok_or_else(|| Unasked::NoHost(name.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::http::test::body;
    use crate::control::test_support::settings;
    use crate::mesh::fixture::{mesh, pod, policy, service, serving};
    use crate::mesh::policy::{Action, Match, PolicyScope};

    fn ask(query: &[(&str, &str)]) -> (u16, String) {
        let deny = Match { destination_ports: vec![9], ..Match::default() };
        let snapshot = mesh([
            pod("client", &["10.0.0.1"]).into(),
            serving(pod("server", &["10.0.0.2"]), "web", &[]).into(),
            service("web", &["10.1.0.1"], &[(80, 8080)]).into(),
            policy("no-9", PolicyScope::Namespace, Action::Deny, vec![deny]).into(),
        ]);
        let of =
            |name: &str| query.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let reply = answer(&snapshot, &settings(), of);
        (reply.status().as_u16(), body(reply))
    }

    #[test]
    fn a_connection_is_explained_by_names_or_addresses() {
        let (status, text) = ask(&[("from", "default/client"), ("to", "web.default.svc.cluster.local:80")]);
        assert_eq!(status, 200);
        assert!(text.starts_with("default/client -> 10.1.0.1:80\n"), "{text}");
        assert!(text.ends_with("policies: allowed, none has to allow it\n=> carried\n"), "{text}");
        let (_, text) = ask(&[("from", "10.0.0.1"), ("to", "10.0.0.2:9")]);
        let last = "policies: denied by default/no-9 rules[0][0][0]\n=> not carried\n";
        assert!(text.ends_with(last), "{text}");
        let (_, text) = ask(&[("from", "10.0.0.1"), ("to", "10.0.0.2:9"), ("format", "json")]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["allowed"], false);
    }

    #[test]
    fn what_cannot_be_asked_is_named() {
        for (query, named) in [
            (&[][..], "usage"),
            (&[("from", "default/client")], "usage"),
            (&[("from", "default/nobody"), ("to", "10.0.0.2:9")], "default/nobody"),
            (&[("from", "nobody"), ("to", "10.0.0.2:9")], "nobody"),
            (&[("from", "default/client"), ("to", "10.0.0.2")], "10.0.0.2"),
            (&[("from", "default/client"), ("to", "nowhere.example:80")], "nowhere.example"),
        ] {
            let (status, text) = ask(query);
            assert!(status == 400 && text.contains(named), "{text}");
        }
    }
}
