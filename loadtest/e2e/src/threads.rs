//! What can happen to one thread of a process: a signal that ends them all, or that it is held for a while.
#![allow(unsafe_code, reason = "tgkill and ptrace; the test crate has no other way to reach one thread")]

use std::io::{Error, Result};
use std::ptr::null_mut;

/// Threads of the process whose name begins so.
pub fn named(pid: u32, prefix: &str) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with(prefix) {
            found.extend(entry.file_name().to_string_lossy().parse::<i32>());
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// How often the threads of the process have gone to sleep so far.
pub fn voluntary_switches(pid: u32) -> Result<u64> {
    let mut all = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        let status = std::fs::read_to_string(entry?.path().join("status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += count.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(all)
}

/// Sends a signal to one thread.
pub fn signal(pid: u32, thread: i32, signal: i32) -> Result<()> {
    // SAFETY: three numbers; nothing of ours is read or written.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, libc::c_long::from(pid), thread, signal) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

/// A thread of another process that is held until this is dropped, by the thread that held it.
pub struct Held(i32);

impl Held {
    pub fn hold(thread: i32) -> Result<Self> {
        // SAFETY: both requests take no pointers; `waitpid` takes a null for the status.
        unsafe {
            traced(libc::PTRACE_SEIZE, thread)?;
            let held = Self(thread);
            traced(libc::PTRACE_INTERRUPT, thread)?;
            if libc::waitpid(thread, null_mut(), libc::__WALL) != thread {
                return Err(Error::last_os_error());
            }
            Ok(held)
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: no pointers. A thread that has ended meanwhile needs nothing.
        let _ = unsafe { traced(libc::PTRACE_DETACH, self.0) };
    }
}

/// # Safety
/// The request is one without pointers.
unsafe fn traced(request: libc::c_uint, thread: i32) -> Result<()> {
    let none = null_mut::<libc::c_void>();
    // SAFETY: the caller's word; address and data are null.
    if unsafe { libc::ptrace(request, thread, none, none) } == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}
