//! Socket options that neither socket2 nor rustix has. Thin: a name, a value, an errno.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, socklen_t};

/// `IP_BIND_ADDRESS_NO_PORT` (ip(7)); not in every libc's headers.
pub const IP_BIND_ADDRESS_NO_PORT: c_int = 24;

/// Options whose value is plain data without padding that matters. Private to `sys`.
///
/// # Safety
/// Any bit pattern of the type's size must be a valid value, since the kernel writes it.
pub unsafe trait Plain: Copy {}

// SAFETY: any four bytes are an i32.
unsafe impl Plain for c_int {}
// SAFETY: a struct of integers; any bytes are a value of it.
unsafe impl Plain for libc::tcp_info {}

/// setsockopt(2) with an integer.
pub fn set_int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// setsockopt(2) with any value. The kernel copies it; where it holds pointers they must be live for the
/// call.
pub(super) fn set<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let length = socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the pointer and length describe `value`, which outlives the call; the kernel only reads it.
    let done = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast::<c_void>(), length)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// getsockopt(2). Older kernels fill a part of a longer struct; the rest reads as zero.
pub fn get<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the pointer and length describe `value`; the kernel writes at most `length` bytes.
    let done = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast::<c_void>(), &mut length)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before the call, and `Plain` says that any bytes the kernel wrote are a value.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_value_written_reads_back_and_a_bad_descriptor_is_an_error() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set_int(socket.as_fd(), libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1).unwrap();
        assert_eq!(get::<c_int>(socket.as_fd(), libc::SOL_IP, IP_BIND_ADDRESS_NO_PORT).unwrap(), 1);
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = get::<c_int>(file.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }
}
