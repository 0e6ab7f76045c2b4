//! The pool against a simulator: callers come, leave and give back, dials succeed, fail and hang, all in an order
//! that a seed decides; what must hold is checked after each step.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::shard::failure::Failure;
use crate::shard::pool::{Carries, Key, Pool, Reservation};
use crate::shard::rt::{EventLoop, block_on};
use crate::shard::signal::Signal;
use crate::shard::tests::fixture::{identity, turn};

struct Carrier {
    most: usize,
    taken: Cell<usize>,
    finished: Cell<bool>,
    aborted: Cell<bool>,
    up_since: Instant,
}

impl Carries for Carrier {
    fn most_streams(&self) -> usize {
        self.most
    }

    fn has_room(&self) -> bool {
        !self.finished.get()
    }

    fn is_finished(&self) -> bool {
        self.finished.get()
    }

    fn idle_since(&self) -> Option<Instant> {
        (self.taken.get() == 0 && !self.finished.get()).then_some(self.up_since)
    }

    fn drain(&self) {
        assert_eq!(self.taken.get(), 0, "nobody's stream is in the way");
        self.finished.set(true);
    }

    fn abort(&self) {
        self.aborted.set(true);
        self.finished.set(true);
    }
}

/// A dial that ends when the test says so.
#[derive(Default)]
struct Dial {
    signal: Signal,
    outcome: RefCell<Option<Result<Rc<Carrier>, Failure>>>,
}

impl Dial {
    fn end(&self, outcome: Result<Rc<Carrier>, Failure>) {
        *self.outcome.borrow_mut() = Some(outcome);
        self.signal.raise();
    }
}

type Outcome = Result<Reservation<Carrier>, Failure>;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A caller that is polled by hand, and only when it was woken: a lost wake-up shows.
struct Caller {
    work: Pin<Box<dyn Future<Output = Outcome>>>,
    woken: Arc<Flag>,
}

struct Simulation {
    pool: Rc<Pool<Carrier>>,
    each: usize,
    dials: Rc<RefCell<Vec<Rc<Dial>>>>,
    dialled: Rc<Cell<usize>>,
    /// How many wait, for the dials' own check.
    callers: Rc<Cell<usize>>,
    waiting: Vec<Caller>,
    held: Vec<(Rc<Carrier>, Reservation<Carrier>)>,
    carriers: Vec<Rc<Carrier>>,
    failures: Vec<String>,
}

fn key() -> Key {
    Key {
        source: "10.0.0.1".parse().unwrap(),
        identity: identity("client"),
        expected: [identity("server")].into(),
        destination: "10.0.0.2:15008".parse().unwrap(),
        inner: None,
        authority: None,
    }
}

fn carrier(most: usize) -> Rc<Carrier> {
    let (finished, aborted) = (Cell::new(false), Cell::new(false));
    Rc::new(Carrier { most, taken: Cell::new(0), finished, aborted, up_since: Instant::now() })
}

fn refused(text: &str) -> Failure {
    Failure::Http2(text.to_owned())
}

impl Simulation {
    fn new(each: u16) -> Self {
        Self {
            pool: Rc::new(Pool::new(each, Rc::default())),
            each: usize::from(each),
            dials: Rc::default(),
            dialled: Rc::default(),
            callers: Rc::default(),
            waiting: Vec::new(),
            held: Vec::new(),
            carriers: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Somebody wants a place.
    fn call(&mut self) {
        let (pool, dials, dialled) = (self.pool.clone(), self.dials.clone(), self.dialled.clone());
        let (callers, each) = (self.callers.clone(), self.each);
        let work = async move {
            let dial = || {
                let dial = Rc::new(Dial::default());
                dialled.set(dialled.get() + 1);
                dials.borrow_mut().push(dial.clone());
                let (under_way, enough) = (dials.borrow().len(), callers.get().div_ceil(each));
                assert!(under_way <= enough, "{under_way} dials, {enough} would do");
                async move {
                    loop {
                        if let Some(outcome) = dial.outcome.take() {
                            return outcome;
                        }
                        dial.signal.wait().await;
                    }
                }
            };
            pool.acquire(&key(), dial).await
        };
        self.waiting.push(Caller { work: Box::pin(work), woken: Arc::new(Flag(AtomicBool::new(true))) });
        self.poll_woken();
    }

    fn poll_woken(&mut self) {
        self.callers.set(self.waiting.len());
        let mut still = Vec::new();
        for mut caller in std::mem::take(&mut self.waiting) {
            if !caller.woken.0.swap(false, Ordering::Relaxed) {
                still.push(caller);
                continue;
            }
            let waker = Waker::from(caller.woken.clone());
            match caller.work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => still.push(caller),
                Poll::Ready(Ok(reservation)) => self.hold(reservation),
                Poll::Ready(Err(failure)) => self.failures.push(failure.to_string()),
            }
        }
        self.waiting = still;
    }

    fn hold(&mut self, reservation: Reservation<Carrier>) {
        let carrier = reservation.tunnel.clone();
        carrier.taken.set(carrier.taken.get() + 1);
        assert!(carrier.taken.get() <= self.each.min(carrier.most), "more places than the tunnel has");
        self.held.push((carrier, reservation));
    }

    fn give_back(&mut self, place: usize) {
        let (carrier, reservation) = self.held.swap_remove(place);
        carrier.taken.set(carrier.taken.get() - 1);
        drop(reservation);
    }

    fn succeed(&mut self, place: usize, most: usize) {
        let carrier = carrier(most);
        self.carriers.push(carrier.clone());
        let dial = self.dials.borrow_mut().remove(place);
        dial.end(Ok(carrier));
    }

    /// Lets everything happen that can.
    async fn settle(&mut self) {
        for _ in 0..3 {
            turn().await;
            self.poll_woken();
        }
    }

    fn check(&self, seed: u64) {
        let under_way = self.dials.borrow().len();
        assert!(self.waiting.is_empty() || under_way > 0, "seed {seed}: {} stranded", self.waiting.len());
        let free = self
            .carriers
            .iter()
            .any(|carrier| !carrier.finished.get() && carrier.taken.get() < self.each.min(carrier.most));
        assert!(self.waiting.is_empty() || !free, "seed {seed}: somebody waits beside a free place");
    }
}

fn simulate(work: impl AsyncFn()) {
    block_on(EventLoop::Epoll, work()).unwrap();
}

async fn run(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let each = random.u16(1..=8);
    let mut simulation = Simulation::new(each);
    for _ in 0..150 {
        step(&mut simulation, &mut random).await;
        simulation.settle().await;
        simulation.check(seed);
    }
    let waiting = simulation.waiting.len();
    simulation.failures.clear();
    simulation.pool.close();
    simulation.settle().await;
    assert_eq!(simulation.failures, vec!["pool draining"; waiting], "seed {seed}");
    while !simulation.dials.borrow().is_empty() {
        simulation.succeed(0, 5);
    }
    simulation.settle().await;
    let up = simulation.carriers.iter().filter(|carrier| !carrier.finished.get()).count();
    assert_eq!(up, 0, "seed {seed}: a tunnel outlives its pool");
    simulation.call();
    assert_eq!((simulation.waiting.len(), simulation.dials.borrow().len()), (0, 0), "seed {seed}");
}

async fn step(simulation: &mut Simulation, random: &mut fastrand::Rng) {
    let dials = simulation.dials.borrow().len();
    match random.u8(0..10) {
        0..=2 => (0..random.usize(1..=20)).for_each(|_| simulation.call()),
        3 | 4 if dials > 0 => {
            // Often fewer than a pool's own number; sometimes it is going away already.
            let most = random.usize(0..=10);
            simulation.succeed(random.usize(0..dials), most);
            if random.u8(..) < 20 {
                simulation.carriers.last().unwrap().finished.set(true);
            }
            leave_before_the_wake_up(simulation, random).await;
        }
        5 if dials > 0 => {
            let dial = simulation.dials.borrow_mut().remove(random.usize(0..dials));
            let (waiting, told) = (simulation.waiting.len(), simulation.failures.len());
            dial.end(Err(refused("refused")));
            simulation.settle().await;
            let expected = if dials == 1 { waiting } else { 0 };
            assert_eq!(simulation.failures.len() - told, expected, "who waited is told, and nobody else");
        }
        6 if !simulation.waiting.is_empty() => {
            let gone = random.usize(0..simulation.waiting.len());
            simulation.waiting.remove(gone);
        }
        7 | 8 => {
            for _ in 0..random.usize(0..=simulation.held.len()) {
                simulation.give_back(random.usize(0..simulation.held.len()));
            }
            leave_before_the_wake_up(simulation, random).await;
        }
        9 if !simulation.carriers.is_empty() => {
            simulation.carriers[random.usize(0..simulation.carriers.len())].finished.set(true);
            simulation.pool.tick(Instant::now() + Duration::from_secs(random.u64(0..20)));
        }
        _ => {}
    }
}

/// Callers that were woken, perhaps with a place in their hands, and leave before they run.
async fn leave_before_the_wake_up(simulation: &mut Simulation, random: &mut fastrand::Rng) {
    turn().await;
    simulation.waiting.retain(|caller| !caller.woken.0.load(Ordering::Relaxed) || random.u8(..) < 200);
}

#[test]
fn any_order_of_events_keeps_the_rules() {
    simulate(async || {
        for seed in 0..200 {
            run(seed).await;
        }
    });
}

#[test]
fn a_herd_on_a_cold_key_dials_as_little_as_possible() {
    simulate(async || {
        let mut simulation = Simulation::new(100);
        (0..500).for_each(|_| simulation.call());
        simulation.settle().await;
        assert_eq!(simulation.dialled.get(), 5);
        (0..5).for_each(|_| simulation.succeed(0, usize::MAX));
        simulation.settle().await;
        assert_eq!((simulation.held.len(), simulation.dialled.get()), (500, 5));
        simulation.give_back(77);
        simulation.call();
        assert_eq!((simulation.held.len(), simulation.dialled.get()), (500, 5), "a full tunnel came back");
    });
}

/// The far side takes 10 where the pool would use 100: the others need dials, and nobody gets a place too many.
#[test]
fn the_far_sides_number_counts() {
    simulate(async || {
        let mut simulation = Simulation::new(100);
        (0..30).for_each(|_| simulation.call());
        for served in [10, 20, 30] {
            assert_eq!(simulation.dials.borrow().len(), 1);
            simulation.succeed(0, 10);
            simulation.settle().await;
            assert_eq!(simulation.held.len(), served);
        }
        assert_eq!((simulation.dials.borrow().len(), simulation.dialled.get()), (0, 3));
    });
}

/// The one who was asked to dial for the others leaves before it runs.
#[test]
fn a_leader_that_leaves_strands_nobody() {
    simulate(async || {
        let mut simulation = Simulation::new(100);
        (0..3).for_each(|_| simulation.call());
        simulation.succeed(0, 1);
        turn().await;
        simulation.waiting.remove(1);
        simulation.settle().await;
        assert_eq!((simulation.held.len(), simulation.dials.borrow().len()), (1, 1));
        simulation.succeed(0, 1);
        simulation.settle().await;
        assert_eq!((simulation.held.len(), simulation.waiting.len()), (2, 0));
    });
}

#[test]
fn a_caller_that_leaves_with_a_place_in_hand_passes_it_on() {
    simulate(async || {
        let mut simulation = Simulation::new(1);
        simulation.call();
        simulation.succeed(0, 1);
        simulation.settle().await;
        (0..2).for_each(|_| simulation.call());
        simulation.give_back(0);
        simulation.waiting.remove(0);
        simulation.settle().await;
        assert_eq!((simulation.held.len(), simulation.waiting.len()), (1, 0));
    });
}

#[test]
fn a_peer_that_takes_no_streams_is_not_dialled_for_ever() {
    simulate(async || {
        let mut simulation = Simulation::new(100);
        (0..3).for_each(|_| simulation.call());
        simulation.succeed(0, 0);
        simulation.settle().await;
        assert_eq!(simulation.failures, ["h2 failed: the peer takes no streams"; 3]);
        assert_eq!(simulation.dialled.get(), 1);
    });
}

#[test]
fn of_the_tunnels_that_a_burst_left_one_stays() {
    simulate(async || {
        let mut simulation = Simulation::new(10);
        (0..40).for_each(|_| simulation.call());
        (0..4).for_each(|_| simulation.succeed(0, usize::MAX));
        simulation.settle().await;
        assert_eq!(simulation.held.len(), 40);
        let up = |simulation: &Simulation| {
            simulation.carriers.iter().filter(|carrier| !carrier.finished.get()).count()
        };
        let now = Instant::now();
        while simulation.held.len() > 1 {
            simulation.give_back(0);
        }
        simulation.pool.tick(now + Duration::from_secs(9));
        assert_eq!(up(&simulation), 4, "not at once");
        simulation.pool.tick(now + Duration::from_secs(11));
        assert_eq!(up(&simulation), 2, "the one in use, and one for the next call");
        simulation.give_back(0);
        simulation.pool.tick(now + Duration::from_secs(11));
        assert_eq!(up(&simulation), 1);
        simulation.call();
        assert_eq!((simulation.held.len(), simulation.dialled.get()), (1, 4));
    });
}
