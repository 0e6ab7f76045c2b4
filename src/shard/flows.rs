//! The last connections of this shard that have ended, whatever the access log says of them. A ring of what is there
//! anyway (the record's own description), put into words only when somebody asks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use crate::base::limits::{FLOWS_A_PAGE, FLOWS_KEPT};
use crate::base::text::Text;
use crate::bridge::flow::{Flow, FlowPage, FlowVerdict, Parties};

/// What can say who talks to whom.
pub trait Describe {
    fn describe(&self) -> Parties;
}

/// One that has ended.
pub struct Ended {
    pub at: SystemTime,
    pub lasted: Duration,
    pub about: Rc<dyn Describe>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub attempts: u32,
    pub verdict: FlowVerdict,
    pub error: Option<Text>,
}

/// See above.
pub struct Flows {
    kept: RefCell<VecDeque<Ended>>,
    /// The number of the next one; the first has 1.
    next: Cell<u64>,
}

impl Default for Flows {
    fn default() -> Self {
        Self { kept: RefCell::default(), next: Cell::new(1) }
    }
}

impl Flows {
    pub fn push(&self, ended: Ended) {
        let mut kept = self.kept.borrow_mut();
        let oldest = if kept.len() >= FLOWS_KEPT { kept.pop_front() } else { None };
        kept.push_back(ended);
        self.next.set(self.next.get() + 1);
        drop(kept);
        drop(oldest);
    }

    /// Some of those numbered `from` and later; 0: from the oldest that is kept.
    pub fn page(&self, shard: usize, from: u64) -> FlowPage {
        let kept = self.kept.borrow();
        let next = self.next.get();
        let oldest = next.saturating_sub(kept.len() as u64);
        let start = from.clamp(oldest, next);
        let lost = if from == 0 { 0 } else { start.saturating_sub(from) };
        let skipped = usize::try_from(start - oldest).unwrap_or(usize::MAX);
        let flows: Vec<Flow> = kept.iter().skip(skipped).take(FLOWS_A_PAGE).map(Ended::flow).collect();
        FlowPage { shard, next: start + flows.len() as u64, lost, flows }
    }
}

impl Ended {
    fn flow(&self) -> Flow {
        Flow {
            ended: self.at,
            lasted: self.lasted,
            parties: self.about.describe(),
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            attempts: self.attempts,
            verdict: self.verdict,
            error: self.error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::flow::FlowEnd;
    use crate::wire::access_log::Direction;

    struct Nobody;

    impl Describe for Nobody {
        fn describe(&self) -> Parties {
            Parties {
                pod: "uid".into(),
                direction: Direction::Inbound,
                src: "10.0.0.1:1".parse().unwrap(),
                dst: "10.0.0.2:2".parse().unwrap(),
                dst_name: None,
                authority: None,
                source: FlowEnd::default(),
                destination: FlowEnd::default(),
                service: None,
                via: None,
            }
        }
    }

    fn push(flows: &Flows, count: u64) {
        for number in 0..count {
            flows.push(Ended {
                at: SystemTime::UNIX_EPOCH,
                lasted: Duration::ZERO,
                about: Rc::new(Nobody),
                sent_bytes: number,
                received_bytes: 0,
                attempts: 1,
                verdict: FlowVerdict::Allowed,
                error: None,
            });
        }
    }

    #[test]
    fn a_reader_gets_everything_in_order_and_hears_of_what_it_was_too_slow_for() {
        let flows = Flows::default();
        let empty = flows.page(0, u64::MAX);
        assert_eq!((empty.next, empty.lost, empty.flows.len()), (1, 0, 0));
        push(&flows, 300);
        let (mut cursor, mut seen) = (empty.next, Vec::new());
        loop {
            let page = flows.page(0, cursor);
            assert_eq!(page.lost, 0);
            if page.flows.is_empty() {
                break;
            }
            seen.extend(page.flows.iter().map(|flow| flow.sent_bytes));
            cursor = page.next;
        }
        assert_eq!(seen, (0..300).collect::<Vec<_>>());
        let more = FLOWS_KEPT as u64 + 7;
        push(&flows, more);
        let page = flows.page(0, cursor);
        assert_eq!((page.lost, page.flows[0].sent_bytes), (7, 7));
        let all = flows.page(0, 0);
        assert_eq!((all.lost, all.flows[0].sent_bytes), (0, 7));
    }
}
