//! What a client of an explicit proxy says before it is a connection. What belongs to its message is taken from the
//! socket and not a byte more, so that what follows is found where a captured connection's first bytes are.

use std::io::{self, ErrorKind};

use crate::base::limits;
use crate::shard::failure::Failure;
use crate::shard::places::Place;
use crate::shard::pod::PodWorld;
use crate::shard::socket::{Held, Socket};
use crate::shard::stats::bump;
use crate::shard::within;

/// Room made for a message at a time.
const STEP_BYTES: usize = 1_024;

/// Why a message never came to be.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unheard<E> {
    #[error("the client closed before it had said all")]
    Ended,
    #[error("nothing more came in time")]
    Late,
    #[error("io error: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Malformed(E),
}

/// A place among the clients that haven't asked yet; else why there is none.
pub(super) fn enter(world: &PodWorld) -> Result<Place, String> {
    let crowded = || format!("more than {} clients have not asked yet", limits::PROXY_DIALOGUES);
    world.dialogues.take().ok_or_else(crowded)
}

/// Hears one message. `parse` is given what was said so far and how much of it it has seen before, and gives the
/// message with its length once it is whole; it must decide by `most` bytes.
pub(super) async fn hear<T, E>(
    app: &Socket,
    most: usize,
    parse: impl Fn(&[u8], usize) -> Result<Option<(T, usize)>, E>,
) -> Result<T, Unheard<E>> {
    let mut said = Vec::new();
    loop {
        app.readable().await?;
        let before = said.len();
        said.resize((before + STEP_BYTES).min(most), 0);
        let room = said.get_mut(before..).unwrap_or_default();
        let came = match app.peek(room) {
            Ok(0) => return Err(Unheard::Ended),
            Ok(came) => came,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                said.truncate(before);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        said.truncate(before + came);
        let parsed = parse(&said, before);
        let whole = match &parsed {
            Ok(Some((_, length))) => *length,
            Ok(None) | Err(_) => said.len(),
        };
        take(app, said.get_mut(before..whole).unwrap_or_default())?;
        match parsed {
            Ok(Some((message, _))) => return Ok(message),
            Ok(None) => {}
            Err(error) => return Err(Unheard::Malformed(error)),
        }
    }
}

/// Takes bytes that were peeked at.
fn take(app: &Socket, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match app.receive(into)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            taken => into = into.get_mut(taken..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Answers for the last time. What the client still says is read for a while, since closing on unread bytes resets
/// the connection, and with it the answer (RFC 9112 section 9.6).
pub(super) async fn dismiss(world: &PodWorld, app: Held, answer: &[u8]) {
    let app = app.reached();
    let parting = async {
        app.send_all(answer).await?;
        app.finish();
        let mut left = limits::DISMISSED_BYTES;
        while left > 0 {
            app.readable().await?;
            let mut scratch = world.shard.buffers.bulk.borrow_mut();
            let room = scratch.len().min(left);
            match app.receive(scratch.get_mut(..room).unwrap_or_default()) {
                Ok(0) => break,
                Ok(count) => left -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    // The client has gone, or doesn't go: either way it is closed now.
    let _: Option<io::Result<()>> = within(limits::LINGER_MS, parting).await;
}

/// Counts a client that never said where it wants to go, and tells why, now and then.
pub(super) fn note_refused(world: &PodWorld, what: &'static str, source: impl std::fmt::Display, why: &str) {
    bump(&world.shard.stats.engine.proxy_refusals);
    if let Some(untold) = world.dialogue_refused.due(std::time::Instant::now(), limits::PROXY_TOLD_MS) {
        let pod = &*world.pod.info.name;
        tracing::warn!(
            target: "ztunnel::proxy",
            "failed to negotiate {what} connection: {why} (from {source} in pod {pod}, {untold} more untold)"
        );
    }
}

/// The application went away while it was told of its success.
pub(super) async fn tell(app: &Held, success: &[u8]) -> Result<(), Failure> {
    let Some(app) = app.socket() else { return Ok(()) };
    app.send_all(success).await.map_err(|error| Failure::io(&error))
}
