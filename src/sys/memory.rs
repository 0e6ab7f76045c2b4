//! Memory that is handed back to the kernel while its addresses stay: it comes anew when it is touched.

use std::fs;
use std::ops::Range;

/// Pages of program files (this program's own and its libraries') that the process holds but doesn't need all the
/// time, above all what only its start ran: they are let go of, and those still needed come back from the page cache.
/// Returns the KiB that were held. Takes a few milliseconds.
pub fn let_go_of_programs() -> u64 {
    // Without /proc nothing is let go of, which costs memory only.
    let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut kib = 0;
    for mapping in clean_mappings(&maps) {
        // SAFETY: the range is a mapping of a file without write permission and without a page that differs from the
        // file, so whatever is read there later is what was there before. Nothing unmaps program files: no library is
        // ever closed.
        let outcome = unsafe {
            libc::madvise(mapping.range.start as *mut libc::c_void, mapping.range.len(), libc::MADV_DONTNEED)
        };
        if outcome == 0 {
            kib += mapping.resident_kib;
        }
    }
    kib
}

/// Gives back the whole pages of a buffer. What it held is lost: there are zeros, or the old bytes where the kernel
/// refuses.
pub fn let_go_of(buffer: &mut [u8]) {
    let page = page_bytes();
    let skipped = buffer.as_ptr().align_offset(page);
    let Some(inner) = buffer.get_mut(skipped..) else { return };
    let length = inner.len() - inner.len() % page;
    // SAFETY: the pages lie wholly within the buffer, which nobody else can reach meanwhile, and heap memory is private
    // and anonymous, so that it becomes zeros, which are bytes as good as any.
    unsafe { libc::madvise(inner.as_mut_ptr().cast(), length, libc::MADV_DONTNEED) };
}

fn page_bytes() -> usize {
    // SAFETY: sysconf takes a number and gives one; every Linux knows this one.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(1 << 16)
}

struct Mapping {
    range: Range<usize>,
    resident_kib: u64,
}

/// The mappings of files in this text of smaps that can't be written and hold no page of their own, in memory or
/// swapped out. Those made read-only after relocation (RELRO) do, and so does a page that a debugger has written to. (A
/// page that counts as dirty here may only be one that the file system hasn't written yet.)
fn clean_mappings(smaps: &str) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut current: Option<Mapping> = None;
    for line in smaps.lines() {
        let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.contains([' ', '-'])) else {
            mappings.extend(current.take());
            current = file_mapping(line);
            continue;
        };
        let Some(kib) = value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()) else {
            continue;
        };
        match (key, &mut current) {
            ("Rss", Some(mapping)) => mapping.resident_kib = kib,
            ("Anonymous" | "Swap" | "Locked", _) if kib > 0 => current = None,
            _ => {}
        }
    }
    mappings.extend(current);
    mappings.retain(|mapping| mapping.resident_kib > 0);
    mappings
}

/// The first line of a mapping: `START-END PERMISSIONS OFFSET DEVICE INODE PATH`.
fn file_mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_private_and_unwritable = matches!(words.next()?, "r-xp" | "r--p");
    let path = words.nth(3)?;
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    (is_private_and_unwritable && path.starts_with('/'))
        .then_some(Mapping { range: address(start)?..address(end)?, resident_kib: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c8400000-55d0c8800000 r--p 00000000 fe:00 100      /usr/local/bin/ringway
Size:               4096 kB
Rss:                 100 kB
Private_Dirty:        64 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
55d0c8800000-55d0c9600000 r-xp 00400000 fe:00 100      /usr/local/bin/ringway
Rss:               12000 kB
Anonymous:             0 kB
55d0c9600000-55d0c9700000 r--p 01200000 fe:00 100      /usr/local/bin/ringway
Rss:                 480 kB
Private_Dirty:       476 kB
Anonymous:           476 kB
55d0c9700000-55d0c9701000 r--p 01300000 fe:00 100      /usr/local/bin/ringway
Rss:                   4 kB
Anonymous:             0 kB
Swap:                  8 kB
55d0c9701000-55d0c9710000 rw-p 01300000 fe:00 100      /usr/local/bin/ringway
Rss:                  40 kB
Anonymous:             0 kB
7f0000000000-7f0000400000 r--p 00000000 00:00 0
Rss:                 400 kB
Anonymous:             0 kB
7f0001000000-7f0001001000 r--s 00000000 fe:00 200      /some/shared
Rss:                   4 kB
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0        [vdso]
Rss:                   8 kB
";

    #[test]
    fn only_clean_mappings_of_program_files_are_let_go_of() {
        let found = clean_mappings(SMAPS);
        let found: Vec<_> = found.iter().map(|mapping| (mapping.range.start, mapping.resident_kib)).collect();
        assert_eq!(found, [(0x55d0_c840_0000, 100), (0x55d0_c880_0000, 12_000)]);
    }

    #[test]
    fn the_program_goes_on_and_holds_less() {
        let held = || {
            let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
            clean_mappings(&smaps).iter().map(|mapping| mapping.resident_kib).sum::<u64>()
        };
        let let_go = let_go_of_programs();
        assert!(let_go > 0);
        assert!(held() < let_go, "{} KiB are held, {let_go} were", held());
    }

    #[test]
    fn a_buffer_keeps_what_stands_beside_its_whole_pages() {
        let page = page_bytes();
        let mut buffer = vec![7_u8; 8 * page + 100];
        let (start, length) = (buffer.as_ptr().align_offset(page), 4 * page);
        let_go_of(&mut buffer[start + 1..start + 1 + length]);
        assert_eq!(buffer[..start + page], vec![7; start + page]);
        assert_eq!(buffer[start + page..start + length], vec![0; length - page]);
        assert!(buffer[start + length..].iter().all(|byte| *byte == 7));
        let_go_of(&mut []);
        let_go_of(&mut [1, 2, 3]);
    }
}
