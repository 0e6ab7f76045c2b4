//! The terminal of a command that refreshes its screen: single keys as they are pressed, and the size.

use std::io::{self, stdin, stdout};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// What Ctrl-C sends while keys are read.
pub const INTERRUPT: u8 = 3;

/// While it lives, keys come one by one, unseen, and Ctrl-C is one of them. Dropping it makes the terminal as it was.
pub struct Keys {
    before: Termios,
}

impl Keys {
    /// An error where standard input is no terminal.
    pub fn new() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }

    /// The next key, if one is pressed in time.
    pub fn within(&self, patience: Duration) -> io::Result<Option<u8>> {
        let wait = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let input = stdin();
        if poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&wait))? == 0 {
            return Ok(None);
        }
        let mut key = [0];
        match rustix::io::read(stdin(), &mut key)? {
            // The terminal has gone.
            0 => Ok(Some(INTERRUPT)),
            _ => Ok(key.first().copied()),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// Columns and rows of standard output; those of old where they aren't known.
pub fn size() -> (usize, usize) {
    let known = |count: u16, otherwise| if count == 0 { otherwise } else { usize::from(count) };
    let size = tcgetwinsize(stdout());
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
    (known(columns, 80), known(rows, 24))
}
