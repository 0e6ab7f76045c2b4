//! Which connections and flows an operator wants to see: the parameters `namespace`, `pod`, `from`, `to`, `verdict` and
//! `direction` of the admin port, and the same options of the command line.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::bridge::flow::{Flow, FlowEnd, FlowVerdict, Parties};
use crate::bridge::order::PodInfo;
use crate::bridge::report::LiveConnection;
use crate::wire::access_log::Direction;

/// What has to hold; a condition that isn't there always does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Of the pod that the connection belongs to.
    namespace: Option<String>,
    pod: Option<Who>,
    from: Option<Who>,
    to: Option<Who>,
    verdict: Option<FlowVerdict>,
    direction: Option<Direction>,
}

/// Somebody as operators name him.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Who {
    Address(IpNet),
    /// `spiffe://...`
    Identity(String),
    /// `[NAMESPACE/]NAME`: a workload, or where it is called a service by its name or host name.
    Named {
        namespace: Option<String>,
        name: String,
    },
}

/// A parameter that means nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name}={value} is not known: expected {expected}")]
pub struct Unfit {
    name: &'static str,
    value: String,
    expected: &'static str,
}

impl Filter {
    /// Reads the parameters of a query.
    pub fn parse(parameter: impl Fn(&str) -> Option<String>) -> Result<Self, Unfit> {
        let given = |name: &str| parameter(name).filter(|value| !value.is_empty());
        let verdict = given("verdict").map(|value| {
            let known = FlowVerdict::ALL.into_iter().find(|verdict| verdict.as_str() == value);
            known.ok_or(Unfit { name: "verdict", value, expected: "allowed, denied or failed" })
        });
        let direction = given("direction").map(|value| match value.as_str() {
            "inbound" => Ok(Direction::Inbound),
            "outbound" => Ok(Direction::Outbound),
            _ => Err(Unfit { name: "direction", value, expected: "inbound or outbound" }),
        });
        let who = |name| given(name).map(|value| Who::parse(&value));
        Ok(Self {
            namespace: given("namespace"),
            pod: who("pod"),
            from: who("from"),
            to: who("to"),
            verdict: verdict.transpose()?,
            direction: direction.transpose()?,
        })
    }

    /// Whether a flow is one of them; `pod` is whose it is, if that is known still.
    pub fn shows_flow(&self, flow: &Flow, pod: Option<&PodInfo>) -> bool {
        self.verdict.is_none_or(|verdict| verdict == flow.verdict)
            && self.shows(flow.parties.direction, pod, &Ends::of(&flow.parties))
    }

    /// The same for a live connection.
    pub fn shows_connection(&self, live: &LiveConnection, pod: Option<&PodInfo>) -> bool {
        if self.verdict.is_some_and(|verdict| verdict != FlowVerdict::Allowed) {
            return false;
        }
        let direction = if live.inbound { Direction::Inbound } else { Direction::Outbound };
        let mut ends = live.detail.as_ref().map_or_else(Ends::default, |detail| Ends::of(&detail.parties));
        ends.from.addresses.push(live.src.ip());
        ends.to.addresses.push(live.actual_dst.ip());
        match live.original_dst.as_deref() {
            Some(original) if live.inbound => ends.to.hosts.push(original),
            Some(original) => ends.to.addresses.extend(ip_of(original)),
            None => {}
        }
        let own = if live.inbound { &mut ends.to } else { &mut ends.from };
        own.names.extend(pod.map(|pod| (&*pod.namespace, &*pod.name)));
        self.shows(direction, pod, &ends)
    }

    fn shows(&self, direction: Direction, pod: Option<&PodInfo>, ends: &Ends<'_>) -> bool {
        let own = match direction {
            Direction::Inbound => &ends.to,
            Direction::Outbound => &ends.from,
        };
        let known = pod.map(|pod| (&*pod.namespace, &*pod.name));
        let mut names = known.into_iter().chain(own.names.iter().copied());
        self.direction.is_none_or(|wanted| wanted == direction)
            && self
                .namespace
                .as_ref()
                .is_none_or(|wanted| names.clone().any(|(namespace, _)| namespace == wanted))
            && self.pod.as_ref().is_none_or(|who| names.any(|name| who.is_named(name)) || own.is(who))
            && self.from.as_ref().is_none_or(|who| ends.from.is(who))
            && self.to.as_ref().is_none_or(|who| ends.to.is(who))
    }
}

impl Who {
    fn parse(text: &str) -> Self {
        let address = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        if let Some(address) = address {
            return Self::Address(address);
        }
        if text.starts_with("spiffe://") {
            return Self::Identity(text.to_owned());
        }
        match text.split_once('/') {
            Some((namespace, name)) => {
                Self::Named { namespace: Some(namespace.to_owned()), name: name.to_owned() }
            }
            None => Self::Named { namespace: None, name: text.to_owned() },
        }
    }

    fn is_named(&self, (namespace, name): (&str, &str)) -> bool {
        match self {
            Self::Named { namespace: wanted, name: wanted_name } => {
                wanted_name == name && wanted.as_ref().is_none_or(|wanted| wanted == namespace)
            }
            Self::Address(_) | Self::Identity(_) => false,
        }
    }
}

/// Both ends of a connection under all of their names.
#[derive(Default)]
struct Ends<'a> {
    from: Names<'a>,
    to: Names<'a>,
}

#[derive(Default)]
struct Names<'a> {
    addresses: Vec<IpAddr>,
    /// Namespace and name.
    names: Vec<(&'a str, &'a str)>,
    /// `NAMESPACE/HOSTNAME`, or a host name alone.
    hosts: Vec<&'a str>,
    identity: Option<&'a str>,
}

impl<'a> Ends<'a> {
    fn of(parties: &'a Parties) -> Self {
        let end = |end: &'a FlowEnd, ip| Names {
            addresses: vec![ip],
            names: vec![(&*end.namespace, &*end.workload)],
            hosts: Vec::new(),
            identity: end.identity.as_deref(),
        };
        let from = end(&parties.source, parties.src.ip());
        let mut to = end(&parties.destination, parties.dst.ip());
        to.addresses.extend(parties.authority.as_deref().and_then(ip_of));
        to.hosts.extend(parties.service.as_deref().into_iter().chain(parties.dst_name.as_deref()));
        Self { from, to }
    }
}

impl Names<'_> {
    fn is(&self, who: &Who) -> bool {
        match who {
            Who::Address(net) => self.addresses.iter().any(|ip| net.contains(ip)),
            Who::Identity(identity) => self.identity == Some(identity),
            Who::Named { namespace, name } => {
                self.names.iter().any(|known| who.is_named(*known))
                    || self.hosts.iter().any(|host| is_host(host, namespace.as_deref(), name))
            }
        }
    }
}

/// Whether a service is meant by its host name, or by the first part of it.
fn is_host(host: &str, namespace: Option<&str>, name: &str) -> bool {
    let (of, host) = host.split_once('/').map_or((None, host), |(of, host)| (Some(of), host));
    let fits = namespace.is_none() || of.is_none() || namespace == of;
    fits && (host == name || host.split('.').next() == Some(name))
}

fn ip_of(address: &str) -> Option<IpAddr> {
    address.parse::<std::net::SocketAddr>().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::test_support::flow;

    fn filter(query: &[(&str, &str)]) -> Result<Filter, Unfit> {
        Filter::parse(|name| query.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_name_of_an_end_finds_the_connection() {
        let flow = flow(FlowVerdict::Denied, 0);
        let pod =
            PodInfo { name: "client".into(), namespace: "default".into(), service_account: "sa".into() };
        for (query, shown) in [
            (&[][..], true),
            (&[("namespace", "default")], true),
            (&[("namespace", "other")], false),
            (&[("pod", "client")], true),
            (&[("pod", "server")], false),
            (&[("from", "10.0.0.1")], true),
            (&[("from", "10.0.0.0/31")], true),
            (&[("from", "10.0.0.2")], false),
            (&[("from", "other/client")], false),
            (&[("from", "spiffe://cluster.local/ns/default/sa/client")], true),
            (&[("to", "10.0.0.2")], true),
            (&[("to", "default/server")], true),
            (&[("to", "web")], true),
            (&[("to", "default/web")], true),
            (&[("to", "other/web")], false),
            (&[("to", "web.default.svc.cluster.local")], true),
            (&[("to", "spiffe://cluster.local/ns/default/sa/client")], false),
            (&[("verdict", "denied"), ("direction", "outbound")], true),
            (&[("verdict", "failed")], false),
            (&[("direction", "inbound")], false),
            (&[("from", "client"), ("to", "client")], false),
        ] {
            let filter = filter(query).unwrap();
            assert_eq!(filter.shows_flow(&flow, Some(&pod)), shown, "{query:?}");
            assert_eq!(filter.shows_flow(&flow, None), shown, "{query:?}");
        }
    }

    #[test]
    fn a_connection_that_has_not_arrived_is_found_by_what_is_known() {
        let live = LiveConnection {
            pod: "uid".into(),
            inbound: false,
            src: "10.0.0.1:4".parse().unwrap(),
            original_dst: Some("10.1.0.1:80".into()),
            actual_dst: "10.0.0.2:15008".parse().unwrap(),
            protocol: crate::bridge::report::LiveProtocol::Hbone,
            shard: 0,
            detail: None,
            policy: None,
        };
        let pod =
            PodInfo { name: "client".into(), namespace: "default".into(), service_account: "sa".into() };
        for (query, shown) in [
            (("from", "default/client"), true),
            (("pod", "client"), true),
            (("to", "10.1.0.1"), true),
            (("to", "10.0.0.2"), true),
            (("to", "client"), false),
            (("verdict", "allowed"), true),
            (("verdict", "denied"), false),
        ] {
            assert_eq!(filter(&[query]).unwrap().shows_connection(&live, Some(&pod)), shown, "{query:?}");
        }
    }

    #[test]
    fn a_word_that_means_nothing_is_refused() {
        let error = filter(&[("verdict", "maybe")]).unwrap_err().to_string();
        assert_eq!(error, "verdict=maybe is not known: expected allowed, denied or failed");
        assert!(filter(&[("direction", "up")]).is_err());
    }
}
