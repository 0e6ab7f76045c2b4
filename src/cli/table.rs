//! How answers are printed: columns as kubectl has them, or as JSON or YAML.

use serde::Serialize;
use serde_json::Value;

use super::OutputFormat;

/// A column of a list: its head, whether it is for `-o wide` only, and what stands in it.
pub struct Column {
    pub head: &'static str,
    pub wide: bool,
    pub cell: fn(&Value) -> String,
}

pub const fn column(head: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { head, wide: false, cell }
}

pub const fn wide(head: &'static str, cell: fn(&Value) -> String) -> Column {
    Column { head, wide: true, cell }
}

/// An answer of the admin port in the format that is wanted.
pub fn list(answer: &Value, columns: &[Column], output: OutputFormat) -> anyhow::Result<String> {
    let all = output == OutputFormat::Wide;
    let table = || {
        let columns: Vec<&Column> = columns.iter().filter(|column| all || !column.wide).collect();
        let heads = columns.iter().map(|column| column.head.to_owned()).collect();
        let items = answer.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        aligned(heads, items.iter().map(|item| columns.iter().map(|column| (column.cell)(item)).collect()))
    };
    formatted(answer, output, table)
}

/// Data in the format that is wanted.
pub fn formatted<T: Serialize + ?Sized>(
    data: &T,
    output: OutputFormat,
    table: impl FnOnce() -> String,
) -> anyhow::Result<String> {
    Ok(match output {
        OutputFormat::Table | OutputFormat::Wide => table(),
        OutputFormat::Json => serde_json::to_string_pretty(data)? + "\n",
        OutputFormat::Yaml => serde_saphyr::to_string(&data)?,
    })
}

/// Columns as kubectl prints them, the same on a terminal and in a pipe. A value stays on its line, and a value from
/// the mesh can't move a terminal's cursor.
pub fn aligned(heads: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    const GAP: usize = 3;
    let one_line = |cell: String| if cell.is_empty() { "-".to_owned() } else { printable(&cell) };
    let rows: Vec<Vec<String>> =
        std::iter::once(heads).chain(rows.map(|row| row.into_iter().map(one_line).collect())).collect();
    let mut widths = vec![0; rows.first().map_or(0, Vec::len)];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<0$}", width + GAP));
        let line: String = cells.collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Control characters as their escapes.
pub fn printable(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .flat_map(|letter| {
            let escaped: Box<dyn Iterator<Item = char>> = if letter.is_control() {
                Box::new(letter.escape_default())
            } else {
                Box::new(std::iter::once(letter))
            };
            escaped
        })
        .collect()
}

/// The text or number at a place (`source/address`); empty where there is none.
pub fn at(item: &Value, place: &str) -> String {
    let found = place.split('/').try_fold(item, |value, key| value.get(key));
    match found {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A number at a place, zero where there is none.
pub fn number(item: &Value, place: &str) -> u64 {
    place.split('/').try_fold(item, |value, key| value.get(key)).and_then(Value::as_u64).unwrap_or_default()
}

/// 532, 1.2K, 3.4M: powers of 1,024, as `ls -h` has them.
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["", "K", "M", "G", "T"] {
        if value < 1_000.0 || unit == "T" {
            return if unit.is_empty() || value >= 9.95 {
                format!("{value:.0}{unit}")
            } else {
                format!("{value:.1}{unit}")
            };
        }
        value /= 1_024.0;
    }
    String::new()
}

/// 5s, 3m20s, 2h5m, 3d4h: the two largest units, as kubectl has ages.
pub fn age(seconds: u64) -> String {
    let parts =
        [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown: String = parts
        .iter()
        .skip(first)
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

/// Who stands at an end, with the port that is meant: `NAMESPACE/WORKLOAD:PORT`, or the address.
pub fn end(item: &Value, which: &str) -> String {
    let address = at(item, &format!("{which}/address"));
    // What was asked for stands in the request of a tunnel; the tunnel itself goes to 15008.
    let told = at(item, "hboneAddress");
    let meant = if which == "destination" && !told.is_empty() { &told } else { &address };
    let name = at(item, &format!("{which}/workload"));
    match meant.rsplit_once(':') {
        Some((_, port)) if !name.is_empty() => {
            format!("{}/{name}:{port}", at(item, &format!("{which}/namespace")))
        }
        _ => meant.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_and_ages_are_short() {
        let sizes = [0, 999, 1_000, 1_536, 10_240, 1 << 20, 5 << 30].map(bytes);
        assert_eq!(sizes, ["0", "999", "1.0K", "1.5K", "10K", "1.0M", "5.0G"]);
        let ages = [0, 59, 60, 200, 7_500, 86_400, 90_061].map(age);
        assert_eq!(ages, ["0s", "59s", "1m", "3m20s", "2h5m", "1d", "1d1h"]);
    }

    #[test]
    fn a_list_has_the_columns_that_are_wanted_and_no_value_leaves_its_place() {
        let columns = [column("NAME", |item| at(item, "name")), wide("DEEP", |item| at(item, "a/b"))];
        let answer = json!({"items": [{"name": "x\n\u{1b}[2J", "a": {"b": 7}}, {"name": "long-one"}]});
        let text = list(&answer, &columns, OutputFormat::Table).unwrap();
        assert_eq!(text, "NAME\nx\\n\\u{1b}[2J\nlong-one\n");
        let text = list(&answer, &columns, OutputFormat::Wide).unwrap();
        assert_eq!(
            text.lines().map(|line| line.split_whitespace().last().unwrap()).collect::<Vec<_>>(),
            ["DEEP", "7", "-"]
        );
        let json = list(&answer, &columns, OutputFormat::Json).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), answer);
        assert!(list(&answer, &columns, OutputFormat::Yaml).unwrap().contains("long-one"));
    }

    #[test]
    fn an_end_is_named_with_the_port_that_was_asked_for() {
        let item = json!({
            "source": {"address": "10.0.0.1:4"},
            "destination": {"address": "10.0.0.2:15008", "workload": "server", "namespace": "default"},
            "hboneAddress": "10.0.0.2:8080",
        });
        assert_eq!(
            (end(&item, "source").as_str(), end(&item, "destination").as_str()),
            ("10.0.0.1:4", "default/server:8080")
        );
    }
}
