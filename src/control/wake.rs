//! What wakes the control thread besides its clock: signals, and the shards' reports.

use std::io;

use tokio::io::Interest;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::bridge::mailbox::Letterbox;
use crate::bridge::report::Report;

/// The letterbox's bell, on this runtime.
pub struct Bell(tokio::net::UnixStream);

impl Bell {
    pub fn of(reports: &Letterbox<Report>) -> io::Result<Self> {
        Ok(Self(tokio::net::UnixStream::from_std(reports.bell().try_clone()?)?))
    }

    /// Waits for a ring; the letterbox is to be silenced after it.
    pub async fn rung(&self) -> io::Result<()> {
        self.0.readable().await?;
        // `silence` reads the same socket behind the runtime's back, so the runtime is told that nothing is left.
        let nothing_left = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.0.try_io(Interest::READABLE, nothing_left);
        Ok(())
    }
}

/// SIGINT and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    interrupted: bool,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, interrupted: false })
    }

    /// The name of the next signal that ends the process.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.interrupt.recv() => {
                self.interrupted = true;
                "SIGINT"
            }
            Some(()) = self.terminate.recv() => "SIGTERM",
        }
    }

    /// An interrupt after an interrupt.
    pub async fn second_interrupt(&mut self) {
        loop {
            self.interrupt.recv().await;
            if std::mem::replace(&mut self.interrupted, true) {
                return;
            }
        }
    }
}
