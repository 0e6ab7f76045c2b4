//! Network namespaces by descriptor: enter one for good, or only to make a socket there, as an in-pod proxy does.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A pod's namespace as seen by a proxy that lives in another one.
pub struct Namespace {
    own: OwnedFd,
    pod: OwnedFd,
}

impl Namespace {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { own: File::open("/proc/thread-self/ns/net")?.into(), pod: File::open(path)?.into() })
    }

    /// Runs `make` with the calling thread inside the pod. Never returns in the wrong namespace: a thread
    /// that can't come back would send other pods' traffic from this one, so the process ends.
    pub fn within<T>(&self, make: impl FnOnce() -> T) -> io::Result<T> {
        move_into(&self.pod)?;
        let made = make();
        if move_into(&self.own).is_err() {
            std::process::abort();
        }
        Ok(made)
    }
}

/// Moves the calling thread, and so all threads it starts later, into the namespace at `path`.
pub fn enter(path: &Path) -> io::Result<()> {
    move_into(&File::open(path)?.into())
}

fn move_into(namespace: &OwnedFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}
