//! A page of metrics taken apart, so that two of them can be compared family by family.

use std::collections::BTreeMap;

/// One family as the page has it.
#[derive(Clone, Debug, Default)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: String,
    pub unit: Option<String>,
    /// Values by name and labels, in the order of the labels on the page.
    pub series: BTreeMap<String, f64>,
}

/// The families in their order. A sample that belongs to no head before it, or a page without its end, is a panic.
#[track_caller]
pub fn families(page: &str) -> Vec<Family> {
    let text = page.strip_suffix("# EOF\n").expect("the end of the page");
    let mut all: Vec<Family> = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        if line.starts_with('#') {
            let (_, what, name, rest) = (words.next(), words.next(), words.next(), words.next());
            let (name, rest) = (name.expect("a name"), rest.unwrap_or_default().to_owned());
            if what == Some("HELP") {
                assert!(all.iter().all(|family| family.name != name), "{name} stands twice");
                all.push(Family { name: name.to_owned(), help: rest, ..Family::default() });
                continue;
            }
            let family = all.last_mut().filter(|family| family.name == name).expect("HELP comes first");
            match what {
                Some("TYPE") => family.kind = rest,
                Some("UNIT") => family.unit = Some(rest),
                _ => panic!("what is {line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let family = all.last_mut().filter(|family| series.starts_with(&family.name)).expect("a head before");
        let before = family.series.insert(series.to_owned(), value.parse().expect("a number"));
        assert_eq!(before, None, "{series} stands twice");
    }
    all
}
