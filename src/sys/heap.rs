//! The allocator, where the program runs on jemalloc: giving back what is free, and profiling where it was started with
//! that enabled.

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_sys::mallctl;

use crate::base::limits::HEAP_DUMP_BYTES;

/// Whether the program was started so that it can be profiled.
pub fn is_enabled() -> bool {
    flag(c"opt.prof")
}

/// Whether allocations are being sampled.
pub fn is_active() -> bool {
    is_enabled() && flag(c"prof.active")
}

/// Starts sampling allocations, or ends it and forgets what was sampled.
pub fn activate(on: bool) -> io::Result<()> {
    let mut on = on;
    // SAFETY: jemalloc documents prof.active as a writable bool.
    refused(unsafe {
        mallctl(c"prof.active".as_ptr(), null_mut(), null_mut(), (&raw mut on).cast(), size_of::<bool>())
    })?;
    if on {
        return Ok(());
    }
    // SAFETY: jemalloc documents that prof.reset takes nothing where the interval between samples stays.
    refused(unsafe { mallctl(c"prof.reset".as_ptr(), null_mut(), null_mut(), null_mut(), 0) })
}

/// What was sampled and is still in use, as the allocator's own text. It is written to memory: no file system needs to
/// be writable for it.
pub fn dump() -> io::Result<String> {
    let memory = File::from(memfd_create("heap-profile", MemfdFlags::CLOEXEC)?);
    let path = CString::new(format!("/proc/self/fd/{}", memory.as_raw_fd()))?;
    let mut name: *const c_char = path.as_ptr();
    // SAFETY: jemalloc documents prof.dump as a writable C string, the name of the file to write; it outlives the call.
    refused(unsafe {
        let size = size_of::<*const c_char>();
        mallctl(c"prof.dump".as_ptr(), null_mut(), null_mut(), (&raw mut name).cast(), size)
    })?;
    let mut text = String::new();
    memory.take(HEAP_DUMP_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// Gives back every free page, and what the calling thread keeps for its next allocations. The allocator does that by
/// itself only where much is allocated or free.
pub fn give_back() {
    // 4096 stands for all arenas (MALLCTL_ARENAS_ALL).
    for name in [c"thread.tcache.flush", c"arena.4096.purge"] {
        // SAFETY: jemalloc documents that both take and give nothing.
        let _ = unsafe { mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    }
}

/// A bool of the allocator's; false where it knows no such name.
fn flag(name: &CStr) -> bool {
    let (mut value, mut size) = (0_u8, size_of::<u8>());
    // SAFETY: the names above are documented as readable bools, which are bytes; the allocator writes one.
    let outcome = unsafe { mallctl(name.as_ptr(), (&raw mut value).cast(), &raw mut size, null_mut(), 0) };
    outcome == 0 && value != 0
}

/// The allocator's answer: 0, or an error of errno(3).
fn refused(outcome: i32) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(outcome)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_on_another_allocator_is_not_profiled() {
        // The tests run on the system's allocator; end to end, the program doesn't.
        assert!(!is_enabled() && !is_active());
        assert!(activate(true).is_err() && dump().is_err());
    }
}
