//! Borrowing the descriptor of a holder whose type only knows the raw number (monoio's sockets).

use std::os::fd::{AsRawFd, BorrowedFd};

/// The descriptor that `holder` owns, for as long as `holder` is borrowed.
pub fn lend<T: AsRawFd>(holder: &T) -> BorrowedFd<'_> {
    // SAFETY: every caller passes a value that owns its descriptor, so it stays open while `holder` lives, and the
    // returned borrow can't outlive it.
    unsafe { BorrowedFd::borrow_raw(holder.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lent_descriptor_is_the_holders_own() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(lend(&file).as_raw_fd(), file.as_raw_fd());
    }
}
