//! Signals: they are for the control thread, so the others look away. Handlers are tokio's, on the control
//! thread.

use std::io;
use std::mem::MaybeUninit;

/// Blocks every signal that can be blocked on the calling thread, except those that report a fault of its own
/// instructions. Shards call it first: a signal there would only cut system calls short.
pub fn shield_thread() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the whole set; sigdelset and pthread_sigmask get that initialised set.
    let error = unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGPROF] {
            libc::sigdelset(set.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Sends the calling thread the profiler's signal. Its default action ends the process, so only with a handler in
/// place.
pub fn raise_sigprof() {
    // SAFETY: raise has no preconditions.
    unsafe { libc::raise(libc::SIGPROF) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shielded_thread_blocks_terminate_but_no_faults() {
        std::thread::spawn(|| {
            shield_thread().unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
            let blocked = u64::from_str_radix(blocked, 16).unwrap();
            let bit = |signal: i32| blocked >> (signal - 1) & 1 == 1;
            assert!(bit(libc::SIGTERM) && bit(libc::SIGINT) && bit(libc::SIGHUP));
            assert!(!bit(libc::SIGSEGV) && !bit(libc::SIGBUS));
        })
        .join()
        .unwrap();
    }
}
