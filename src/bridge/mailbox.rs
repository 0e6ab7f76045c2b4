//! A bounded queue between two threads with a bell: a socket pair that either kind of event loop can wait for. It takes
//! memory for the letters that are in it: bounds are for the worst day, and together would be megabytes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam::channel::{Receiver, SendError, Sender, unbounded};

/// The sending end; clones share the queue and the bell.
pub struct Mailbox<T> {
    queue: Sender<T>,
    bell: Arc<Bell>,
}

/// The receiving end. Wait until `bell()` is readable, call `silence`, then `take` until it is empty.
pub struct Letterbox<T> {
    queue: Receiver<T>,
    bell: Arc<Bell>,
    ear: UnixStream,
}

struct Bell {
    hammer: UnixStream,
    rung: AtomicBool,
    /// Letters that are in the queue or about to be.
    letters: AtomicUsize,
    bound: usize,
}

/// A mailbox for at most `bound` letters.
pub fn mailbox<T>(bound: usize) -> io::Result<(Mailbox<T>, Letterbox<T>)> {
    let (sender, receiver) = unbounded();
    let (hammer, ear) = UnixStream::pair()?;
    hammer.set_nonblocking(true)?;
    ear.set_nonblocking(true)?;
    let bell = Arc::new(Bell { hammer, rung: AtomicBool::new(false), letters: AtomicUsize::new(0), bound });
    Ok((Mailbox { queue: sender, bell: bell.clone() }, Letterbox { queue: receiver, bell, ear }))
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: self.bell.clone() }
    }
}

impl<T> Mailbox<T> {
    /// Puts a letter in and rings; gives the letter back where the queue is full or the reader is gone.
    pub fn post(&self, letter: T) -> Result<(), T> {
        if self.bell.letters.fetch_add(1, Ordering::Relaxed) >= self.bell.bound {
            self.bell.letters.fetch_sub(1, Ordering::Relaxed);
            return Err(letter);
        }
        match self.queue.send(letter) {
            Ok(()) => {
                self.bell.ring();
                Ok(())
            }
            Err(SendError(letter)) => {
                self.bell.letters.fetch_sub(1, Ordering::Relaxed);
                Err(letter)
            }
        }
    }
}

impl Bell {
    /// One byte for any number of letters: only the first after a silence is a system call.
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // The pair's buffer holds far more than the one byte that is ever in it.
            let _ = (&self.hammer).write(&[1]);
        }
    }
}

impl<T> Letterbox<T> {
    /// The descriptor to wait on.
    pub fn bell(&self) -> &UnixStream {
        &self.ear
    }

    /// Stops the ringing. Letters posted from here on ring again, so take everything after it.
    pub fn silence(&self) {
        let mut bytes = [0; 16];
        while matches!((&self.ear).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        self.bell.rung.store(false, Ordering::SeqCst);
    }

    pub fn take(&self) -> Option<T> {
        let letter = self.queue.try_recv().ok()?;
        self.bell.letters.fetch_sub(1, Ordering::Relaxed);
        Some(letter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_arrive_in_order_and_a_full_box_gives_them_back() {
        let (post, letters) = mailbox(2).unwrap();
        assert_eq!(post.post(1), Ok(()));
        assert_eq!(post.post(2), Ok(()));
        assert_eq!(post.post(3), Err(3));
        letters.silence();
        assert_eq!((letters.take(), letters.take(), letters.take()), (Some(1), Some(2), None));
        assert_eq!(post.post(4), Ok(()), "there is room again");
        drop(letters);
        assert_eq!(post.post(5), Err(5), "nobody reads");
    }

    #[test]
    fn no_letter_is_left_without_a_ring() {
        let (post, letters) = mailbox(1_000).unwrap();
        let sender = std::thread::spawn(move || {
            for number in 0..10_000 {
                while post.post(number).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        letters.ear.set_nonblocking(false).unwrap();
        letters.ear.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let mut expected = 0;
        while expected < 10_000 {
            let mut byte = [0];
            (&letters.ear).read_exact(&mut byte).expect("a letter is waiting, but nobody rang");
            letters.bell.rung.store(false, Ordering::SeqCst);
            while let Some(number) = letters.take() {
                assert_eq!(number, expected);
                expected += 1;
            }
        }
        sender.join().unwrap();
    }
}
