//! The process's own limits and use: descriptors and memory. Linux only, read from /proc.

use std::fs::{self, File};
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard one. Returns (old soft, new soft); an unlimited value is
/// `u64::MAX`.
pub fn raise_nofile() -> io::Result<(u64, u64)> {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum })?;
    Ok((limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX)))
}

/// The limit of descriptors in force; `None` where there is none.
pub fn nofile() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Open descriptors of the process. One stat(2) where the kernel counts them (6.2 and later), else a listing.
pub fn open_fds() -> io::Result<usize> {
    let counted = fs::metadata("/proc/self/fd")?.len();
    if counted > 0 {
        return Ok(usize::try_from(counted).unwrap_or(usize::MAX));
    }
    // The listing's own descriptor is among them.
    Ok(fs::read_dir("/proc/self/fd")?.count().saturating_sub(1))
}

/// Resident memory in bytes.
pub fn rss_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = resident_pages(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm has no second number"))?;
    // SAFETY: sysconf reads a constant and touches no memory of ours.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages.saturating_mul(u64::try_from(page_bytes).unwrap_or(4_096)))
}

/// Spare descriptors that control gives back in need (EMFILE), so that readiness, admin and the CNI socket
/// still work when connections have taken everything else.
#[derive(Debug)]
pub struct Reserve {
    spare: Vec<File>,
    target: usize,
}

impl Reserve {
    /// Takes `target` descriptors at once.
    pub fn new(target: usize) -> io::Result<Self> {
        let mut reserve = Self { spare: Vec::with_capacity(target), target };
        if reserve.refill() < target {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(reserve)
    }

    /// Frees up to `count` descriptors; returns how many there were.
    pub fn release_some(&mut self, count: usize) -> usize {
        let keep = self.spare.len().saturating_sub(count);
        self.spare.drain(keep..).count()
    }

    /// Takes back what was freed, as far as the limit allows; returns how many are held.
    pub fn refill(&mut self) -> usize {
        while self.spare.len() < self.target {
            let Ok(file) = File::open("/dev/null") else { break };
            self.spare.push(file);
        }
        self.spare.len()
    }

    pub fn held(&self) -> usize {
        self.spare.len()
    }
}

fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::listener::is_descriptor_shortage;
    use crate::sys::testing::in_child;

    #[test]
    fn the_soft_limit_rises_to_the_hard_one_and_the_reserve_helps_in_need() {
        in_child(
            "sys::proc::tests::the_soft_limit_rises_to_the_hard_one_and_the_reserve_helps_in_need",
            || {
                setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(64) }).unwrap();
                assert_eq!(raise_nofile().unwrap(), (40, 64));
                let mut reserve = Reserve::new(8).unwrap();
                let mut hoard = Vec::new();
                let error = loop {
                    match File::open("/dev/null") {
                        Ok(file) => hoard.push(file),
                        Err(error) => break error,
                    }
                };
                assert!(is_descriptor_shortage(&error), "{error}");
                assert_eq!(reserve.release_some(3), 3);
                let needed = [File::open("/dev/null").unwrap(), File::open("/dev/null").unwrap()];
                assert_eq!(reserve.refill(), 6, "only one is left to take back");
                drop(needed);
                assert_eq!(reserve.refill(), 8);
                assert_eq!(reserve.release_some(100), 8);
                assert!(Reserve::new(100).is_err());
            },
        );
    }

    #[test]
    fn descriptors_are_counted() {
        in_child("sys::proc::tests::descriptors_are_counted", || {
            let before = open_fds().unwrap();
            let files: Vec<_> = (0..25).map(|_| File::open("/dev/null").unwrap()).collect();
            assert_eq!(open_fds().unwrap(), before + 25);
            drop(files);
            assert_eq!(open_fds().unwrap(), before);
        });
    }

    #[test]
    fn memory_is_plausible_and_broken_text_is_none() {
        let bytes = rss_bytes().unwrap();
        assert!((1 << 20..1 << 40).contains(&bytes), "{bytes}");
        assert_eq!(resident_pages("1234 567 89 1 0 2 0\n"), Some(567));
        assert_eq!(resident_pages("1234"), None);
        assert_eq!(resident_pages("1 minus"), None);
    }
}
