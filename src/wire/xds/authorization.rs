//! Authorization policies. They are walked tag by tag, because a policy fails closed: whatever can't be read, a field
//! that this version doesn't know included, spoils the match, clause, rule or policy it stands in (in a DENY that
//! matches everything, in an ALLOW nothing) and is told. ztunnel drops such values, so that a DENY may turn into
//! nothing. An empty match stays what it is there: it never matches (reference sections 4.6, 12.3).

use ipnet::IpNet;

use super::address::{ip, range};
use super::fields::{Field, Fields, Malformed, Schema};
use super::{Refusal, shown};
use crate::base::fault::Problem;
use crate::base::limits::{POLICY_PARTS, POLICY_PROBLEMS};
use crate::base::text::Interner;
use crate::mesh::policy::{Action, Match, Policy, PolicyScope, ServiceAccountMatch, StringMatch};
use crate::wire::pb::security as pb;

static AUTHORIZATION: Schema = Schema {
    message: "Authorization",
    fields: &[(1, "name"), (2, "namespace"), (3, "scope"), (4, "action"), (5, "rules"), (6, "dry_run")],
};
static RULE: Schema = Schema { message: "Rule", fields: &[(1, "clauses")] };
static CLAUSE: Schema = Schema { message: "Clause", fields: &[(2, "matches")] };
static MATCH: Schema = Schema {
    message: "Match",
    fields: &[
        (1, "namespaces"),
        (2, "notNamespaces"),
        (3, "principals"),
        (4, "notPrincipals"),
        (5, "sourceIps"),
        (6, "notSourceIps"),
        (7, "destinationIps"),
        (8, "notDestinationIps"),
        (9, "destinationPorts"),
        (10, "notDestinationPorts"),
        (11, "serviceAccounts"),
        (12, "notServiceAccounts"),
    ],
};
static STRING_MATCH: Schema =
    Schema { message: "StringMatch", fields: &[(1, "exact"), (2, "prefix"), (3, "suffix"), (4, "presence")] };
static EMPTY: Schema = Schema { message: "Empty", fields: &[] };
static ADDRESS: Schema = Schema { message: "Address", fields: &[(1, "address"), (2, "length")] };
static ACCOUNT: Schema =
    Schema { message: "ServiceAccountMatch", fields: &[(1, "namespace"), (2, "serviceAccount")] };

const KNOWN_FIELD: &str = "one that this version knows";

/// Reads one resource, with what could not be understood in it.
pub fn authorization(value: &[u8], interner: &mut Interner) -> Result<(Policy, Vec<Problem>), Refusal> {
    let mut reader = Reader { interner, problems: Vec::new(), place: Vec::new(), parts_left: POLICY_PARTS };
    let policy = reader.policy(value)?;
    let name = format!("{}/{}", shown(&policy.namespace), shown(&policy.name));
    let mut problems = reader.problems;
    for problem in &mut problems {
        problem.at = format!("{name} {}", problem.at);
    }
    Ok((policy, problems))
}

struct Reader<'a> {
    interner: &'a mut Interner,
    problems: Vec<Problem>,
    /// Rule, clause and match that are being read, as far as there is one.
    place: Vec<usize>,
    parts_left: usize,
}

impl Reader<'_> {
    fn policy(&mut self, value: &[u8]) -> Result<Policy, Refusal> {
        let [mut name, mut namespace] = [""; 2];
        let (mut scope, mut action, mut dry_run, mut rules, mut clean) = (0, 0, false, Vec::new(), true);
        for field in Fields::of(&AUTHORIZATION, value) {
            let field = field?;
            match field.number {
                1 => name = field.text()?,
                2 => namespace = field.text()?,
                3 => scope = field.word()?,
                4 => action = field.word()?,
                5 => {
                    let rule = field.bytes()?;
                    clean &= self.part(&field, rules.len(), |reader| {
                        rules.push(reader.rule(rule)?);
                        Ok(())
                    })?;
                }
                6 => dry_run = field.number()? != 0,
                _ => clean = self.unknown(&field),
            }
        }
        Ok(Policy {
            name: self.interner.intern(name),
            namespace: self.interner.intern(namespace),
            scope: policy_scope(scope)?,
            action: policy_action(action)?,
            rules: if clean { rules } else { vec![vec![vec![unreadable()]]] },
            dry_run,
        })
    }

    /// All of its clauses, or one that can't be read.
    fn rule(&mut self, bytes: &[u8]) -> Result<Vec<Vec<Match>>, Malformed> {
        let (mut clauses, mut clean) = (Vec::new(), true);
        for field in Fields::of(&RULE, bytes) {
            let field = field?;
            if field.number == 1 {
                let clause = field.bytes()?;
                clean &= self.part(&field, clauses.len(), |reader| {
                    clauses.push(reader.clause(clause)?);
                    Ok(())
                })?;
            } else {
                clean = self.unknown(&field);
            }
        }
        Ok(if clean { clauses } else { vec![vec![unreadable()]] })
    }

    /// Any of its matches, or one that can't be read.
    fn clause(&mut self, bytes: &[u8]) -> Result<Vec<Match>, Malformed> {
        let (mut matches, mut clean) = (Vec::new(), true);
        for field in Fields::of(&CLAUSE, bytes) {
            let field = field?;
            if field.number == 2 {
                let entry = field.bytes()?;
                clean &= self.part(&field, matches.len(), |reader| {
                    matches.push(reader.entry(entry)?);
                    Ok(())
                })?;
            } else {
                clean = self.unknown(&field);
            }
        }
        Ok(if clean { matches } else { vec![unreadable()] })
    }

    fn entry(&mut self, bytes: &[u8]) -> Result<Match, Malformed> {
        let mut read = Match::default();
        for field in Fields::of(&MATCH, bytes) {
            let field = field?;
            let clean = match field.number {
                1 => self.text_match(&field, &mut read.namespaces),
                2 => self.text_match(&field, &mut read.not_namespaces),
                3 => self.text_match(&field, &mut read.principals),
                4 => self.text_match(&field, &mut read.not_principals),
                5 => self.range(&field, &mut read.source_ips),
                6 => self.range(&field, &mut read.not_source_ips),
                7 => self.range(&field, &mut read.destination_ips),
                8 => self.range(&field, &mut read.not_destination_ips),
                9 => self.ports(&field, &mut read.destination_ports),
                10 => self.ports(&field, &mut read.not_destination_ports),
                11 => self.account(&field, &mut read.service_accounts),
                12 => self.account(&field, &mut read.not_service_accounts),
                _ => Ok(self.unknown(&field)),
            }?;
            read.unreadable |= !clean;
        }
        Ok(read)
    }

    fn text_match(&mut self, field: &Field<'_>, list: &mut Vec<StringMatch>) -> Result<bool, Malformed> {
        let (mut read, mut clean) = (None, true);
        for inner in Fields::of(&STRING_MATCH, field.bytes()?) {
            let inner = inner?;
            match inner.number {
                1 => read = Some(StringMatch::Exact(self.interner.intern(inner.text()?))),
                2 => read = Some(StringMatch::Prefix(self.interner.intern(inner.text()?))),
                3 => read = Some(StringMatch::Suffix(self.interner.intern(inner.text()?))),
                4 => {
                    for inner in Fields::of(&EMPTY, inner.bytes()?) {
                        clean = self.unknown(&inner?);
                    }
                    read = Some(StringMatch::Presence);
                }
                _ => clean = self.unknown(&inner),
            }
        }
        if read.is_none() && clean {
            clean = self.problem(field, "a text match of no kind", "one of exact, prefix, suffix, presence");
        }
        list.extend(read);
        Ok(clean)
    }

    fn range(&mut self, field: &Field<'_>, list: &mut Vec<IpNet>) -> Result<bool, Malformed> {
        let (mut address, mut length, mut clean) = (&[][..], 0, true);
        for inner in Fields::of(&ADDRESS, field.bytes()?) {
            let inner = inner?;
            match inner.number {
                1 => address = inner.bytes()?,
                2 => length = inner.number()?,
                _ => clean = self.unknown(&inner),
            }
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        match ip(field.name(), address).and_then(|ip| range(field.name(), ip, length)) {
            Ok(range) => list.push(range),
            Err(_) => {
                let value = format!("{} bytes with a prefix of {length} bits", address.len());
                clean = self.problem(field, &value, "an address range");
            }
        }
        Ok(clean)
    }

    fn ports(&mut self, field: &Field<'_>, list: &mut Vec<u16>) -> Result<bool, Malformed> {
        let mut clean = true;
        field.numbers(|number| match u16::try_from(number) {
            Ok(port) => list.push(port),
            Err(_) => clean = self.problem(field, &number.to_string(), "a port"),
        })?;
        Ok(clean)
    }

    fn account(&mut self, field: &Field<'_>, list: &mut Vec<ServiceAccountMatch>) -> Result<bool, Malformed> {
        let ([mut namespace, mut service_account], mut clean) = ([""; 2], true);
        for inner in Fields::of(&ACCOUNT, field.bytes()?) {
            let inner = inner?;
            match inner.number {
                1 => namespace = inner.text()?,
                2 => service_account = inner.text()?,
                _ => clean = self.unknown(&inner),
            }
        }
        list.push(ServiceAccountMatch {
            namespace: self.interner.intern(namespace),
            service_account: self.interner.intern(service_account),
        });
        Ok(clean)
    }

    /// Reads a part of what is being read; false where the policy has too many.
    fn part(
        &mut self,
        field: &Field<'_>,
        number: usize,
        read: impl FnOnce(&mut Self) -> Result<(), Malformed>,
    ) -> Result<bool, Malformed> {
        let Some(left) = self.parts_left.checked_sub(1) else {
            let wanted = "within the bound on the parts of one policy";
            return Ok(self.problem(field, &format!("part {}", POLICY_PARTS + 1), wanted));
        };
        self.parts_left = left;
        self.place.push(number);
        read(self)?;
        self.place.pop();
        Ok(true)
    }

    fn unknown(&mut self, field: &Field<'_>) -> bool {
        self.problem(field, &format!("field {}", field.number), KNOWN_FIELD)
    }

    /// Tells a problem and answers false: what is being read isn't clean any more.
    fn problem(&mut self, field: &Field<'_>, value: &str, wanted: &'static str) -> bool {
        if self.problems.len() < POLICY_PROBLEMS {
            let mut at = if self.place.is_empty() { String::new() } else { "rules".to_owned() };
            for number in &self.place {
                at.push_str(&format!("[{number}]"));
            }
            if !at.is_empty() {
                at.push(' ');
            }
            at.push_str(field.label());
            self.problems.push(Problem { at, value: value.to_owned(), wanted });
        }
        false
    }
}

/// What stands for a part that can't be read.
fn unreadable() -> Match {
    Match { unreadable: true, ..Match::default() }
}

fn policy_scope(value: i32) -> Result<PolicyScope, Refusal> {
    match pb::Scope::try_from(value) {
        Ok(pb::Scope::Global) => Ok(PolicyScope::Global),
        Ok(pb::Scope::Namespace) => Ok(PolicyScope::Namespace),
        Ok(pb::Scope::WorkloadSelector) => Ok(PolicyScope::WorkloadSelector),
        Err(_) => Err(Refusal::UnknownEnum { field: "scope", value }),
    }
}

fn policy_action(value: i32) -> Result<Action, Refusal> {
    match pb::Action::try_from(value) {
        Ok(pb::Action::Allow) => Ok(Action::Allow),
        Ok(pb::Action::Deny) => Ok(Action::Deny),
        Err(_) => Err(Refusal::UnknownEnum { field: "action", value }),
    }
}
