//! L4 authorization policies as data. `mesh::admit` decides with them.

use ipnet::IpNet;

use crate::base::text::Text;

/// One policy; its store key is `namespace/name`.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub name: Text,
    pub namespace: Text,
    pub scope: PolicyScope,
    pub action: Action,
    /// OR over rules; a rule is an AND over clauses; a clause is an OR over matches.
    pub rules: Vec<Vec<Vec<Match>>>,
    pub dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyScope {
    Global,
    Namespace,
    WorkloadSelector,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Allow,
    Deny,
}

/// AND over the fields that hold something; within a field values are OR; `not_` fields: none may match.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Match {
    pub namespaces: Vec<StringMatch>,
    pub not_namespaces: Vec<StringMatch>,
    pub service_accounts: Vec<ServiceAccountMatch>,
    pub not_service_accounts: Vec<ServiceAccountMatch>,
    pub principals: Vec<StringMatch>,
    pub not_principals: Vec<StringMatch>,
    pub source_ips: Vec<IpNet>,
    pub not_source_ips: Vec<IpNet>,
    pub destination_ips: Vec<IpNet>,
    pub not_destination_ips: Vec<IpNet>,
    pub destination_ports: Vec<u16>,
    pub not_destination_ports: Vec<u16>,
    /// Something in this match could not be understood: in a DENY it matches everything, in an ALLOW nothing.
    pub unreadable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StringMatch {
    Exact(Text),
    Prefix(Text),
    Suffix(Text),
    /// Any non-empty value.
    Presence,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceAccountMatch {
    pub namespace: Text,
    pub service_account: Text,
}
