//! An answer that a thread writes while its reader takes it: a bounded queue of pieces. A reader that takes none for
//! too long is given up, and a writer whose reader has gone is told, so that neither holds the other's memory.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};

use crate::base::limits::CHUNKS_QUEUED;

/// The writing end. Dropped unfinished, the reader's connection is cut, so that nobody takes a part for the whole.
pub struct Writer {
    shared: Arc<Shared>,
    patience: Duration,
    until: Instant,
}

/// The reading end: the body of an answer.
pub struct Chunks {
    shared: Arc<Shared>,
    /// Taken already, but not by the reader.
    first: Option<Bytes>,
}

/// The writer ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the answer could not be written to its end")]
pub struct Cut;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Bytes>,
    end: Option<Result<(), Cut>>,
    waker: Option<Waker>,
    reader_gone: bool,
}

/// Both ends. How long the writer waits for room at most: `patience`, and from now on `whole` for all pieces together.
pub fn chunks(patience: Duration, whole: Duration) -> (Writer, Chunks) {
    let shared = Arc::<Shared>::default();
    let until = Instant::now() + whole;
    (Writer { shared: shared.clone(), patience, until }, Chunks { shared, first: None })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Hands a piece over, and waits for room before it. False: nobody will read it.
    pub fn send(&self, piece: Bytes) -> bool {
        let until = self.until.min(Instant::now() + self.patience);
        let mut state = self.shared.lock();
        while state.queue.len() >= CHUNKS_QUEUED && !state.reader_gone {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.room.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.reader_gone {
            return false;
        }
        state.queue.push_back(piece);
        wake(state);
        true
    }

    /// The answer is whole.
    pub fn finish(self) {
        self.end(Ok(()));
    }

    fn end(&self, how: Result<(), Cut>) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(how);
        wake(state);
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(Err(Cut));
    }
}

impl Chunks {
    /// Waits for the first piece: the whole answer where there is no other, or what is to be read on.
    pub async fn begin(mut self) -> Result<Result<Bytes, Self>, Cut> {
        let first = match self.frame().await {
            None => return Ok(Ok(Bytes::new())),
            Some(first) => first?.into_data().unwrap_or_default(),
        };
        let is_all = {
            let state = self.shared.lock();
            state.queue.is_empty() && state.end == Some(Ok(()))
        };
        if is_all {
            return Ok(Ok(first));
        }
        self.first = Some(first);
        Ok(Err(self))
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let mut state = self.shared.lock();
        if let Some(piece) = state.queue.pop_front() {
            self.shared.room.notify_one();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(cut)) => Poll::Ready(Some(Err(cut))),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.shared.lock().reader_gone = true;
        self.shared.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn piece(number: u8) -> Bytes {
        vec![number; 3].into()
    }

    #[tokio::test]
    async fn pieces_arrive_in_order_and_a_writer_that_is_faster_waits() {
        let (writer, reader) = chunks(MINUTE, MINUTE);
        let writing = std::thread::spawn(move || {
            for number in 0..100 {
                assert!(writer.send(piece(number)));
            }
            writer.finish();
        });
        let Ok(Err(reader)) = reader.begin().await else { panic!("one piece isn't all of a hundred") };
        let all = reader.collect().await.unwrap().to_bytes();
        assert_eq!(all, (0..100).flat_map(piece).collect::<Vec<_>>());
        writing.join().unwrap();
    }

    #[tokio::test]
    async fn a_short_answer_is_known_to_be_whole_and_a_cut_one_is_an_error() {
        let (writer, reader) = chunks(MINUTE, MINUTE);
        assert!(writer.send(piece(1)));
        writer.finish();
        assert_eq!(reader.begin().await.ok().unwrap().ok(), Some(piece(1)));
        let (writer, reader) = chunks(MINUTE, MINUTE);
        assert!(writer.send(piece(1)) && writer.send(piece(2)));
        drop(writer);
        let Ok(Err(reader)) = reader.begin().await else { panic!("it isn't whole") };
        assert_eq!(reader.collect().await.err(), Some(Cut));
    }

    #[test]
    fn a_reader_that_takes_nothing_is_given_up_and_one_that_has_gone_is_noticed() {
        let (writer, reader) = chunks(Duration::from_millis(20), MINUTE);
        for number in 0..u8::try_from(CHUNKS_QUEUED).unwrap() {
            assert!(writer.send(piece(number)));
        }
        assert!(!writer.send(piece(9)), "there is no room");
        let (patient, gone) = chunks(MINUTE, MINUTE);
        let waiting = std::thread::spawn(move || while patient.send(piece(1)) {});
        drop(gone);
        waiting.join().unwrap();
        drop(reader);
    }

    /// One that takes a little now and then doesn't hold its place for ever.
    #[tokio::test]
    async fn a_reader_that_is_slow_for_too_long_is_given_up() {
        let (writer, reader) = chunks(MINUTE, Duration::from_millis(50));
        let writing = std::thread::spawn(move || {
            let started = Instant::now();
            while writer.send(piece(1)) {}
            started.elapsed()
        });
        let Ok(Err(mut reader)) = reader.begin().await else { panic!("it isn't whole") };
        while let Some(Ok(_)) = reader.frame().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(writing.join().unwrap() < Duration::from_secs(30));
    }
}
