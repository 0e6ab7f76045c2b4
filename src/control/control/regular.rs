//! The regular work of the control thread's loop, done when it is due and not before: at rest that is a heartbeat.

use std::any::Any;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;
use tracing::debug;

use super::{ControlError, JoinHandle, Loop};
use crate::base::limits::{CNI_LETTERS_QUEUED, CONTROL_TICK_MS, REPORTS_QUEUED};
use crate::bridge::order::Order;
use crate::sys::memory;

impl Loop {
    /// When something is to be done that nothing else wakes this task for: at rest, with the next heartbeat. What can't
    /// be done yet is tried again with pauses.
    pub(super) fn due(&self) -> Instant {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let waiting = self.orders.waiting() || !self.letters.is_empty() || !self.lookups.is_empty();
        let dues = [
            (waiting || self.starting).then_some(self.ticked),
            self.revocation.as_ref().map(|file| file.due().unwrap_or(self.ticked)),
            // By the wall clock, which may jump: the heartbeat's is the longest sleep.
            self.desk.keeper.quiet_for(wall).and_then(|quiet| now.checked_add(quiet)),
            self.own.retry_at(),
            self.heartbeat.due(),
        ];
        let first = dues.into_iter().flatten().min().unwrap_or(self.ticked);
        first.max(self.ticked + Duration::from_millis(CONTROL_TICK_MS))
    }

    /// What is done when it is due.
    pub(super) fn tick(&mut self) -> Result<(), ControlError> {
        let now = Instant::now();
        self.ticked = now;
        self.take_reports()?;
        self.own.retry(now, &mut self.orders);
        self.orders.flush();
        self.hand_letters_on();
        self.heartbeat.beat(now, &self.readiness);
        self.follow_revocations(now);
        if self.starting && self.readiness.pending().is_empty() {
            self.starting = false;
            let kib = memory::let_go_of_programs();
            debug!(
                "the start is over: {kib} KiB of program files were held, what is still needed comes back"
            );
        }
        self.look_for_the_dead()
    }

    /// Also while the process drains: its last connections are the longest ones.
    pub(super) fn follow_revocations(&mut self, now: Instant) {
        let Some(file) = &mut self.revocation else { return };
        if file.look(now, &self.readiness) {
            self.orders.post_all(|| Order::Look);
        }
        file.survey(now, SystemTime::now(), &self.identities);
    }

    /// Threads end by themselves only at a drain. Without one of them the process only looks alive.
    pub(super) fn look_for_the_dead(&mut self) -> Result<(), ControlError> {
        let ended = self.ended.first().copied();
        let ended = ended.or_else(|| self.threads.iter().position(JoinHandle::is_finished));
        if let Some(shard) = ended.filter(|shard| *shard < self.threads.len()) {
            let why = match self.threads.swap_remove(shard).join() {
                Ok(()) => "its event loop has ended".to_owned(),
                Err(panic) => format!("it panicked: {}", panic_text(panic.as_ref())),
            };
            return Err(ControlError::Shard { shard, why });
        }
        if let Some(shard) = self.orders.lost() {
            return Err(ControlError::Shard { shard, why: "it takes no orders any more".to_owned() });
        }
        if self.letters.len() > CNI_LETTERS_QUEUED {
            return Err(ControlError::CniThread);
        }
        Ok(())
    }

    pub(super) fn hand_letters_on(&mut self) {
        while let Some(letter) = self.letters.pop_front() {
            if let Err(letter) = self.post.post(letter) {
                self.letters.push_front(letter);
                break;
            }
        }
        while let Some(name) = self.lookups.pop_front() {
            if let Err(mpsc::error::TrySendError::Full(name)) = self.mesh.lookups.try_send(name) {
                self.lookups.push_front(name);
                break;
            }
        }
        // Reports are bounded, but may keep coming; whoever waits longer than his patience asks in vain.
        self.lookups.truncate(REPORTS_QUEUED);
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}
