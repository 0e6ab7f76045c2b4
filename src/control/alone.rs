//! Runs one future on a thread that has nothing else to do and sleeps in between: one wake-up a deadline, where the
//! timer wheel of tokio takes up to three.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// The one clock of the thread.
#[derive(Default)]
pub(super) struct Alarm {
    at: Cell<Option<Instant>>,
}

impl Alarm {
    /// Waits until then, for ever without a time. May be waited for again and again, by one at a time.
    pub async fn rings(&self, at: Option<Instant>) {
        poll_fn(|_| {
            if at.is_some_and(|at| at <= Instant::now()) {
                return Poll::Ready(());
            }
            self.at.set(at);
            Poll::Pending
        })
        .await;
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `work` to its end on this thread.
pub(super) fn run_alone<T>(alarm: &Alarm, work: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut work = pin!(work);
    loop {
        // Set again by whoever waits for it this time.
        alarm.at.set(None);
        if let Poll::Ready(outcome) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return outcome;
        }
        match alarm.at.get() {
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::mpsc;

    #[test]
    fn it_wakes_for_letters_and_for_its_clock() {
        let (send, mut letters) = mpsc::channel(1);
        let sender = thread::spawn(move || {
            for number in 0..1_000 {
                send.blocking_send(number).unwrap();
            }
        });
        let alarm = Alarm::default();
        let (heard, rang) = run_alone(&alarm, async {
            let mut heard = 0;
            while let Some(number) = letters.recv().await {
                assert_eq!(number, heard);
                heard += 1;
            }
            let at = Instant::now() + Duration::from_millis(20);
            tokio::select! {
                () = alarm.rings(None) => unreachable!("it has no time"),
                () = std::future::ready(()) => {}
            }
            alarm.rings(Some(at)).await;
            (heard, at)
        });
        assert_eq!(heard, 1_000);
        assert!(Instant::now() >= rang);
        sender.join().unwrap();
    }
}
