//! Heap profiling by the allocator, where the program runs on jemalloc and was started with it enabled.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use tikv_jemalloc_ctl::raw;

use crate::base::limits::HEAP_DUMP_BYTES;

/// Whether the program was started so that it can be profiled.
pub fn is_enabled() -> bool {
    // SAFETY: jemalloc documents opt.prof as a readable bool.
    unsafe { raw::read(b"opt.prof\0") }.unwrap_or(false)
}

/// Whether allocations are being sampled.
pub fn is_active() -> bool {
    // SAFETY: jemalloc documents prof.active as a readable bool.
    is_enabled() && unsafe { raw::read(b"prof.active\0") }.unwrap_or(false)
}

/// Starts sampling allocations, or ends it and forgets what was sampled.
pub fn activate(on: bool) -> io::Result<()> {
    // SAFETY: jemalloc documents prof.active as a writable bool.
    unsafe { raw::write(b"prof.active\0", on) }.map_err(refused)?;
    if !on {
        // SAFETY: jemalloc documents prof.lg_sample as a readable size_t, and prof.reset as a writable one.
        unsafe {
            let period: usize = raw::read(b"prof.lg_sample\0").map_err(refused)?;
            raw::write(b"prof.reset\0", period).map_err(refused)?;
        }
    }
    Ok(())
}

/// What was sampled and is still in use, as the allocator's own text. It is written to memory: no file system needs to
/// be writable for it.
pub fn dump() -> io::Result<String> {
    let memory = File::from(memfd_create("heap-profile", MemfdFlags::CLOEXEC)?);
    let path = CString::new(format!("/proc/self/fd/{}", memory.as_raw_fd()))?;
    // SAFETY: jemalloc documents prof.dump as a writable C string, the name of the file to write; it outlives the call.
    unsafe { raw::write(b"prof.dump\0", path.as_ptr()) }.map_err(refused)?;
    let mut text = String::new();
    memory.take(HEAP_DUMP_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn refused(error: tikv_jemalloc_ctl::Error) -> io::Error {
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_on_another_allocator_is_not_profiled() {
        // The tests run on the system's allocator; end to end, the program is.
        assert!(!is_enabled() && !is_active());
        assert!(activate(true).is_err() && dump().is_err());
    }
}
