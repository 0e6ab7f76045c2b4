//! The grammars of single values (ztunnel-behaviour 2.1, 2.2). Pure: text in, value or reason out.

use std::num::{ParseFloatError, ParseIntError};
use std::str::{FromStr, ParseBoolError};
use std::time::Duration;

/// Why a value can't be read. `Display` is the reason in parentheses of the reference's error text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    #[error(transparent)]
    Flag(#[from] ParseBoolError),
    #[error(transparent)]
    Number(#[from] ParseIntError),
    #[error(transparent)]
    Fraction(#[from] ParseFloatError),
    #[error("{0:?} is not a number with a unit of time")]
    Term(String),
    #[error("unknown unit of time {0:?}")]
    Unit(String),
    #[error("the duration is too long")]
    TooLong,
    #[error("must be a positive CPU quantity")]
    Quantity,
    #[error("the percentage must be above 0 and at most 100")]
    Percentage,
    #[error("must be from 0 to 100")]
    Share,
    #[error("must be at least {0}")]
    Below(u64),
    #[error("must be at most {0}")]
    Above(u64),
    #[error("not one of {}", .0.join(", "))]
    Choice(&'static [&'static str]),
    #[error("{0}")]
    Uri(&'static str),
}

/// Exactly `true` or `false`.
pub fn flag(value: &str) -> Result<bool, Reason> {
    Ok(value.parse()?)
}

/// A whole number between two bounds, both included.
pub fn number<T>(value: &str, least: u64, most: u64) -> Result<T, Reason>
where
    T: FromStr<Err = ParseIntError> + Into<u64> + Copy,
{
    let number: T = value.parse()?;
    if number.into() < least {
        return Err(Reason::Below(least));
    }
    if number.into() > most {
        return Err(Reason::Above(most));
    }
    Ok(number)
}

/// `10s`, `1h30m`, `3m+31`, `1m*10`: sums of products of numbers with a unit; without one they are seconds.
pub fn duration(value: &str) -> Result<Duration, Reason> {
    let mut total = Duration::ZERO;
    for product in value.split('+') {
        let mut factors = product.split('*');
        let mut duration = concatenation(factors.next().unwrap_or_default())?;
        for factor in factors {
            let times: u32 = factor.trim().parse()?;
            duration = duration.checked_mul(times).ok_or(Reason::TooLong)?;
        }
        total = total.checked_add(duration).ok_or(Reason::TooLong)?;
    }
    Ok(total)
}

/// `1h30m`, `1h 30m`.
fn concatenation(text: &str) -> Result<Duration, Reason> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    loop {
        let split = |at: Option<usize>, text: &'_ str| at.unwrap_or(text.len());
        let (number, after) = rest.split_at(split(rest.find(|c: char| !c.is_ascii_digit()), rest));
        if number.is_empty() {
            return Err(Reason::Term(text.to_owned()));
        }
        let after = after.trim_start();
        let end = split(after.find(|c: char| c.is_ascii_digit() || c.is_whitespace()), after);
        let (unit, next) = after.split_at(end);
        let nanos =
            u128::from(number.parse::<u64>()?).checked_mul(nanoseconds(unit)?).ok_or(Reason::TooLong)?;
        let seconds = u64::try_from(nanos / NANOS_A_SECOND).map_err(|_| Reason::TooLong)?;
        let below = u32::try_from(nanos % NANOS_A_SECOND).map_err(|_| Reason::TooLong)?;
        total = total.checked_add(Duration::new(seconds, below)).ok_or(Reason::TooLong)?;
        rest = next.trim_start();
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

const NANOS_A_SECOND: u128 = 1_000_000_000;

fn nanoseconds(unit: &str) -> Result<u128, Reason> {
    const DAY: u128 = 86_400 * NANOS_A_SECOND;
    Ok(match unit.to_lowercase().as_str() {
        "ns" | "nsec" | "nanosecond" => 1,
        "us" | "µs" | "μs" | "usec" | "microsecond" => 1_000,
        "ms" | "msec" | "millisecond" => 1_000_000,
        "" | "s" | "sec" | "second" => NANOS_A_SECOND,
        "m" | "min" | "minute" => 60 * NANOS_A_SECOND,
        "h" | "hr" | "hour" => 3_600 * NANOS_A_SECOND,
        "d" | "day" => DAY,
        "w" | "week" => 7 * DAY,
        "mon" | "month" => 30 * DAY,
        "y" | "year" => 365 * DAY,
        _ => return Err(Reason::Unit(unit.to_owned())),
    })
}

/// A Kubernetes CPU quantity (`2`, `1.5`, `500m`, `1e1`), rounded up to whole CPUs.
pub fn cpus(value: &str) -> Result<usize, Reason> {
    let suffixes = [("m", 1e-3), ("u", 1e-6), ("n", 1e-9)];
    let (number, scale) = suffixes
        .into_iter()
        .find_map(|(suffix, scale)| value.strip_suffix(suffix).map(|number| (number, scale)))
        .unwrap_or((value, 1.0));
    let cpus = number.parse::<f64>()? * scale;
    if !cpus.is_finite() || cpus <= 0.0 {
        return Err(Reason::Quantity);
    }
    // The product of a decimal and 10^-3 may lie a hair above the whole number that was meant.
    whole((cpus - 1e-9).ceil()).map(|cpus| cpus.max(1)).ok_or(Reason::Above(MOST_CPUS))
}

/// More CPUs than any machine has; keeps the conversion exact.
const MOST_CPUS: u64 = 1 << 20;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be small and not negative"
)]
fn whole(value: f64) -> Option<usize> {
    (value >= 0.0 && value <= MOST_CPUS as f64).then_some(value as usize)
}

/// A percentage from 0 to 100, in parts per million.
pub fn per_million(value: &str) -> Result<u32, Reason> {
    let percent: f64 = value.parse()?;
    if !(0.0..=100.0).contains(&percent) {
        return Err(Reason::Share);
    }
    whole((percent * 10_000.0).round()).and_then(|parts| u32::try_from(parts).ok()).ok_or(Reason::Share)
}

/// How many worker threads `ZTUNNEL_WORKER_THREADS` asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Workers {
    /// 0 stands for the number of CPUs.
    Count(usize),
    /// Above 0, at most 100.
    Percent(f64),
}

impl Workers {
    pub fn of(self, cpus: usize) -> usize {
        match self {
            Self::Count(0) => cpus,
            Self::Count(count) => count,
            Self::Percent(percent) => share(cpus, percent / 100.0).max(1),
        }
    }
}

/// `share` of `cpus`, rounded up.
pub fn share(cpus: usize, share: f64) -> usize {
    whole((cpus as f64 * share - 1e-9).ceil()).unwrap_or(cpus)
}

pub fn workers(value: &str) -> Result<Workers, Reason> {
    let Some(percent) = value.strip_suffix('%') else {
        return Ok(Workers::Count(value.parse()?));
    };
    let percent: f64 = percent.trim().parse()?;
    if percent > 0.0 && percent <= 100.0 { Ok(Workers::Percent(percent)) } else { Err(Reason::Percentage) }
}

/// The address of a control plane; without a scheme it is `https`.
pub fn uri(value: &str) -> Result<String, Reason> {
    let value = if value.contains("://") { value.to_owned() } else { format!("https://{value}") };
    let uri: hyper::Uri = value.parse().map_err(|_| Reason::Uri("not scheme://host[:port]"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) | None => return Err(Reason::Uri("the scheme is neither http nor https")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(Reason::Uri("the host is missing"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_of_the_grammar() {
        for (text, millis) in [
            ("10s", 10_000),
            ("5m", 300_000),
            ("100ms", 100),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("3m+31", 211_000),
            ("3m + 31", 211_000),
            ("3m + 1s + 29ms", 181_029),
            ("1m*10", 600_000),
            ("1m * 10 + 5", 605_000),
            ("42", 42_000),
            ("0", 0),
            (" 7 s ", 7_000),
            ("1d", 86_400_000),
            ("1W", 604_800_000),
            ("2Hour", 7_200_000),
            ("1mon", 2_592_000_000),
            ("1y", 31_536_000_000),
            ("1500us", 1),
        ] {
            assert_eq!(duration(text).unwrap().as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration() {
        for text in [
            "",
            " ",
            "s",
            "-1s",
            "1.5s",
            "10x",
            "1h-3m",
            "+",
            "1s+",
            "1s*",
            "1s*1m",
            "5 apples",
            "1y*4294967295*4294967295*4294967295",
        ] {
            assert!(duration(text).is_err(), "{text:?} was read as {:?}", duration(text));
        }
        assert_eq!(duration("10x").unwrap_err().to_string(), "unknown unit of time \"x\"");
        assert_eq!(
            duration("99999999999999999999s").unwrap_err().to_string(),
            "number too large to fit in target type"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = (duration(&text), cpus(&text), workers(&text), uri(&text), flag(&text), per_million(&text));
        }

        #[test]
        fn terms_add_up(hours in 0_u64..1_000, minutes in 0_u64..1_000, millis in 0_u64..100_000) {
            let expected = Duration::from_secs(hours * 3_600 + minutes * 60) + Duration::from_millis(millis);
            prop_assert_eq!(duration(&format!("{hours}h{minutes}m{millis}ms")).unwrap(), expected);
            prop_assert_eq!(duration(&format!("{hours}h + {minutes}m+{millis}ms")).unwrap(), expected);
        }
    }

    #[test]
    fn cpu_quantities_round_up() {
        for (text, expected) in [
            ("2", 2),
            ("1.5", 2),
            ("500m", 1),
            ("2000m", 2),
            ("2001m", 3),
            ("0.1", 1),
            ("1e1", 10),
            ("4000000u", 4),
            ("300m", 1),
            ("7000m", 7),
        ] {
            assert_eq!(cpus(text).unwrap(), expected, "{text}");
        }
        for text in ["0", "-1", "inf", "NaN", "0m", "1e30"] {
            assert!(cpus(text).is_err(), "{text}");
        }
        assert_eq!(cpus("0").unwrap_err().to_string(), "must be a positive CPU quantity");
        assert!(matches!(cpus("two"), Err(Reason::Fraction(_))));
    }

    #[test]
    fn percentages_are_parts_per_million() {
        for (text, expected) in
            [("100", 1_000_000), ("0", 0), ("0.1", 1_000), ("12.5", 125_000), ("0.0001", 1)]
        {
            assert_eq!(per_million(text).unwrap(), expected, "{text}");
        }
        for text in ["", "100.1", "-1", "NaN", "10%", "inf"] {
            assert!(per_million(text).is_err(), "{text}");
        }
    }

    #[test]
    fn worker_counts_and_percentages() {
        assert_eq!(workers("0").unwrap().of(6), 6);
        assert_eq!(workers("3").unwrap().of(6), 3);
        assert_eq!(workers("50%").unwrap().of(5), 3);
        assert_eq!(workers("1%").unwrap().of(1), 1);
        assert_eq!(workers("100%").unwrap().of(64), 64);
        for text in ["0%", "101%", "-5%", "NaN%", "%"] {
            assert!(workers(text).is_err(), "{text}");
        }
        assert!(workers("-1").is_err());
    }

    #[test]
    fn addresses_get_a_scheme() {
        assert_eq!(uri("istiod.istio-system.svc:15012").unwrap(), "https://istiod.istio-system.svc:15012");
        assert_eq!(uri("http://10.0.0.1:15010").unwrap(), "http://10.0.0.1:15010");
        assert_eq!(uri("[fd00::1]:15012").unwrap(), "https://[fd00::1]:15012");
        for text in ["ftp://x", "https://", "http://a b", "unix:///var/run/x"] {
            assert!(uri(text).is_err(), "{text}");
        }
    }

    #[test]
    fn flags_are_exact_and_numbers_are_bounded() {
        assert!(flag("true").unwrap() && !flag("false").unwrap());
        assert_eq!(flag("True").unwrap_err().to_string(), "provided string was not `true` or `false`");
        assert_eq!(number::<u32>("15", 10, 20).unwrap(), 15);
        assert_eq!(number::<u32>("9", 10, 20).unwrap_err(), Reason::Below(10));
        assert_eq!(number::<u32>("21", 10, 20).unwrap_err(), Reason::Above(20));
        let too_large = number::<u16>("65536", 0, u64::MAX).unwrap_err();
        assert_eq!(too_large.to_string(), "number too large to fit in target type");
    }
}
