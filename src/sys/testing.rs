//! Scaffolding of this layer's tests: namespaces that vanish with the test, and tests that run in a child
//! process.

use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sys::netns::Netns;

/// A network namespace made by `ip netns add`, with `lo` up; deleted when dropped.
pub struct Space {
    name: String,
    netns: Netns,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Space {
    pub fn new(what: &str) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rw-sys-{}-{number}-{what}", std::process::id());
        ip(&format!("netns add {name}"));
        let fd = std::fs::File::open(format!("/run/netns/{name}")).unwrap().into();
        let space = Self { netns: Netns::from_fd(fd).unwrap(), name };
        ip(&format!("-n {} link set lo up", space.name));
        space
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// `ip -n <this> ...`
    pub fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name));
    }

    /// Any command inside.
    pub fn exec(&self, command: &str) {
        ip(&format!("netns exec {} {command}", self.name));
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// The `ip` command; fails the test with its own words.
pub fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("this test needs iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`ip {arguments}` failed (this test needs root): {said}");
}

/// Runs `work` in a process of its own, for what would change this one (limits). `test` is the full name of
/// the calling test, which is started again there.
pub fn in_child(test: &str, work: impl FnOnce()) {
    let Some(output) = child(test) else { return work() };
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "in the child: {said}\n{wrong}");
}

/// What became of `test` in a process of its own; `None` in that process.
pub fn child(test: &str) -> Option<Output> {
    const MARK: &str = "RINGWAY_TEST_CHILD";
    if std::env::var_os(MARK).is_some() {
        return None;
    }
    let program = std::env::current_exe().unwrap();
    Some(Command::new(program).args(["--exact", test, "--nocapture"]).env(MARK, "1").output().unwrap())
}

/// Makes a system call fail with `errno` for the calling thread, for good, as a container's profile does.
pub fn deny(call: libc::c_long, errno: i32) {
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        step(0x20, 0, 0),
        step(0x15, 1, u32::try_from(call).unwrap()),
        step(0x06, 0, libc::SECCOMP_RET_ALLOW),
        step(0x06, 0, libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap()),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: numbers only, and a program that lives during the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// Two ends of a loopback connection, non-blocking.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (two, _) = listener.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    two.set_nonblocking(true).unwrap();
    (one, two)
}

pub fn wait_readable(fd: BorrowedFd<'_>) {
    wait(fd, PollFlags::IN);
}

pub fn wait_writable(fd: BorrowedFd<'_>) {
    wait(fd, PollFlags::OUT);
}

fn wait(fd: BorrowedFd<'_>, what: PollFlags) {
    let limit = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "nothing happened for 5 s");
}
