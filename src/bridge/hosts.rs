//! Host names of workloads that have no address of their own, as control resolves them (reference section 2.4). A
//! shard looks up; what isn't there or isn't fresh it asks for with `Report::Resolve`, and is told by `Order::Look`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::base::text::Text;

/// What is known of one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// `None`: nobody answered, or the name doesn't exist. Empty: it has no address.
    pub addresses: Option<Arc<[IpAddr]>>,
    /// Until when it needn't be asked for again.
    pub fresh_until: Instant,
}

pub type Answers =
    imbl::GenericHashMap<Text, Answer, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;

/// One writer (control), many readers (shards).
#[derive(Default)]
pub struct Hosts(ArcSwap<Answers>);

impl Hosts {
    /// The answer for a name, where it is still fresh.
    pub fn lookup(&self, host: &str, now: Instant) -> Option<Answer> {
        self.0.load().get(host).filter(|answer| now < answer.fresh_until).cloned()
    }

    pub fn publish(&self, answers: &Answers) {
        self.0.store(Arc::new(answers.clone()));
    }
}
