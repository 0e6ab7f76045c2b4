//! The process's own descriptors, how many it may have and has; and its threads' priority. Linux only, read from /proc.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};

/// Raises the soft limit of descriptors to the hard one. Returns (old soft, new soft); an unlimited value is
/// `u64::MAX`.
pub fn raise_nofile() -> io::Result<(u64, u64)> {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum })?;
    Ok((limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX)))
}

/// What the calling thread has used so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadUsage {
    /// In its own code and in the kernel.
    pub cpu: Duration,
    /// How often it slept because it had nothing to do.
    pub voluntary_switches: u64,
}

/// One call of the kernel.
pub fn thread_usage() -> ThreadUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct that it is given; all zeros is a valid one too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default())
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
    };
    ThreadUsage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        voluntary_switches: u64::try_from(usage.ru_nvcsw).unwrap_or_default(),
    }
}

/// What one thread has run, and waited for a CPU: /proc/PID/task/TID/schedstat, which stays open.
pub struct ThreadClock(Option<File>);

/// So far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadTimes {
    pub cpu: Duration,
    /// Could have run and had no CPU; zero where the kernel doesn't tell (CONFIG_SCHED_INFO).
    pub waited: Duration,
}

impl ThreadClock {
    /// Of the calling thread, which alone may ask it.
    pub fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// One call of the kernel.
    pub fn times(&self) -> ThreadTimes {
        self.told().unwrap_or_else(|| ThreadTimes { cpu: thread_usage().cpu, waited: Duration::ZERO })
    }

    fn told(&self) -> Option<ThreadTimes> {
        // Three numbers of at most twenty digits.
        let mut line = [0; 64];
        let length = self.0.as_ref()?.read_at(&mut line, 0).ok()?;
        schedstat(std::str::from_utf8(line.get(..length)?).ok()?)
    }
}

/// A line of schedstat: nanoseconds run, nanoseconds waited, how often it ran.
fn schedstat(line: &str) -> Option<ThreadTimes> {
    let mut words = line.split_ascii_whitespace();
    let mut time = || words.next()?.parse().ok().map(Duration::from_nanos);
    Some(ThreadTimes { cpu: time()?, waited: time()? })
}

/// Lets other threads go first. On Linux the priority is the calling thread's own.
pub fn be_nice(niceness: i32) -> io::Result<()> {
    Ok(setpriority_process(None, niceness)?)
}

/// The limit of descriptors in force; `None` where there is none.
pub fn nofile() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// CPU time so far of this process's threads whose names begin so, by name.
pub fn busy_of_threads(prefix: &str) -> HashMap<String, Duration> {
    let mut busy = HashMap::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // A thread may end while we look.
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let name = read("comm").trim_end().to_owned();
        if let Some(times) = schedstat(&read("schedstat")).filter(|_| name.starts_with(prefix)) {
            busy.insert(name, times.cpu);
        }
    }
    busy
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

/// The last descriptors below the limit, kept for the control thread: shards ask before they open one, so that
/// readiness, admin and the CNI socket still work when connections have taken everything else.
#[derive(Debug)]
pub struct DescriptorRoom {
    /// Descriptors from here on aren't for shards.
    ceiling: i64,
    /// The highest one seen lately. The kernel gives the lowest free one, so a low one means that there is room.
    seen: Cell<i64>,
}

impl DescriptorRoom {
    /// Keeps `reserved` descriptors free, or an eighth of a limit that is small.
    pub fn keeping(reserved: u64) -> Self {
        let limit = nofile().unwrap_or(u64::MAX);
        let ceiling = limit - reserved.min(limit / 8);
        Self { ceiling: i64::try_from(ceiling).unwrap_or(i64::MAX), seen: Cell::new(0) }
    }

    /// Whether a shard may open another one. Costs nothing while descriptors are far from the limit, two calls near it.
    pub fn is_there(&self) -> bool {
        if self.seen.get() < self.ceiling - NEAR_THE_CEILING {
            return true;
        }
        match File::open("/dev/null") {
            Ok(lowest_free) => {
                self.seen.set(i64::from(lowest_free.as_raw_fd()));
                self.seen.get() < self.ceiling
            }
            Err(_) => false,
        }
    }

    /// A descriptor that was opened.
    pub fn saw(&self, descriptor: &impl AsRawFd) {
        self.seen.set(i64::from(descriptor.as_raw_fd()));
    }
}

/// Between two looks a shard opens fewer than this.
const NEAR_THE_CEILING: i64 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::listener::is_descriptor_shortage;
    use crate::sys::testing::in_child;

    #[test]
    fn the_soft_limit_rises_to_the_hard_one_and_the_last_descriptors_are_kept() {
        in_child(
            "sys::proc::tests::the_soft_limit_rises_to_the_hard_one_and_the_last_descriptors_are_kept",
            || {
                setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(64) }).unwrap();
                assert_eq!(raise_nofile().unwrap(), (40, 64));
                let room = DescriptorRoom::keeping(100);
                let mut hoard = Vec::new();
                while room.is_there() {
                    hoard.push(File::open("/dev/null").unwrap());
                    room.saw(&hoard[hoard.len() - 1]);
                }
                assert!((40..56).contains(&hoard.len()), "{}", hoard.len());
                let kept: Vec<_> = (0..8).map(|_| File::open("/dev/null").unwrap()).collect();
                let error = File::open("/dev/null").unwrap_err();
                assert!(is_descriptor_shortage(&error), "{error}");
                drop(kept);
                assert!(!room.is_there());
                hoard.truncate(hoard.len() - 3);
                assert!(room.is_there(), "room comes back");
            },
        );
    }

    #[test]
    fn a_thread_that_works_is_busy() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let name = "busy-thread-0".to_owned();
        let worker = std::thread::Builder::new().name(name.clone()).spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        while busy_of_threads("busy-thread-").get(&name).is_none_or(Duration::is_zero) {
            std::thread::yield_now();
        }
        drop(stop);
        worker.unwrap().join().unwrap();
    }

    #[test]
    fn a_thread_that_works_uses_time_and_one_that_sleeps_is_switched_away() {
        let before = thread_usage();
        while thread_usage().cpu < before.cpu + Duration::from_millis(20) {}
        std::thread::sleep(Duration::from_millis(1));
        assert!(thread_usage().voluntary_switches > before.voluntary_switches);
    }

    #[test]
    fn a_thread_that_shares_its_cpu_waits_for_it() {
        let one = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..1_024).find(|cpu| one.is_set(*cpu)).unwrap();
        let mut only = rustix::thread::CpuSet::new();
        only.set(first);
        let spin = move || {
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            let clock = ThreadClock::of_this_thread();
            let before = clock.times();
            while clock.times().cpu < before.cpu + Duration::from_millis(100) {}
            clock.times().waited - before.waited
        };
        let threads = [std::thread::spawn(spin), std::thread::spawn(spin)];
        let waited: Duration = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert!(waited > Duration::from_millis(50), "{waited:?}");
        let untold = ThreadClock(None).times();
        assert!(untold.cpu <= thread_usage().cpu && untold.waited.is_zero(), "{untold:?}");
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
}
