//! Profiles as `go tool pprof` reads them: stacks of addresses with their values become one message, in which each
//! text, function and address stands once. Also reads the allocator's own text about the heap.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use prost::Message;

use crate::wire::pb::profile::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// A function that an address is in, as the source has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub function: String,
    pub file: String,
    pub line: u32,
}

/// What is being counted, and in what unit.
pub type Measure = (&'static str, &'static str);

/// A profile that is being put together.
pub struct Builder<F> {
    profile: Profile,
    texts: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<u64, u64>,
    places_of: F,
}

impl<F: FnMut(u64) -> Vec<Place>> Builder<F> {
    /// `measures`: what the values of each stack are; the last one is shown first. `period`: between two samples.
    /// `places_of` is asked once for each address; of inlined functions the innermost comes first.
    pub fn new(measures: &[Measure], period: (Measure, i64), places_of: F) -> Self {
        let mut builder = Self {
            profile: Profile::default(),
            texts: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            places_of,
        };
        builder.text("");
        for measure in measures {
            let measured = builder.measure(*measure);
            builder.profile.default_sample_type = measured.r#type;
            builder.profile.sample_type.push(measured);
        }
        builder.profile.period_type = Some(builder.measure(period.0));
        builder.profile.period = period.1;
        // Symbols are in the profile, so nobody needs to look for the program.
        let filename = builder.text("ringway");
        builder.profile.mapping.push(Mapping {
            id: 1,
            memory_limit: u64::MAX,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            ..Mapping::default()
        });
        builder
    }

    /// When it began, and how long it took.
    pub fn during(&mut self, since: SystemTime, duration: Duration) {
        let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        self.profile.time_nanos = nanos(since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        self.profile.duration_nanos = nanos(duration);
    }

    /// Functions that match are left out of stacks, with all that they call.
    pub fn leave_out(&mut self, pattern: &str) {
        self.profile.drop_frames = self.text(pattern);
    }

    /// One stack, the innermost address first, with a value for each measure. Addresses are within the instruction that
    /// is carried out or has called, so one less than what a call returns to.
    pub fn add(&mut self, addresses: impl IntoIterator<Item = u64>, values: &[i64], thread: Option<&str>) {
        let location_id = addresses.into_iter().map(|address| self.location(address)).collect();
        let label = thread.map(|thread| Label { key: self.text("thread"), str: self.text(thread) });
        let label = label.into_iter().collect();
        self.profile.sample.push(Sample { location_id, value: values.to_vec(), label });
    }

    /// The message, uncompressed.
    pub fn finish(self) -> Vec<u8> {
        self.profile.encode_to_vec()
    }

    fn location(&mut self, address: u64) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let places = (self.places_of)(address);
        let line = places
            .iter()
            .map(|place| Line { function_id: self.function(place), line: place.line.into() })
            .collect();
        let id = next(self.profile.location.len());
        self.profile.location.push(Location { id, mapping_id: 1, address, line });
        self.locations.insert(address, id);
        id
    }

    fn function(&mut self, place: &Place) -> u64 {
        let (name, filename) = (self.text(&place.function), self.text(&place.file));
        if let Some(id) = self.functions.get(&(name, filename)) {
            return *id;
        }
        let id = next(self.profile.function.len());
        // Without a system name, pprof takes the name as it is and doesn't cut what stands in angle brackets.
        self.profile.function.push(Function { id, name, filename });
        self.functions.insert((name, filename), id);
        id
    }

    fn measure(&mut self, (kind, unit): Measure) -> ValueType {
        ValueType { r#type: self.text(kind), unit: self.text(unit) }
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(place) = self.texts.get(text) {
            return *place;
        }
        let place = i64::try_from(self.profile.string_table.len()).unwrap_or_default();
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), place);
        place
    }
}

/// Ids start with 1.
fn next(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX).saturating_add(1)
}

/// What jemalloc tells of the heap (its `heap_v2` text): a sample of what is in use, by who asked for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapDump {
    /// Bytes between two samples, on average.
    pub period_bytes: u64,
    pub stacks: Vec<HeapStack>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeapStack {
    /// The innermost first.
    pub addresses: Vec<u64>,
    /// In use, as they were sampled.
    pub objects: u64,
    pub bytes: u64,
}

impl HeapDump {
    /// None where it isn't such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let period_bytes = lines.next()?.strip_prefix("heap_v2/")?.trim().parse().ok()?;
        let mut stacks = Vec::new();
        let mut addresses = None;
        for line in lines.take_while(|line| *line != "MAPPED_LIBRARIES:") {
            if let Some(stack) = line.strip_prefix('@') {
                let read = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
                addresses = Some(stack.split_whitespace().map(read).collect::<Option<Vec<_>>>()?);
            } else if let Some(total) = line.trim_start().strip_prefix("t*:")
                // Those before the first stack are of all stacks together.
                && let Some(addresses) = addresses.take()
            {
                let (objects, rest) = total.split_once(':')?;
                let (objects, bytes) =
                    (objects.trim().parse().ok()?, rest.split_whitespace().next()?.parse().ok()?);
                stacks.push(HeapStack { addresses, objects, bytes });
            }
        }
        Some(Self { period_bytes, stacks })
    }
}

impl HeapStack {
    /// Objects and bytes that were in use all together: small ones are met by fewer samples.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate")]
    pub fn estimate(&self, period_bytes: u64) -> [i64; 2] {
        if self.objects == 0 || self.bytes == 0 {
            return [0, 0];
        }
        let (objects, bytes) = (self.objects as f64, self.bytes as f64);
        let met = 1.0 - (-bytes / objects / period_bytes.max(1) as f64).exp();
        [objects, bytes].map(|value| (value / met) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_function_and_address_stands_once_and_is_asked_for_once() {
        let mut asked = Vec::new();
        let place = |function: &str, line| Place { function: function.into(), file: "a.rs".into(), line };
        let period = (("cpu", "nanoseconds"), 10_000_000);
        let mut builder = Builder::new(&[("samples", "count"), ("cpu", "nanoseconds")], period, |address| {
            asked.push(address);
            match address {
                1 => vec![place("inlined", 3), place("outer", 7)],
                _ => vec![place("outer", 9)],
            }
        });
        builder.leave_out("malloc");
        builder.during(SystemTime::UNIX_EPOCH + Duration::from_secs(5), Duration::from_secs(2));
        builder.add([1, 2], &[1, 10], Some("shard-0"));
        builder.add([2], &[2, 20], None);
        let bytes = builder.finish();
        assert_eq!(asked, [1, 2]);
        let profile = Profile::decode(&*bytes).unwrap();
        let text = |place: i64| profile.string_table[usize::try_from(place).unwrap()].as_str();
        assert_eq!(text(0), "");
        let types: Vec<_> = profile.sample_type.iter().map(|of| (text(of.r#type), text(of.unit))).collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!((text(profile.default_sample_type), text(profile.drop_frames)), ("cpu", "malloc"));
        assert_eq!((profile.time_nanos, profile.duration_nanos), (5_000_000_000, 2_000_000_000));
        assert_eq!((profile.location.len(), profile.function.len()), (2, 2));
        let lines: Vec<_> =
            profile.location[0].line.iter().map(|line| (line.function_id, line.line)).collect();
        assert_eq!(lines, [(1, 3), (2, 7)]);
        assert_eq!(profile.sample[0].location_id, [1, 2]);
        assert_eq!(profile.sample[1].location_id, [2]);
        let label = &profile.sample[0].label[0];
        assert_eq!((text(label.key), text(label.str)), ("thread", "shard-0"));
        let mut once = profile.string_table.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), profile.string_table.len());
    }

    #[test]
    fn the_allocators_text_is_read_and_small_objects_are_scaled_up() {
        let text = "heap_v2/524288\n  t*: 3: 1100000 [0: 0]\n  t0: 3: 1100000 [0: 0]\n@ 0x10 0xff20\n  \
                    t*: 2: 1024 [0: 0]\n  t0: 2: 1024 [0: 0]\n@ 0x30\n  t*: 1: 52428800 [5: 6]\n\n\
                    MAPPED_LIBRARIES:\n@ nonsense\n";
        let dump = HeapDump::parse(text).unwrap();
        assert_eq!(dump.period_bytes, 524_288);
        let stack =
            |addresses: &[u64], objects, bytes| HeapStack { addresses: addresses.to_vec(), objects, bytes };
        assert_eq!(dump.stacks, [stack(&[0x10, 0xff20], 2, 1_024), stack(&[0x30], 1, 52_428_800)]);
        // A sample of 512 bytes stands for one period of them.
        let [objects, bytes] = dump.stacks[0].estimate(dump.period_bytes);
        assert!(
            (2_048..2_052).contains(&objects) && (1_048_576..1_050_000).contains(&bytes),
            "{objects} {bytes}"
        );
        assert_eq!(dump.stacks[1].estimate(dump.period_bytes), [1, 52_428_800]);
        assert_eq!(stack(&[], 0, 0).estimate(1), [0, 0]);
        for broken in ["", "heap_v1/5", "heap_v2/x\n", "heap_v2/5\n@ 12\n", "heap_v2/5\n@ 0x1\n t*: x: 1\n"] {
            assert_eq!(HeapDump::parse(broken), None, "{broken:?}");
        }
    }
}
