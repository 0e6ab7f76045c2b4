//! A seccomp filter that refuses io_uring, as the default profile of container runtimes does.
#![allow(unsafe_code, reason = "two prctl calls; the test crate has no other way to install a filter")]

use std::io;

/// Refuses `io_uring_setup` with EPERM for the calling thread and every process started from it. It can't be
/// undone, so call it on a thread that is to end.
pub fn refuse_io_uring() -> io::Result<()> {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let setup = u32::try_from(libc::SYS_io_uring_setup).map_err(io::Error::other)?;
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).map_err(io::Error::other)?;
    let mut program = [
        libc::sock_filter { code: LOAD_NUMBER, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: setup },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: refuse },
        libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program it points to live until both calls have returned; the kernel copies
    // them.
    let result = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
            failed => failed,
        }
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
