//! The thread that owns standard output. Takes whole lines from the queue, writes up to 64 entries with one call.

use std::io::{self, ErrorKind, IoSlice, Write};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};

use crate::base::limits::LOG_LINES_A_WRITE;
use crate::bridge::lines::{LineSink, Lines};

/// Pause before another try where the output is non-blocking and full (a terminal or pipe that others share).
const FULL_OUTPUT_PAUSE: Duration = Duration::from_millis(5);

/// Asks for everything queued so far to be written, then answers.
pub(super) struct Flush {
    pub done: Sender<()>,
}

pub(super) struct Writer<W> {
    pub output: W,
    pub lines: Receiver<Lines>,
    pub flushes: Receiver<Flush>,
    pub sink: LineSink,
}

impl<W: Write + Send + 'static> Writer<W> {
    pub fn spawn(self) -> io::Result<()> {
        thread::Builder::new().name("ringway-log".to_owned()).spawn(move || self.run()).map(drop)
    }

    /// Until nobody can send any more.
    fn run(mut self) {
        let (lines, flushes) = (self.lines.clone(), self.flushes.clone());
        loop {
            crossbeam::select! {
                recv(lines) -> first => match first {
                    Ok(first) => self.write_from(first),
                    Err(_) => return,
                },
                recv(flushes) -> flush => match flush {
                    Ok(flush) => {
                        // Bounded: lines that keep coming don't hold up the end of the process.
                        for _ in 0..lines.len() {
                            let Ok(first) = lines.try_recv() else { break };
                            self.write_from(first);
                        }
                        let _ = flush.done.try_send(());
                    }
                    Err(_) => return,
                },
            }
        }
    }

    fn write_from(&mut self, first: Lines) {
        let mut batch = Vec::with_capacity(LOG_LINES_A_WRITE);
        batch.push(first);
        batch.extend(self.lines.try_iter().take(LOG_LINES_A_WRITE - 1));
        if write_all(&mut self.output, &batch).is_err() {
            self.sink.count_lost(batch.iter().map(|lines| lines.count).sum());
        }
        self.sink.count_taken(batch.iter().map(|lines| lines.bytes.len()).sum());
    }
}

fn write_all(output: &mut impl Write, batch: &[Lines]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = batch.iter().map(|lines| IoSlice::new(&lines.bytes)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match output.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(FULL_OUTPUT_PAUSE),
            Err(error) => return Err(error),
        }
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and is interrupted and full now and then.
    struct Reluctant {
        taken: Vec<u8>,
        calls: usize,
    }

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            match self.calls % 4 {
                0 => Err(ErrorKind::Interrupted.into()),
                1 => Err(ErrorKind::WouldBlock.into()),
                _ => {
                    let count = bytes.len().min(3);
                    self.taken.extend_from_slice(&bytes[..count]);
                    Ok(count)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn short_writes_lose_and_repeat_nothing() {
        let batch: Vec<Lines> = ["one\n", "", "two and more\n", "three\n"]
            .map(|text| Lines { bytes: text.into(), count: 1 })
            .into();
        let mut output = Reluctant { taken: Vec::new(), calls: 0 };
        write_all(&mut output, &batch).unwrap();
        assert_eq!(output.taken, b"one\ntwo and more\nthree\n");
    }
}
