//! What all log lines are made of: the time stamp, and text escaped so that no value ends its field or line.
//! Writes into a buffer that the caller owns; allocates nothing else.

use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;

/// Appends `now` as RFC 3339 UTC with microseconds: `2026-11-30T06:08:34.331556Z`. Earlier than 1970 is 1970.
pub fn write_time(now: SystemTime, out: &mut Vec<u8>) {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = civil(since.as_secs() / DAY_S);
    let second = since.as_secs() % DAY_S;
    digits(year, 4, out);
    out.push(b'-');
    digits(month, 2, out);
    out.push(b'-');
    digits(day, 2, out);
    out.push(b'T');
    digits(second / 3_600, 2, out);
    out.push(b':');
    digits(second / 60 % 60, 2, out);
    out.push(b':');
    digits(second % 60, 2, out);
    out.push(b'.');
    digits(u64::from(since.subsec_micros()), 6, out);
    out.push(b'Z');
}

/// Year, month and day of a day counted from 1970-01-01. Years count from March: the leap day ends them.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468;
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = days + DAYS_BEFORE_1970;
    let day_of_era = days % DAYS_OF_400_YEARS;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = days / DAYS_OF_400_YEARS * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// `value` in at least `width` digits.
fn digits(value: u64, width: usize, out: &mut Vec<u8>) {
    let mut text = itoa::Buffer::new();
    let text = text.format(value).as_bytes();
    out.resize(out.len() + width.saturating_sub(text.len()), b'0');
    out.extend_from_slice(text);
}

/// Appends a decimal number.
pub fn write_number(value: u64, out: &mut Vec<u8>) {
    digits(value, 1, out);
}

/// Appends `10.0.0.1:80` or `[fd00::1]:80`. By hand for IPv4: the library pads by way of a buffer of its own.
pub fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    let SocketAddr::V4(four) = address else {
        let _ = write!(Raw(out), "{address}");
        return;
    };
    let mut separators = b"...:".iter();
    for octet in four.ip().octets() {
        write_number(octet.into(), out);
        out.extend(separators.next());
    }
    write_number(four.port().into(), out);
}

/// Formats into `out` with nothing escaped: only for values that can't hold hostile text.
pub struct Raw<'a>(pub &'a mut Vec<u8>);

impl Write for Raw<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Formats into `out`, escaped as `{:?}` of a string escapes what it prints between the quotes.
pub struct Quoted<'a>(pub &'a mut Vec<u8>);

impl Write for Quoted<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, self.0, |byte| matches!(byte, b'"' | b'\\') || byte.is_ascii_control(), literal);
        Ok(())
    }
}

/// Formats into `out` without quotes; only what could forge or hide text (control characters) is escaped.
pub struct Bare<'a>(pub &'a mut Vec<u8>);

impl Write for Bare<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(
            text,
            self.0,
            |byte| byte.is_ascii_control(),
            |c, out| {
                if c.is_control() || is_line_break(c) { literal(c, out) } else { keep(c, out) }
            },
        );
        Ok(())
    }
}

/// Formats into `out`, escaped as the inside of a JSON string (RFC 8259 section 7).
pub struct Json<'a>(pub &'a mut Vec<u8>);

impl Write for Json<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, self.0, |byte| matches!(byte, b'"' | b'\\') || byte < b' ', json);
        Ok(())
    }
}

/// Copies runs of harmless ASCII; hands ASCII that is `special` and all other characters to `each`.
#[inline]
fn escape(text: &str, out: &mut Vec<u8>, special: impl Fn(u8) -> bool, each: impl Fn(char, &mut Vec<u8>)) {
    let mut rest = text;
    // A byte that stops the run starts a character, so that the split can't miss.
    while let Some((harmless, from)) = rest
        .bytes()
        .position(|byte| !byte.is_ascii() || special(byte))
        .and_then(|stop| rest.split_at_checked(stop))
    {
        out.extend_from_slice(harmless.as_bytes());
        let mut characters = from.chars();
        if let Some(c) = characters.next() {
            each(c, out);
        }
        rest = characters.as_str();
    }
    out.extend_from_slice(rest.as_bytes());
}

fn keep(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn literal(c: char, out: &mut Vec<u8>) {
    for part in c.escape_debug() {
        keep(part, out);
    }
}

/// The separators that some viewers show as the end of a line.
fn is_line_break(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}')
}

fn json(c: char, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let short = match c {
        '"' => b'"',
        '\\' => b'\\',
        '\n' => b'n',
        '\r' => b'r',
        '\t' => b't',
        '\u{8}' => b'b',
        '\u{c}' => b'f',
        '\0'..' ' => {
            out.extend_from_slice(b"\\u00");
            for nibble in [c as usize >> 4, c as usize & 15] {
                out.extend(HEX.get(nibble));
            }
            return;
        }
        _ => return keep(c, out),
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use time::OffsetDateTime;
    use time::macros::format_description;

    use super::*;

    fn with(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    proptest! {
        #[test]
        fn time_is_what_the_calendar_says(micros in 0_u64..253_402_300_800_000_000) {
            let at = UNIX_EPOCH + Duration::from_micros(micros);
            let form = format_description!(
                "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
            let expected = OffsetDateTime::from(at).format(&form).unwrap();
            prop_assert_eq!(with(|out| write_time(at, out)), expected);
        }

        #[test]
        fn numbers_print_as_numbers(value: u64) {
            prop_assert_eq!(with(|out| write_number(value, out)), value.to_string());
        }

        #[test]
        fn addresses_print_as_addresses(address: SocketAddr) {
            prop_assert_eq!(with(|out| write_address(address, out)), address.to_string());
        }

        #[test]
        fn quoted_text_is_what_debug_prints(text in any::<String>()) {
            let ours = with(|out| Quoted(out).write_str(&text).unwrap());
            prop_assert_eq!(format!("\"{ours}\""), format!("{text:?}"));
        }

        #[test]
        fn json_text_is_what_serde_writes(text in any::<String>()) {
            let ours = with(|out| Json(out).write_str(&text).unwrap());
            prop_assert_eq!(format!("\"{ours}\""), serde_json::to_string(&text).unwrap());
        }

        #[test]
        fn bare_text_never_breaks_a_line(text in any::<String>()) {
            let ours = with(|out| Bare(out).write_str(&text).unwrap());
            prop_assert!(!ours.chars().any(|c| c.is_control() || is_line_break(c)));
        }
    }

    #[test]
    fn every_ascii_character_is_escaped_as_the_references_do() {
        let text: String = (0..=127_u8).map(char::from).collect();
        assert_eq!(format!("\"{}\"", with(|out| Quoted(out).write_str(&text).unwrap())), format!("{text:?}"));
        assert_eq!(
            format!("\"{}\"", with(|out| Json(out).write_str(&text).unwrap())),
            serde_json::to_string(&text).unwrap()
        );
    }

    #[test]
    fn zero_and_times_before_the_epoch() {
        assert_eq!(with(|out| write_number(0, out)), "0");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(with(|out| write_time(before, out)), "1970-01-01T00:00:00.000000Z");
    }
}
