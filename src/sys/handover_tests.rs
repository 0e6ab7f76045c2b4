//! Hand-overs in real namespaces, under a flood of connections, over several generations.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::sys::listener::{ListenerPlan, accept, listen};
use crate::sys::testing::{Space, in_child, wait_readable};

const PORT: u16 = 15_008;

fn put_up() -> OwnedFd {
    let addr = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    listen(&ListenerPlan { addr, mark: None, reuse_port: true, transparent: None }).unwrap().fd
}

fn call() -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(4)))?;
    // The caller resets at its end, after the answer: no TIME_WAIT eats up the flood's ports.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}

#[test]
fn while_closing_the_index_is_the_successors_in_every_order() {
    for (ours, theirs) in (1..6_usize).flat_map(|ours| (0..8_usize).map(move |theirs| (ours, theirs))) {
        let Some(share) = Share::while_closing(ours, ours + theirs) else {
            assert!(theirs < ours, "{ours} {theirs}");
            continue;
        };
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut group: Vec<bool> = (0..ours + theirs).map(|index| index >= ours).collect();
            for _ in 0..ours {
                let index = usize::try_from(share.first).unwrap();
                assert_eq!(group.get(index), Some(&true), "seed {seed}: {ours} of ours, {theirs} of theirs");
                let open: Vec<usize> = (0..group.len()).filter(|index| !group[*index]).collect();
                group.swap_remove(open[random.usize(..open.len())]);
            }
            assert_eq!(group, vec![true; theirs]);
            assert!(usize::try_from(share.first).unwrap() >= group.len(), "the steering outlives its use");
        }
    }
    assert_eq!(Share::of_successor(2, 5), Some(Share { first: 2, count: 3 }));
    assert_eq!((Share::of_successor(2, 2), Share::of_successor(3, 2)), (None, None));
}

/// Which of the sockets gets a connection while the group is steered to one index.
fn receiver(group: &[OwnedFd], index: usize) -> usize {
    attach(group[0].as_fd(), Share { first: u32::try_from(index).unwrap(), count: 1 }).unwrap();
    let _caller = call().unwrap();
    let mut ready: Vec<PollFd<'_>> = group.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    assert_eq!(poll(&mut ready, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap(), 1);
    let found = ready.iter().position(|entry| !entry.revents().is_empty()).unwrap();
    accept(group[found].as_fd()).unwrap();
    found
}

#[test]
fn the_kernel_fills_groups_in_listen_order_and_the_last_takes_a_leavers_slot() {
    in_child(
        "sys::handover::tests::the_kernel_fills_groups_in_listen_order_and_the_last_takes_a_leavers_slot",
        || {
            let space = Space::new("order");
            let check = || {
                let mut group: Vec<OwnedFd> = (0..5).map(|_| put_up()).collect();
                for round in 0..3 {
                    assert_eq!(group_of(group[0].as_fd()).unwrap(), group.len());
                    for index in 0..group.len() {
                        assert_eq!(receiver(&group, index), index, "round {round}");
                    }
                    // One leaves, and the next generation adds two: the model is the vector's own swap_remove.
                    drop(group.swap_remove(1));
                    group.push(put_up());
                    group.push(put_up());
                }
            };
            space.netns().run(check).unwrap();
        },
    );
}

#[test]
fn listeners_are_counted_by_port_family_and_address() {
    in_child("sys::handover::tests::listeners_are_counted_by_port_family_and_address", || {
        let space = Space::new("count");
        let check = || {
            assert_eq!(listeners(PORT).unwrap().len(), 0);
            let (one, two) = (put_up(), put_up());
            let four = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
            let plan = ListenerPlan { addr: four, mark: None, reuse_port: true, transparent: None };
            let other = listen(&plan).unwrap().fd;
            assert_eq!(listeners(PORT).unwrap().len(), 3);
            assert_eq!(listeners(PORT + 1).unwrap().len(), 0);
            assert_eq!((group_of(two.as_fd()).unwrap(), group_of(other.as_fd()).unwrap()), (2, 1));
            drop(other);
            drop(two);
            let _waiting = call().unwrap();
            wait_readable(one.as_fd());
            let found = listeners(PORT).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(
                (found[0].addr, found[0].queued),
                (SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)), 1)
            );
            let error = steer_away(one.as_fd(), 1, 1).unwrap_err();
            assert!(matches!(error, SteerError::NoSuccessor { ours: 1, total: 1 }), "{error}");
        };
        space.netns().run(check).unwrap();
        assert!(!listeners(PORT).unwrap().iter().any(|it| it.queued == 1), "another namespace's sockets");
    });
}

#[test]
fn broken_answers_end_without_harm() {
    for length in [0_u32, 3, 15, 16, 17, 1 << 31, u32::MAX] {
        let mut bytes = vec![0xff; 40];
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        if let Some((message, rest)) = split(&bytes) {
            assert!(rest.len() < bytes.len());
            assert!(listener(message.body).is_none());
        }
    }
    assert!(split(&[]).is_none() && listener(&[2; 71]).is_none());
}

/// Counts what a flood of short connections meets.
#[derive(Default)]
struct Tally {
    served: AtomicUsize,
    lost: AtomicUsize,
    errors: Mutex<Vec<String>>,
    over: AtomicBool,
}

fn flood(space: &Space, tally: &Arc<Tally>) -> Vec<JoinHandle<()>> {
    let caller = |netns: crate::sys::netns::Netns, tally: Arc<Tally>| {
        netns.enter().unwrap();
        while !tally.over.load(Ordering::Relaxed) {
            let mut answer = [0; 1];
            let since = Instant::now();
            let exchange = call().and_then(|mut stream| {
                stream.write_all(b"?")?;
                stream.read_exact(&mut answer)
            });
            match exchange {
                Ok(()) => tally.served.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    tally.errors.lock().unwrap().push(format!("{error} after {:?}", since.elapsed()));
                    tally.lost.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
    };
    let start = |_| {
        let (netns, tally) = (space.netns().clone(), tally.clone());
        std::thread::spawn(move || caller(netns, tally))
    };
    (0..6).map(start).collect()
}

/// One process's listeners on the port, each served by a thread as by a shard.
struct Generation {
    fds: Vec<Arc<OwnedFd>>,
    orders: Arc<Orders>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Orders {
    paused: AtomicBool,
    leave: AtomicBool,
    total: AtomicUsize,
    fell_short: AtomicBool,
}

impl Generation {
    fn start(space: &Space, count: usize) -> Self {
        let fds: Vec<Arc<OwnedFd>> =
            space.netns().run(|| (0..count).map(|_| Arc::new(put_up())).collect()).unwrap();
        let orders = Arc::new(Orders::default());
        let threads = fds
            .iter()
            .map(|fd| {
                let (fd, orders) = (fd.clone(), orders.clone());
                std::thread::spawn(move || serve(fd, count, &orders))
            })
            .collect();
        Self { fds, orders, threads }
    }

    /// Leaves queues unserved for a moment, steers, goes on until they are empty, closes in any order.
    fn hand_over(self, space: &Space) {
        self.orders.paused.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(30));
        let first = self.fds[0].as_fd();
        let total = space.netns().run(|| group_of(first)).unwrap().unwrap();
        steer_away(first, self.fds.len(), total).unwrap();
        self.orders.total.store(total, Ordering::Relaxed);
        drop(self.fds);
        self.orders.leave.store(true, Ordering::Relaxed);
        self.orders.paused.store(false, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        assert!(!self.orders.fell_short.load(Ordering::Relaxed));
    }
}

fn serve(fd: Arc<OwnedFd>, ours: usize, orders: &Orders) {
    let mut last_order = None;
    loop {
        if orders.leave.load(Ordering::Relaxed) {
            // HANDOVER_LINGER_MS, shortened: nothing is lost or delayed on a loopback device.
            let since = *last_order.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_millis(150) {
                let total = orders.total.load(Ordering::Relaxed);
                if !steer_for_close(fd.as_fd(), ours, total).unwrap() {
                    orders.fell_short.store(true, Ordering::Relaxed);
                }
                leave_lookups(fd.as_fd()).unwrap();
                while serve_one(&fd) {}
                // Now nothing may come any more, however long the close takes and whichever close comes
                // first.
                std::thread::sleep(Duration::from_millis(15 * (1 + fastrand::u64(..4))));
                return;
            }
        }
        let soon = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&soon));
        while !orders.paused.load(Ordering::Relaxed) {
            if !serve_one(&fd) {
                break;
            }
        }
    }
}

fn serve_one(fd: &OwnedFd) -> bool {
    let Ok((accepted, _)) = accept(fd.as_fd()) else { return false };
    let mut stream = TcpStream::from(accepted);
    stream.set_nonblocking(false).unwrap();
    let mut byte = [0];
    let _ = stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte));
    true
}

#[test]
fn three_generations_hand_over_under_a_flood_and_nothing_is_reset() {
    in_child("sys::handover::tests::three_generations_hand_over_under_a_flood_and_nothing_is_reset", || {
        let space = Space::new("flood");
        let tally = Arc::new(Tally::default());
        let mut serving = Generation::start(&space, 2);
        let callers = flood(&space, &tally);
        for count in [2, 3, 3] {
            let before = tally.served.load(Ordering::Relaxed);
            let next = Generation::start(&space, count);
            serving.hand_over(&space);
            serving = next;
            assert_eq!(space.netns().run(|| listeners(PORT)).unwrap().unwrap().len(), count);
            assert!(tally.served.load(Ordering::Relaxed) > before, "no traffic during the hand-over");
        }
        tally.over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().unwrap();
        }
        // An end without a successor: nobody calls any more.
        serving.orders.total.store(6, Ordering::Relaxed);
        serving.orders.leave.store(true, Ordering::Relaxed);
        drop(serving.fds);
        for thread in serving.threads {
            thread.join().unwrap();
        }
        let (served, lost) = (tally.served.load(Ordering::Relaxed), tally.lost.load(Ordering::Relaxed));
        let errors = tally.errors.lock().unwrap();
        assert_eq!(lost, 0, "{lost} connections were lost beside {served} that were served: {errors:?}");
        assert!(served > 100, "hardly a flood: {served}");
    });
}

#[test]
fn out_of_the_lookups_a_listener_gets_nothing_new_and_loses_nothing() {
    in_child(
        "sys::handover::tests::out_of_the_lookups_a_listener_gets_nothing_new_and_loses_nothing",
        || {
            let space = Space::new("leave");
            let check = || {
                let listener = put_up();
                let mut waiting = call().unwrap();
                leave_lookups(listener.as_fd()).unwrap();
                assert_eq!(call().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
                waiting.write_all(b"?").unwrap();
                assert!(serve_one(&listener));
                let mut answer = [0; 1];
                waiting.read_exact(&mut answer).unwrap();
                assert_eq!(&answer, b"?");
                // A younger listener gets what the older one, which is looked at first, doesn't take.
                let younger = put_up();
                assert_eq!(group_of(younger.as_fd()).unwrap(), 2);
                attach(younger.as_fd(), Share { first: 1, count: 1 }).unwrap();
                let _caller = call().unwrap();
                wait_readable(younger.as_fd());
                assert!(accept(younger.as_fd()).is_ok());
            };
            space.netns().run(check).unwrap();
        },
    );
}

/// Twenty connections wait in the queues of two listeners when one of them closes.
fn lost_at_close(migrate: bool) -> usize {
    let (leaver, stayer) = (put_up(), put_up());
    if migrate {
        allow_migration().expect("/proc/sys must be writable here");
    }
    let mut callers: Vec<TcpStream> = (0..20).map(|_| call().unwrap()).collect();
    drop(leaver);
    let served = std::thread::spawn(move || {
        wait_readable(stayer.as_fd());
        while serve_one(&stayer) {}
    });
    // All ask before any waits for its answer: they are served in another order than they came.
    let asked: Vec<bool> = callers.iter_mut().map(|stream| stream.write_all(b"?").is_ok()).collect();
    let answered = callers.iter_mut().zip(asked).filter(|(stream, asked)| {
        *asked && stream.try_clone().is_ok_and(|mut copy| copy.read_exact(&mut [0; 1]).is_ok())
    });
    let lost = 20 - answered.count();
    drop(callers);
    served.join().unwrap();
    lost
}

#[test]
fn a_bare_close_resets_what_waits_and_migration_saves_it() {
    in_child("sys::handover::tests::a_bare_close_resets_what_waits_and_migration_saves_it", || {
        let (bare, moved) = (Space::new("bare"), Space::new("moved"));
        assert!(
            bare.netns().run(|| lost_at_close(false)).unwrap() > 0,
            "the fault this module is for is gone"
        );
        assert_eq!(moved.netns().run(|| lost_at_close(true)).unwrap(), 0);
    });
}
