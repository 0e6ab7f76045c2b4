//! Renewal, failure, order and forgetting against a clock that is given.

use super::*;
use crate::tls::cert::Authority;
use crate::tls::config::Profile;

const DAY: Duration = Duration::from_secs(86_400);

struct Scene {
    ca: Ca,
    identities: Arc<Identities>,
    authority: Authority,
}

fn scene() -> Scene {
    let identities = Arc::<Identities>::default();
    let ca = Ca::new(identities.clone(), fastrand::Rng::with_seed(1));
    Scene { ca, identities, authority: Authority::new("cluster.local").unwrap() }
}

fn identity(name: &str) -> Identity {
    format!("spiffe://cluster.local/ns/ns/sa/{name}").parse().unwrap()
}

impl Scene {
    /// Valid since a little before the real now.
    fn credential(&self, identity: &Identity, until: SystemTime) -> Credential {
        let ttl = until.duration_since(SystemTime::now()).unwrap_or_default();
        self.authority.credential(identity, ttl, Profile::default()).unwrap()
    }

    /// Signs what is due, for a day from `now`; returns the names in their order.
    fn sign(&mut self, now: SystemTime) -> Vec<String> {
        let mut signed = Vec::new();
        while let Some(ticket) = self.ca.next(now) {
            let identity = ticket.identity().clone();
            let credential = self.credential(&identity, now + DAY);
            assert!(self.ca.finished(ticket, Ok(credential), now));
            signed.push(identity.service_account.to_string());
        }
        signed
    }

    /// Refuses what is due; returns how many.
    fn refuse(&mut self, now: SystemTime, unsigned: &Unsigned) -> usize {
        let mut refused = 0;
        while let Some(ticket) = self.ca.next(now) {
            self.ca.finished(ticket, Err(unsigned.clone()), now);
            refused += 1;
        }
        refused
    }

    fn local(&mut self, name: &str, now: SystemTime) {
        self.ca.local(format!("uid-{name}").into(), Some(identity(name)), true, now);
    }

    fn gone(&mut self, name: &str, now: SystemTime) {
        self.ca.local(format!("uid-{name}").into(), None, true, now);
    }

    fn available(&self, name: &str, now: SystemTime) -> bool {
        matches!(self.identities.lookup(&identity(name), now), Some(Standing::Available(_)))
    }

    fn why(&self, name: &str, now: SystemTime) -> String {
        match self.identities.lookup(&identity(name), now) {
            Some(Standing::Unavailable(why)) => why.to_string(),
            Some(Standing::Available(_)) => "available".to_owned(),
            Some(Standing::Initializing) => "initializing".to_owned(),
            None => "unknown".to_owned(),
        }
    }
}

#[test]
fn a_wanted_identity_is_signed_once_and_renewed_at_half_its_life() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.local("a", now);
    scene.ca.want(identity("a"), now);
    scene.ca.want(identity("a"), now);
    assert_eq!(scene.why("a", now), "initializing");
    assert_eq!(scene.sign(now), ["a"]);
    assert!(scene.available("a", now));
    assert_eq!(scene.sign(now + DAY.mul_f64(0.39)), [""; 0], "too early");
    assert_eq!(scene.sign(now + DAY.mul_f64(0.51)), ["a"]);
}

/// The authority of these tests begins certificates two minutes back, as istiod does.
#[test]
fn a_short_life_is_halved_too() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.local("a", now);
    let ticket = scene.ca.next(now).unwrap();
    let credential = scene.credential(&identity("a"), now + Duration::from_secs(20));
    scene.ca.finished(ticket, Ok(credential), now);
    assert!(scene.ca.next(now + Duration::from_secs(7)).is_none(), "too early");
    assert!(scene.ca.next(now + Duration::from_secs(11)).is_some());
}

#[test]
fn a_failing_authority_leaves_what_is_valid_and_then_says_why() {
    let mut scene = scene();
    let closed = Unsigned::failed("the desk is closed");
    let mut now = SystemTime::now();
    scene.local("a", now);
    scene.sign(now);
    now += DAY.mul_f64(0.6);
    assert_eq!(scene.refuse(now, &closed), 1);
    assert!(scene.available("a", now), "a valid certificate was thrown away");
    let (_, known) = scene.identities.all().pop().unwrap();
    assert_eq!(known.last_error.as_deref(), Some("the desk is closed"));
    assert!(known.next_attempt.is_some_and(|at| at > now && at < now + Duration::from_secs(2)));
    // As after a suspend: the certificate has ended meanwhile, and the next attempt fails as well.
    now += DAY;
    assert!(!scene.available("a", now));
    assert_eq!(scene.refuse(now, &closed), 1);
    assert_eq!(scene.why("a", now), "the desk is closed");
    // A connection that asks meanwhile doesn't hurry the retry.
    scene.ca.want(identity("a"), now);
    assert_eq!(scene.refuse(now, &closed), 0);
    assert_eq!(scene.sign(now + Duration::from_secs(151)), ["a"]);
    assert!(scene.available("a", now));
    let (_, known) = scene.identities.all().pop().unwrap();
    assert_eq!(known.last_error, None);
}

#[test]
fn a_retry_never_comes_later_than_the_end_of_what_is_held() {
    let mut scene = scene();
    let mut now = SystemTime::now();
    scene.local("a", now);
    scene.sign(now);
    let (_, Known { standing: Standing::Available(held), .. }) = scene.identities.all().pop().unwrap() else {
        panic!("not available");
    };
    now += DAY.mul_f64(0.6);
    while now < held.not_after() {
        scene.refuse(now, &Unsigned::failed("no"));
        now = scene.identities.all()[0].1.next_attempt.unwrap();
    }
    assert_eq!(now, held.not_after());
    assert_eq!(scene.sign(now), ["a"]);
}

#[test]
fn failures_back_off_to_their_bound_for_ever() {
    for (unsigned, first) in [(Unsigned::failed("no"), 0), (Unsigned::denied("not you"), 15)] {
        let mut scene = scene();
        let start = SystemTime::now();
        scene.local("a", start);
        let mut attempts = Vec::new();
        for second in 0..3_600 {
            if scene.refuse(start + Duration::from_secs(second), &unsigned) > 0 {
                attempts.push(second);
            }
        }
        let pauses: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses[0] <= 2.max(first) && pauses[1] <= 3.max(first), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause >= first && *pause <= 181), "{pauses:?}");
        assert!(pauses.iter().rev().take(10).all(|pause| *pause >= 119), "{pauses:?}");
    }
}

#[test]
fn an_identity_is_forgotten_with_its_last_local_workload() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.ca.local("u1".into(), Some(identity("a")), true, now);
    scene.ca.local("u2".into(), Some(identity("a")), true, now);
    scene.ca.local("u3".into(), Some(identity("b")), false, now);
    assert_eq!(scene.sign(now), ["a"], "only what is fetched ahead");
    scene.ca.want(identity("b"), now);
    scene.sign(now);
    scene.ca.local("u1".into(), None, true, now);
    scene.ca.local("u2".into(), Some(identity("a")), true, now);
    assert!(scene.available("a", now), "another workload has it still");
    scene.ca.local("u2".into(), Some(identity("c")), true, now);
    assert_eq!(scene.why("a", now), "unknown");
    scene.ca.local("u3".into(), None, false, now);
    scene.ca.local("u3".into(), None, false, now);
    assert_eq!(scene.why("b", now), "unknown");
    scene.sign(now);
    assert!(scene.available("c", now));
    assert_eq!(scene.sign(now + DAY), ["c"], "the others are asked for no more");
}

#[test]
fn an_answer_for_whom_nobody_is_left_is_dropped() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.local("a", now);
    let first = scene.ca.next(now).unwrap();
    scene.gone("a", now);
    scene.local("a", now);
    let second = scene.ca.next(now).unwrap();
    let late = scene.credential(&identity("a"), now + DAY);
    assert!(!scene.ca.finished(first, Ok(late), now));
    assert_eq!(scene.why("a", now), "initializing", "the second request is the one that counts");
    scene.gone("a", now);
    let late = scene.credential(&identity("a"), now + DAY);
    assert!(!scene.ca.finished(second, Ok(late), now));
    assert_eq!(scene.why("a", now), "unknown");
    assert_eq!(scene.ca.under_way, 0);
}

#[test]
fn those_awaited_go_before_those_made_ahead_and_those_before_renewals() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.local("old", now);
    scene.sign(now);
    let later = now + DAY.mul_f64(0.6);
    for name in ["pod1", "pod2", "pod3"] {
        scene.local(name, later);
    }
    scene.ca.want(identity("pod3"), later);
    scene.ca.want(identity("new"), later);
    assert_eq!(scene.sign(later), ["new", "pod3", "pod1", "pod2", "old"]);
}

#[test]
fn only_so_many_are_under_way_and_a_request_is_shared() {
    let mut scene = scene();
    let now = SystemTime::now();
    for number in 0..SIGNINGS_AT_ONCE + 2 {
        scene.local(&format!("pod{number}"), now);
    }
    let mut tickets: Vec<_> = std::iter::from_fn(|| scene.ca.next(now)).collect();
    assert_eq!(tickets.len(), SIGNINGS_AT_ONCE);
    // Whoever waits for one that is under way shares it.
    let shared = tickets[0].identity().clone();
    scene.ca.want(shared.clone(), now);
    scene.ca.want(identity("urgent"), now);
    let ticket = tickets.remove(0);
    let credential = scene.credential(&shared, now + DAY);
    scene.ca.finished(ticket, Ok(credential), now);
    assert_eq!(scene.ca.next(now).unwrap().identity(), &identity("urgent"));
    assert!(scene.ca.next(now).is_none());
}

#[test]
fn what_nobody_local_has_is_used_to_its_end_and_never_renewed() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.ca.want(identity("a"), now);
    scene.ca.want(identity("b"), now);
    assert_eq!(scene.sign(now).len(), 2);
    let later = now + DAY.mul_f64(0.9);
    assert_eq!(scene.sign(later), [""; 0]);
    assert!(scene.available("a", later));
    // A workload comes after all: then it is renewed, at once where it should have been already.
    scene.local("b", later);
    assert_eq!(scene.sign(later), ["b"]);
    assert!(!scene.sign(now + DAY + Duration::from_secs(1)).contains(&"a".to_owned()));
    assert_eq!(scene.why("a", now + DAY + Duration::from_secs(1)), "unknown");
}

#[test]
fn a_refusal_of_what_nobody_local_has_stands_for_its_pause_then_a_connection_asks_anew() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.ca.want(identity("a"), now);
    assert_eq!(scene.refuse(now, &Unsigned::failed("no")), 1);
    assert_eq!(scene.why("a", now), "no");
    let later = now + Duration::from_secs(2);
    assert_eq!(scene.refuse(later, &Unsigned::failed("no")), 0);
    assert_eq!(scene.why("a", later), "unknown");
    scene.ca.want(identity("a"), later);
    assert_eq!(scene.sign(later), ["a"]);
}

#[test]
fn a_certificate_that_isnt_valid_now_is_refused_with_the_reason() {
    let mut scene = scene();
    let now = SystemTime::now();
    for (at, part) in [(now + 2 * DAY, "has already ended"), (now - DAY, "isn't valid before")] {
        scene.ca.want(identity("a"), at);
        let ticket = scene.ca.next(at).unwrap();
        let credential = scene.credential(&identity("a"), now + DAY);
        assert!(scene.ca.finished(ticket, Ok(credential), at));
        let why = scene.why("a", at);
        assert!(why.contains(part) && why.contains("clock"), "{why}");
        scene.ca.forget(&identity("a"));
    }
}

#[test]
fn clocks_that_jump_make_renewals_due_and_never_put_them_off() {
    let mut scene = scene();
    let now = SystemTime::now();
    scene.local("a", now);
    scene.sign(now);
    let resumed = now + Duration::from_secs(25 * 3_600);
    assert!(!scene.available("a", resumed), "an ended certificate must not be used");
    assert_eq!(scene.sign(resumed), ["a"]);
    // The clock was years ahead when an attempt failed; then it is set right.
    let wrong = now + 1_000 * DAY;
    assert_eq!(scene.refuse(wrong, &Unsigned::failed("not valid yet")), 1);
    assert_eq!(scene.sign(now), [""; 0]);
    assert_eq!(scene.sign(now + Duration::from_secs(2)), ["a"]);
    assert!(scene.available("a", now + Duration::from_secs(2)));
    // It was half a day ahead when the last one was signed; that one is no good to any peer for now.
    let right = now - DAY / 2;
    assert_eq!(scene.refuse(right, &Unsigned::failed("not valid yet")), 1);
    // An authority that is ahead itself isn't asked at once again, and what is held may still do.
    assert_eq!(scene.sign(right), [""; 0]);
    assert!(scene.available("a", right));
}

#[test]
fn the_queue_and_what_is_kept_agree_after_anything() {
    for seed in 0..20 {
        let mut scene = scene();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut now = SystemTime::now();
        let mut tickets: Vec<Ticket> = Vec::new();
        for _ in 0..300 {
            let name = format!("i{}", random.u8(..12));
            match random.u8(..7) {
                0 => scene.ca.want(identity(&name), now),
                1 => scene.local(&name, now),
                2 => scene.gone(&name, now),
                3 => now += Duration::from_secs(random.u64(..50_000)),
                4 => now -= Duration::from_secs(random.u64(..3)),
                5 => tickets.extend(scene.ca.next(now)),
                _ if tickets.is_empty() => {}
                _ => {
                    let ticket = tickets.swap_remove(random.usize(..tickets.len()));
                    let outcome = if random.bool() {
                        Ok(scene.credential(ticket.identity(), now + DAY))
                    } else {
                        Err(Unsigned::failed("no"))
                    };
                    scene.ca.finished(ticket, outcome, now);
                }
            }
            let ca = &scene.ca;
            let queue = &ca.queue;
            let queued = queue.awaited.len() + queue.ahead.len() + queue.renewals.len();
            let places = ca.kept.values().filter(|kept| matches!(kept.place, Place::Queued(..))).count();
            assert_eq!(queued, places, "seed {seed}");
            assert!(ca.under_way == tickets.len() && tickets.len() <= SIGNINGS_AT_ONCE, "seed {seed}");
            for (identity, kept) in &ca.kept {
                let Place::Queued(urgency, due) = kept.place else { continue };
                let entry = (due, identity.clone());
                let set = match urgency {
                    Urgency::Awaited => &queue.awaited,
                    Urgency::Ahead => &queue.ahead,
                    Urgency::Renewal => &queue.renewals,
                };
                assert!(set.contains(&entry), "seed {seed}: {identity}");
            }
            assert_eq!(scene.identities.all().len(), ca.kept.len(), "seed {seed}");
        }
    }
}
