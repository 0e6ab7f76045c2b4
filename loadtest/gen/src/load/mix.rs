//! Mice beside others on the same tunnel: small requests at a fixed rate while bulk transfers run, or while
//! downloads stand that nobody reads.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::spawn_local;

use super::bulk::{Way, transfer};
use super::client::{GRACE, SharedTally, Target, shared_tally};
use super::protocol::Opening;
use super::requests::{Requests, kept};

/// How long the others run before the mice: long enough to fill every window on the way.
const HEAD_START: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Mix {
    /// The mice.
    #[command(flatten)]
    pub mice: Requests,
    /// Uploads at full speed.
    #[arg(long, default_value_t = 0)]
    pub uploads: u16,
    /// Bytes a second of each upload, instead of full speed.
    #[arg(long)]
    pub pace: Option<f64>,
    /// Downloads at full speed.
    #[arg(long, default_value_t = 0)]
    pub downloads: u16,
    /// Downloads that are never read.
    #[arg(long, default_value_t = 0)]
    pub unread: u16,
}

/// The outcome's operations and latencies are the mice's, its bytes the elephants'.
pub async fn mix(mix: Mix) -> Result<()> {
    let mice = &mix.mice;
    let (tally, elephants) = (shared_tally()?, shared_tally()?);
    let mut unread = Vec::new();
    for _ in 0..mix.unread {
        // Where those before have stopped the whole tunnel, that is what is to be told, not a failure of ours.
        match tokio::time::timeout(GRACE, mice.target.open(Opening::Source, &tally)).await {
            Ok(opened) => unread.push(opened?),
            Err(_) => tally.borrow_mut().outcome.unanswered += 1,
        }
    }
    mice.target.ready()?;
    let begun = Instant::now();
    let seconds = mice.target.seconds + HEAD_START.as_secs_f64();
    let long = Target { seconds, pace: mix.pace, ..mice.target.clone() };
    let ways = [(Way::Up, mix.uploads), (Way::Down, mix.downloads)];
    let transfers: Vec<_> = ways
        .into_iter()
        .flat_map(|(way, count)| (0..count).map(move |_| way))
        .map(|way| spawn_local(transfer(long.clone(), way, SharedTally::clone(&elephants))))
        .collect();
    tokio::time::sleep(HEAD_START).await;
    let tasks: Vec<_> =
        (0..mice.connections).map(|_| spawn_local(mouse(mice.clone(), SharedTally::clone(&tally)))).collect();
    for task in tasks {
        task.await?;
    }
    for task in transfers {
        task.await?;
    }
    let elephants = elephants.borrow_mut().finish(begun.elapsed());
    let mut outcome = tally.borrow_mut().finish(begun.elapsed());
    outcome.bytes = elephants.bytes;
    outcome.errors += elephants.errors;
    outcome.first_error = outcome.first_error.or(elephants.first_error);
    mice.target.report(&outcome)?;
    drop(unread);
    Ok(())
}

/// A mouse that can't even connect beside the others counts as unanswered.
async fn mouse(requests: Requests, tally: SharedTally) {
    let patience = requests.target.duration();
    let opening =
        Opening::Exchange { request_bytes: requests.request_bytes, response_bytes: requests.response_bytes };
    let opened = tokio::time::timeout(patience, requests.target.open(opening, &tally)).await;
    match opened {
        Ok(Ok(stream)) => kept(stream, requests, tally).await,
        Ok(Err(fault)) => tally.borrow_mut().error(fault),
        Err(_) => tally.borrow_mut().outcome.unanswered += 1,
    }
}
