//! Whether this process may use io_uring, found out by making a ring; and where not, whose doing it is.
//! The answer decides between monoio's two drivers, once, at start.

use std::fmt;
use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::base::limits::RING_PROBE_ENTRIES;

/// The kernel refuses a ring, or the ring lacks an operation. Shards run on epoll then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot create an io_uring ({}): {why}. Running on epoll; see {}.", errno_name(*cause), why.page())]
pub struct RingRefusal {
    /// The errno of io_uring_setup(2); zero where a ring was made but can't be used.
    pub cause: i32,
    pub why: Why,
}

/// Who refuses, as far as it can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    Seccomp,
    /// `kernel.io_uring_disabled`, 1 or 2.
    Disabled(u8),
    /// SELinux, AppArmor or another module.
    SecurityModule,
    /// RLIMIT_MEMLOCK in bytes (kernels before 5.12 account rings to it).
    LockedMemory(u64),
    Memory,
    Descriptors,
    TooOld,
    /// The kernel's rings lack this operation, which the event loop needs.
    Lacks(&'static str),
    Unknown,
}

/// Makes a small ring, asks it for the operations of the event loop, and throws it away.
pub fn probe() -> Result<(), RingRefusal> {
    let ring = IoUring::new(RING_PROBE_ENTRIES).map_err(|error| refusal(&error))?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| RingRefusal { cause: error.raw_os_error().unwrap_or(0), why: Why::TooOld })?;
    match NEEDED.iter().find(|(_, code)| !probe.is_supported(*code)) {
        Some((name, _)) => Err(RingRefusal { cause: 0, why: Why::Lacks(name) }),
        None => Ok(()),
    }
}

/// What monoio 0.2 asks for before it uses a ring, and what its network part submits.
const NEEDED: [(&str, u8); 17] = [
    ("ACCEPT", opcode::Accept::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("FSYNC", opcode::Fsync::CODE),
    ("OPENAT", opcode::OpenAt::CODE),
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("PROVIDE_BUFFERS", opcode::ProvideBuffers::CODE),
    ("READ", opcode::Read::CODE),
    ("READV", opcode::Readv::CODE),
    ("RECV", opcode::Recv::CODE),
    ("SEND", opcode::Send::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
    ("RECVMSG", opcode::RecvMsg::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("WRITE", opcode::Write::CODE),
    ("WRITEV", opcode::Writev::CODE),
];

/// What the process can find out about itself when a ring is refused.
#[derive(Clone, Copy, Default, Debug)]
struct Surroundings {
    /// `kernel.io_uring_disabled`, where the kernel has it.
    disabled: Option<u8>,
    /// A seccomp filter is in force for this thread.
    filtered: bool,
    locked_memory_bytes: u64,
    /// The kernel has rings at all (5.1): /proc/kallsyms can't be relied on, so by version.
    has_rings: bool,
}

fn refusal(error: &io::Error) -> RingRefusal {
    let cause = error.raw_os_error().unwrap_or(0);
    RingRefusal { cause, why: diagnose(cause, look_around()) }
}

fn diagnose(cause: i32, around: Surroundings) -> Why {
    match (cause, around.disabled) {
        (libc::EPERM, Some(level @ (1 | 2))) => Why::Disabled(level),
        (libc::EPERM | libc::EACCES, _) if around.filtered => Why::Seccomp,
        (libc::EPERM | libc::EACCES, _) => Why::SecurityModule,
        // Newer container runtimes answer ENOSYS for what their profile doesn't know.
        (libc::ENOSYS, _) if around.filtered && around.has_rings => Why::Seccomp,
        (libc::ENOSYS, _) => Why::TooOld,
        (libc::ENOMEM, _) if around.locked_memory_bytes < ENOUGH_LOCKED_BYTES => {
            Why::LockedMemory(around.locked_memory_bytes)
        }
        (libc::ENOMEM, _) => Why::Memory,
        (libc::EMFILE | libc::ENFILE, _) => Why::Descriptors,
        _ => Why::Unknown,
    }
}

/// A limit above this can't be what refuses a small ring.
const ENOUGH_LOCKED_BYTES: u64 = 1 << 20;

fn look_around() -> Surroundings {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let locked = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    Surroundings {
        disabled: disabled.and_then(|text| text.trim().parse().ok()),
        filtered: is_filtered(&status),
        locked_memory_bytes: locked.unwrap_or(u64::MAX),
        has_rings: rustix::system::uname().release().to_str().is_ok_and(has_rings),
    }
}

/// proc(5): `Seccomp: 2` is filter mode.
fn is_filtered(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == "2")
}

fn has_rings(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 1)
}

impl Why {
    fn page(&self) -> &'static str {
        match self {
            Self::Seccomp => "deploy/docs/seccomp.md",
            Self::Disabled(_)
            | Self::SecurityModule
            | Self::LockedMemory(_)
            | Self::Memory
            | Self::Descriptors
            | Self::TooOld
            | Self::Lacks(_)
            | Self::Unknown => "deploy/docs/event-loop.md",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seccomp => f.write_str("the container's seccomp profile denies it"),
            Self::Disabled(2) => f.write_str("kernel.io_uring_disabled=2"),
            Self::Disabled(level) => {
                write!(f, "kernel.io_uring_disabled={level}, and the process lacks CAP_SYS_ADMIN there")
            }
            Self::SecurityModule => f.write_str("a security module (SELinux, AppArmor) denies it"),
            Self::LockedMemory(bytes) => write!(f, "RLIMIT_MEMLOCK is {bytes} bytes"),
            Self::Memory => f.write_str("the kernel or the container is out of memory"),
            Self::Descriptors => f.write_str("no descriptor is left (RLIMIT_NOFILE)"),
            Self::TooOld => f.write_str("the kernel is too old"),
            Self::Lacks(name) => write!(f, "the kernel is too old, its rings lack {name}"),
            Self::Unknown => f.write_str("for a reason that is not known"),
        }
    }
}

fn errno_name(errno: i32) -> String {
    let name = match errno {
        0 => "no error",
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOSYS => "ENOSYS",
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::EINVAL => "EINVAL",
        other => return format!("errno {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::deny;

    #[test]
    fn this_kernel_gives_a_ring() {
        // The bench and test machines must have io_uring: a silent fallback would measure the wrong loop.
        probe().unwrap();
    }

    #[test]
    fn a_seccomp_filter_is_named_as_the_cause() {
        std::thread::spawn(|| {
            deny(libc::SYS_io_uring_setup, libc::EPERM);
            let refusal = probe().unwrap_err();
            assert_eq!(refusal.cause, libc::EPERM);
            assert_eq!(
                refusal.to_string(),
                "cannot create an io_uring (EPERM): the container's seccomp profile denies it. \
                 Running on epoll; see deploy/docs/seccomp.md."
            );
        })
        .join()
        .unwrap();
        std::thread::spawn(|| {
            deny(libc::SYS_io_uring_setup, libc::ENOSYS);
            assert_eq!(probe().unwrap_err().why, Why::Seccomp);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn each_cause_has_its_reason() {
        let around =
            Surroundings { has_rings: true, locked_memory_bytes: u64::MAX, ..Surroundings::default() };
        let filtered = Surroundings { filtered: true, ..around };
        let sysctl = |level| Surroundings { disabled: Some(level), ..filtered };
        let locked = Surroundings { locked_memory_bytes: 65_536, ..around };
        let old = Surroundings { has_rings: false, ..filtered };
        for (cause, around, why) in [
            (libc::EPERM, sysctl(2), Why::Disabled(2)),
            (libc::EPERM, sysctl(1), Why::Disabled(1)),
            (libc::EPERM, sysctl(0), Why::Seccomp),
            (libc::EPERM, around, Why::SecurityModule),
            (libc::EACCES, around, Why::SecurityModule),
            (libc::ENOSYS, around, Why::TooOld),
            (libc::ENOSYS, filtered, Why::Seccomp),
            (libc::ENOSYS, old, Why::TooOld),
            (libc::ENOMEM, locked, Why::LockedMemory(65_536)),
            (libc::ENOMEM, around, Why::Memory),
            (libc::EMFILE, around, Why::Descriptors),
            (libc::EIO, around, Why::Unknown),
        ] {
            assert_eq!(diagnose(cause, around), why, "errno {cause}, {around:?}");
        }
        let text = RingRefusal { cause: libc::EPERM, why: Why::Disabled(2) }.to_string();
        assert!(text.starts_with("cannot create an io_uring (EPERM): kernel.io_uring_disabled=2."), "{text}");
    }

    #[test]
    fn versions_and_status_are_read() {
        assert!(has_rings("5.1.0") && has_rings("6.18.44-x") && has_rings("5.15-generic"));
        assert!(!has_rings("5.0.9") && !has_rings("4.18.0-553.el8") && !has_rings("") && !has_rings("x.y"));
        assert!(is_filtered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        assert!(!is_filtered("Seccomp:\t0\nSeccomp_filters:\t2\n"));
    }
}
