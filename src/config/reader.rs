//! Reads variables by the table: value from the environment or the row's default, errors collected, and for
//! `config show` what was read and where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::error::ConfigError;
use super::parse::{self, Reason};
use super::table::{self, Fallback, Kind, Variable};

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Environment,
    File(PathBuf),
    /// The PROXY_CONFIG document.
    ProxyConfig,
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("environment"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::ProxyConfig => f.write_str("environment (PROXY_CONFIG)"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One line of `config show`. Secrets are described, not shown.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Shown {
    pub name: String,
    pub value: String,
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

/// One pass over the environment.
pub struct Reader<'a> {
    environment: &'a BTreeMap<String, String>,
    pub errors: Vec<ConfigError>,
    pub warnings: Vec<String>,
    shown: Vec<Shown>,
}

impl<'a> Reader<'a> {
    pub fn new(environment: &'a BTreeMap<String, String>) -> Self {
        Self { environment, errors: Vec::new(), warnings: Vec::new(), shown: Vec::new() }
    }

    /// What was read, in the order of the table; what is unset and has no value shows its rule.
    pub fn take_shown(&mut self) -> Vec<Shown> {
        for Variable { name, default, .. } in table::VARIABLES {
            let is_shown = name.ends_with('*') || self.shown.iter().any(|shown| shown.name == *name);
            if let (false, Fallback::Rule(rule)) = (is_shown, default) {
                self.note(name, format_args!("({rule})"), Origin::Default);
            }
        }
        let mut shown = std::mem::take(&mut self.shown);
        shown.sort_by_cached_key(|shown| (table::place(&shown.name), shown.name.clone()));
        shown
    }

    /// Replaces what is shown of a value: it is long or secret.
    pub fn describe(&mut self, name: &str, description: String) {
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.name == name) {
            shown.value = description;
        }
    }

    /// Notes a value that a rule of the program decided.
    pub fn note(&mut self, name: &str, value: impl fmt::Display, origin: Origin) {
        self.shown.push(Shown { name: name.to_owned(), value: value.to_string(), origin });
    }

    /// As it stands in the environment, not noted.
    pub fn raw(&self, name: &str) -> Option<&'a str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Every variable with a prefix: (rest of the name, value), not noted.
    pub fn prefixed(&self, prefix: &'static str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let named = self.environment.range(prefix.to_owned()..);
        named.map_while(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.environment.keys().map(String::as_str)
    }

    pub fn flag(&mut self, name: &'static str) -> bool {
        self.parsed(name, parse::flag).unwrap_or_default()
    }

    pub fn maybe_flag(&mut self, name: &'static str) -> Option<bool> {
        self.parsed(name, parse::flag)
    }

    pub fn duration(&mut self, name: &'static str) -> Duration {
        self.maybe_duration(name).unwrap_or_default()
    }

    pub fn maybe_duration(&mut self, name: &'static str) -> Option<Duration> {
        self.parsed(name, parse::duration)
    }

    /// Within the bounds that the row gives.
    pub fn maybe_number<T>(&mut self, name: &'static str) -> Option<T>
    where
        T: FromStr<Err = ParseIntError> + Into<u64> + Copy,
    {
        let (least, most) = match table::find(name).map(|row| row.kind) {
            Some(Kind::Number(least, most)) => (least, most),
            _ => (0, u64::MAX),
        };
        self.parsed(name, |text| parse::number(text, least, most))
    }

    pub fn number<T>(&mut self, name: &'static str) -> T
    where
        T: FromStr<Err = ParseIntError> + Into<u64> + Copy + Default,
    {
        self.maybe_number(name).unwrap_or_default()
    }

    /// A percentage, in parts per million.
    pub fn per_million(&mut self, name: &'static str) -> u32 {
        self.parsed(name, parse::per_million).unwrap_or_default()
    }

    pub fn workers(&mut self) -> Option<parse::Workers> {
        self.raw("ZTUNNEL_WORKER_THREADS")?;
        self.parsed("ZTUNNEL_WORKER_THREADS", parse::workers)
    }

    pub fn cpus(&mut self, name: &'static str) -> Option<usize> {
        self.parsed(name, parse::cpus)
    }

    /// An empty value counts as one.
    pub fn maybe_text(&mut self, name: &'static str) -> Option<String> {
        self.parsed(name, |text| Ok(text.to_owned()))
    }

    pub fn text(&mut self, name: &'static str) -> String {
        self.maybe_text(name).unwrap_or_default()
    }

    /// Whether the variable holds exactly the row's word.
    pub fn word(&mut self, name: &'static str) -> bool {
        let word = match table::find(name).map(|row| row.kind) {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        };
        self.maybe_text(name).as_deref() == word
    }

    /// One of the row's words, by its place.
    pub fn choice<T: Copy>(&mut self, name: &'static str, meanings: &[T]) -> Option<T> {
        let words = match table::find(name).map(|row| row.kind) {
            Some(Kind::Choice(words)) => words,
            _ => &[],
        };
        self.parsed(name, |text| {
            let place = words.iter().position(|word| *word == text);
            place.and_then(|place| meanings.get(place)).copied().ok_or(Reason::Choice(words))
        })
    }

    /// The value of the environment, or the row's default; a bad value is an error and reads as none.
    fn parsed<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, Reason>) -> Option<T> {
        let row = table::find(name)?;
        let Some(value) = self.raw(name) else {
            return match row.default {
                Fallback::Is(value) => {
                    self.note(name, value, Origin::Default);
                    parse(value).ok()
                }
                Fallback::Rule(_) => None,
            };
        };
        self.note(name, value, Origin::Environment);
        parse(value).map_err(|reason| self.refuse(row, value, reason)).ok()
    }

    fn refuse(&mut self, row: &Variable, value: &str, reason: Reason) {
        let error =
            ConfigError::Variable { name: row.name, value: value.to_owned(), reason, expected: row.kind };
        self.errors.push(error);
    }
}
