//! Signs of life of the shards, for readiness.

use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, TryRecvError};

use crate::base::limits::HEARTBEAT_MS;
use crate::bridge::mailbox::Mailbox;
use crate::bridge::order::Order;
use crate::control::ready::Readiness;

/// Whether every shard is alive: each answers a question now and then, or the process is unready.
pub struct Heartbeat {
    shards: Vec<Mailbox<Order>>,
    asked: Vec<Option<(Instant, Receiver<()>)>>,
    last: Option<Instant>,
    /// A shard is overdue: what it says then is listened for more often.
    overdue: bool,
}

impl Heartbeat {
    pub fn new(shards: Vec<Mailbox<Order>>) -> Self {
        let asked = shards.iter().map(|_| None).collect();
        Self { shards, asked, last: None, overdue: false }
    }

    /// When it has something to do next; in the past, where it should listen as often as may be.
    pub fn due(&self) -> Option<Instant> {
        let pause = Duration::from_millis(HEARTBEAT_MS);
        self.last.map(|last| if self.overdue { last } else { last + pause })
    }

    /// Asks, listens and tells; call it when it is due, more often does no harm.
    pub fn beat(&mut self, now: Instant, readiness: &Readiness) {
        let pause = Duration::from_millis(HEARTBEAT_MS);
        let ask = self.last.is_none_or(|last| now.duration_since(last) >= pause);
        if ask {
            self.last = Some(now);
        }
        self.overdue = false;
        for (shard, (mailbox, asked)) in self.shards.iter().zip(&mut self.asked).enumerate() {
            let Some((since, answer)) = asked.take() else {
                *asked = ask.then(|| (now, question(mailbox)));
                continue;
            };
            let Err(missing) = answer.try_recv() else {
                readiness.complete(&format!("shard {shard}"));
                *asked = ask.then(|| (now, question(mailbox)));
                continue;
            };
            let silent = now.duration_since(since);
            if silent >= pause {
                let reason = format!("no sign of life for {} s", silent.as_secs());
                readiness.lose(format!("shard {shard}"), reason.into());
                self.overdue = true;
            }
            // A question that was thrown away is never answered: the shard stays missed, and is asked again.
            let again = ask && missing == TryRecvError::Disconnected;
            *asked = Some((since, if again { question(mailbox) } else { answer }));
        }
    }
}

/// A full mailbox is a shard that doesn't read: the missing answer tells.
fn question(mailbox: &Mailbox<Order>) -> Receiver<()> {
    let (sender, answer) = crossbeam::channel::bounded(1);
    let _ = mailbox.post(Order::Beat(sender));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::mailbox::mailbox;

    #[test]
    fn a_shard_that_falls_silent_makes_the_process_unready_until_it_speaks() {
        let (mailbox, letters) = mailbox(8).unwrap();
        let readiness = Readiness::default();
        let mut heartbeat = Heartbeat::new(vec![mailbox]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let answer = || {
            while let Some(order) = letters.take() {
                if let Order::Beat(to) = order {
                    to.send(()).unwrap();
                }
            }
        };
        heartbeat.beat(at(0), &readiness);
        answer();
        heartbeat.beat(at(4), &readiness);
        heartbeat.beat(at(5), &readiness);
        heartbeat.beat(at(9), &readiness);
        assert!(readiness.pending().is_empty());
        heartbeat.beat(at(10), &readiness);
        assert_eq!(readiness.pending()[0].0, "shard 0");
        answer();
        heartbeat.beat(at(11), &readiness);
        assert!(readiness.pending().is_empty());
    }

    #[test]
    fn it_is_due_with_each_question_and_all_the_time_while_a_shard_is_missed() {
        let (mailbox, letters) = mailbox(8).unwrap();
        let readiness = Readiness::default();
        let mut heartbeat = Heartbeat::new(vec![mailbox]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(heartbeat.due(), None, "at once");
        let mut question = None;
        for beat in [0, 5, 10] {
            heartbeat.beat(at(beat), &readiness);
            assert_eq!(heartbeat.due(), Some(at(beat + 5)));
            let Some(Order::Beat(to)) = letters.take() else { panic!("each beat asks") };
            if beat < 10 {
                to.send(()).unwrap();
            } else {
                question = Some(to);
            }
        }
        heartbeat.beat(at(15), &readiness);
        assert_eq!((readiness.pending().len(), heartbeat.due()), (1, Some(at(15))));
        question.unwrap().send(()).unwrap();
        heartbeat.beat(at(16), &readiness);
        assert_eq!((readiness.pending().len(), heartbeat.due()), (0, Some(at(20))));
    }

    #[test]
    fn a_question_that_was_thrown_away_is_asked_again() {
        let (mailbox, letters) = mailbox(1).unwrap();
        let readiness = Readiness::default();
        mailbox.post(Order::Look).ok().unwrap();
        let mut heartbeat = Heartbeat::new(vec![mailbox]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // The mailbox is full: the question is lost at once.
        heartbeat.beat(at(0), &readiness);
        heartbeat.beat(at(10), &readiness);
        assert_eq!(readiness.pending()[0].0, "shard 0");
        letters.take().unwrap();
        heartbeat.beat(at(20), &readiness);
        assert_eq!(readiness.pending()[0].0, "shard 0", "asking is no answer");
        let Some(Order::Beat(to)) = letters.take() else { panic!("it asks again") };
        to.send(()).unwrap();
        heartbeat.beat(at(21), &readiness);
        assert!(readiness.pending().is_empty());
    }
}
