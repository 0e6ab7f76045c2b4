//! One match of a policy in the local file. It is taken as plain data first, so that whatever can't be read spoils
//! this match alone, is named with its place, and leaves the match unreadable: in a DENY it matches everything, in
//! an ALLOW nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::base::fault::Problem;
use crate::base::text::Interner;
use crate::mesh::policy::{Match, ServiceAccountMatch, StringMatch};

pub(super) type Form = BTreeMap<String, Value>;

/// Reads one match that stands at `at`.
pub(super) fn read(form: &Form, at: &str, interner: &mut Interner, problems: &mut Vec<Problem>) -> Match {
    let mut reader = Reader { at, key: "", interner, problems, clean: true };
    let mut read = Match::default();
    for (key, value) in form {
        reader.key = key;
        match key.as_str() {
            "namespaces" => read.namespaces = reader.list(value, Reader::text_match),
            "notNamespaces" => read.not_namespaces = reader.list(value, Reader::text_match),
            "principals" => read.principals = reader.list(value, Reader::text_match),
            "notPrincipals" => read.not_principals = reader.list(value, Reader::text_match),
            "serviceAccounts" => read.service_accounts = reader.list(value, Reader::account),
            "notServiceAccounts" => read.not_service_accounts = reader.list(value, Reader::account),
            "sourceIps" => read.source_ips = reader.list(value, Reader::range),
            "notSourceIps" => read.not_source_ips = reader.list(value, Reader::range),
            "destinationIps" => read.destination_ips = reader.list(value, Reader::range),
            "notDestinationIps" => read.not_destination_ips = reader.list(value, Reader::range),
            "destinationPorts" => read.destination_ports = reader.list(value, Reader::port),
            "notDestinationPorts" => read.not_destination_ports = reader.list(value, Reader::port),
            _ => reader.refuse(value, "under a key that a match may have"),
        }
    }
    read.unreadable = !reader.clean;
    read
}

struct Reader<'a> {
    at: &'a str,
    key: &'a str,
    interner: &'a mut Interner,
    problems: &'a mut Vec<Problem>,
    clean: bool,
}

impl Reader<'_> {
    fn refuse(&mut self, value: &Value, wanted: &'static str) {
        self.clean = false;
        let at = format!("{} {}", self.at, self.key);
        self.problems.push(Problem { at, value: value.to_string(), wanted });
    }

    fn list<T>(
        &mut self,
        value: &Value,
        one: impl Fn(&mut Self, &Value) -> Result<T, &'static str>,
    ) -> Vec<T> {
        let Value::Array(values) = value else {
            self.refuse(value, "a list");
            return Vec::new();
        };
        let mut list = Vec::with_capacity(values.len());
        for value in values {
            match one(self, value) {
                Ok(item) => list.push(item),
                Err(wanted) => self.refuse(value, wanted),
            }
        }
        list
    }

    fn text_match(&mut self, value: &Value) -> Result<StringMatch, &'static str> {
        const WANTED: &str = "one of Exact, Prefix, Suffix with a text, or Presence: []";
        let Value::Object(object) = value else { return Err(WANTED) };
        let mut entries = object.iter();
        let (Some((kind, value)), None) = (entries.next(), entries.next()) else { return Err(WANTED) };
        match (kind.as_str(), value) {
            ("Exact", Value::String(text)) => Ok(StringMatch::Exact(self.interner.intern(text))),
            ("Prefix", Value::String(text)) => Ok(StringMatch::Prefix(self.interner.intern(text))),
            ("Suffix", Value::String(text)) => Ok(StringMatch::Suffix(self.interner.intern(text))),
            ("Presence", Value::Array(none)) if none.is_empty() => Ok(StringMatch::Presence),
            _ => Err(WANTED),
        }
    }

    fn account(&mut self, value: &Value) -> Result<ServiceAccountMatch, &'static str> {
        let text = |key| value.get(key).and_then(Value::as_str);
        match (text("namespace"), text("serviceAccount")) {
            (Some(namespace), Some(account)) => Ok(ServiceAccountMatch {
                namespace: self.interner.intern(namespace),
                service_account: self.interner.intern(account),
            }),
            _ => Err("a namespace and a serviceAccount"),
        }
    }

    fn range(&mut self, value: &Value) -> Result<IpNet, &'static str> {
        let text = value.as_str().unwrap_or_default();
        text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).map_err(|_| "an address range")
    }

    fn port(&mut self, value: &Value) -> Result<u16, &'static str> {
        value.as_u64().and_then(|port| u16::try_from(port).ok()).ok_or("a port")
    }
}
