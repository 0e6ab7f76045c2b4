//! Network namespaces: work in another one for a moment, and always come back. A thread that can't come back
//! would put other pods' sockets into the wrong pod, so that aborts the process. Only this module moves
//! threads. Threads spawned inside `run` inherit the namespace: don't.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// An open network namespace; clones share the descriptor, which keeps the namespace alive.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
    identity: Identity,
}

/// Device and inode of the namespace file: equal means the same namespace (namespaces(7)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Identity {
    device: u64,
    inode: u64,
}

thread_local! {
    /// Where this thread is, opened at its first visit elsewhere.
    static HERE: RefCell<Option<Netns>> = const { RefCell::new(None) };
}

impl Netns {
    /// Takes a namespace descriptor, as the CNI agent passes it. Errors: fstat(2)'s, or `InvalidInput` where
    /// the descriptor is of no network namespace.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // A pod's descriptor may be a bind mount, an nsfs link or a /proc file; all of them live on nsfs.
        let kind = rustix::fs::fstatfs(&fd)?.f_type;
        if kind != NSFS_MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is of no namespace"));
        }
        let stat = rustix::fs::fstat(&fd)?;
        let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
        Ok(Self { fd: Arc::new(fd), identity })
    }

    /// The calling thread's namespace.
    pub fn current() -> io::Result<Self> {
        Self::from_fd(File::open("/proc/thread-self/ns/net")?.into())
    }

    pub fn same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// The inode, as `ip netns identify` and /proc/*/ns/net show it.
    pub fn inode(&self) -> u64 {
        self.identity.inode
    }

    /// Runs `work` inside this namespace. Costs two setns(2) (16 to 33 us), or nothing where the thread is
    /// there already; nests. Errors are of the way in, `work` has not run then.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> io::Result<R> {
        let before = here()?;
        if before.same_as(self) {
            return Ok(work());
        }
        self.set()?;
        let _back = WayBack(before);
        Ok(work())
    }

    /// Moves the calling thread here for good (a thread that serves one namespace, tests).
    pub fn enter(&self) -> io::Result<()> {
        self.set()
    }

    fn set(&self) -> io::Result<()> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?;
        HERE.with(|here| here.replace(Some(self.clone())));
        Ok(())
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Start-up check of the right to change namespaces (CAP_SYS_ADMIN): a setns(2) to the thread's own.
pub fn probe_setns() -> io::Result<()> {
    Netns::current()?.set()
}

/// magic.h; `statfs.f_type` of every namespace file.
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

fn here() -> io::Result<Netns> {
    HERE.with(|here| {
        if let Some(known) = here.borrow().as_ref() {
            return Ok(known.clone());
        }
        let current = Netns::current()?;
        here.replace(Some(current.clone()));
        Ok(current)
    })
}

/// Goes back when dropped, so also when the work panics.
struct WayBack(Netns);

impl Drop for WayBack {
    fn drop(&mut self) {
        if let Err(error) = self.0.set() {
            let inode = self.0.inode();
            let _ = writeln!(io::stderr(), "cannot return to network namespace {inode}: {error}; aborting");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{Space, child, deny};
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn work_runs_inside_nested_and_the_thread_ends_where_it_was() {
        let (one, two) = (Space::new("one"), Space::new("two"));
        let home = Netns::current().unwrap();
        let inner = one
            .netns()
            .run(|| {
                assert!(Netns::current().unwrap().same_as(one.netns()));
                let inner = two.netns().run(|| Netns::current().unwrap()).unwrap();
                assert!(Netns::current().unwrap().same_as(one.netns()), "came back to the wrong one");
                one.netns().run(|| assert!(Netns::current().unwrap().same_as(one.netns()))).unwrap();
                inner
            })
            .unwrap();
        assert!(inner.same_as(two.netns()));
        assert!(!inner.same_as(one.netns()));
        assert!(Netns::current().unwrap().same_as(&home));
    }

    #[test]
    fn a_panic_inside_comes_back_too() {
        let space = Space::new("panic");
        std::thread::spawn(move || {
            let home = Netns::current().unwrap();
            let work = std::panic::AssertUnwindSafe(|| space.netns().run(|| panic!("on purpose")));
            assert!(std::panic::catch_unwind(work).is_err());
            assert!(Netns::current().unwrap().same_as(&home));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_cannot_come_back_aborts_the_process() {
        let name = "sys::netns::tests::a_thread_that_cannot_come_back_aborts_the_process";
        let Some(output) = child(name) else {
            // Any other namespace does; one that `ip` made would outlive the abort.
            let other = std::thread::spawn(|| {
                // SAFETY: a new network namespace for this thread touches no memory and no descriptor.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                Netns::current().unwrap()
            });
            let other = other.join().unwrap();
            other.run(|| deny(libc::SYS_setns, libc::EPERM)).unwrap();
            unreachable!("went on in a foreign namespace");
        };
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot return to network namespace"), "{said}");
    }

    #[test]
    fn two_descriptors_of_one_namespace_are_the_same_and_other_files_are_refused() {
        let space = Space::new("same");
        let again = Netns::from_fd(File::open(space.path()).unwrap().into()).unwrap();
        assert!(again.same_as(space.netns()));
        assert!(!again.same_as(&Netns::current().unwrap()));
        let error = Netns::from_fd(File::open("/dev/null").unwrap().into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_namespace_of_another_kind_is_an_error_and_no_move() {
        let wrong = Netns::from_fd(File::open("/proc/self/ns/uts").unwrap().into()).unwrap();
        let error = wrong.run(|| ()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn entering_is_for_good_and_the_probe_passes_for_root() {
        probe_setns().expect("this test needs root (CAP_SYS_ADMIN)");
        let space = Space::new("enter");
        std::thread::spawn(move || {
            space.netns().enter().unwrap();
            assert!(Netns::current().unwrap().same_as(space.netns()));
        })
        .join()
        .unwrap();
    }
}
