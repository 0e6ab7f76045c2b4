//! Renewal, failure and forgetting against a clock that is given.

use super::*;
use std::sync::Mutex;

/// Signs as long as it is told to, and counts.
#[derive(Default)]
struct Desk {
    closed: bool,
    signed: Vec<Identity>,
}

struct DeskSigner(Arc<Mutex<Desk>>, Embedded);

impl Signer for DeskSigner {
    fn issue(&self, identity: &Identity, ttl: Duration) -> Result<Credential, Box<dyn Error + Send + Sync>> {
        let mut desk = self.0.lock().unwrap();
        desk.signed.push(identity.clone());
        if desk.closed { Err("the desk is closed".into()) } else { self.1.issue(identity, ttl) }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

fn scene() -> (Ca, Arc<Mutex<Desk>>, Arc<Identities>) {
    let (desk, identities) = (Arc::<Mutex<Desk>>::default(), Arc::<Identities>::default());
    let authority = Authority::new("cluster.local").unwrap();
    let signer = DeskSigner(desk.clone(), Embedded { authority, profile: Profile::default() });
    let ca = Ca::new(Box::new(signer), DAY, identities.clone(), fastrand::Rng::with_seed(1));
    (ca, desk, identities)
}

fn identity(name: &str) -> Identity {
    format!("spiffe://cluster.local/ns/ns/sa/{name}").parse().unwrap()
}

fn available(identities: &Identities, name: &str, now: SystemTime) -> bool {
    matches!(identities.lookup(&identity(name), now), Some(Standing::Available(_)))
}

#[test]
fn a_wanted_identity_is_signed_once_and_renewed_at_half_its_life() {
    let (mut ca, desk, identities) = scene();
    let now = SystemTime::now();
    ca.want(identity("a"), now);
    ca.want(identity("a"), now);
    assert!(matches!(identities.lookup(&identity("a"), now), Some(Standing::Initializing)));
    assert_eq!(ca.turn(now), 1);
    assert!(available(&identities, "a", now));
    assert_eq!(ca.turn(now + DAY.mul_f64(0.39)), 0, "too early");
    assert_eq!(ca.turn(now + DAY.mul_f64(0.51)), 1);
    assert_eq!(desk.lock().unwrap().signed.len(), 2);
}

#[test]
fn a_failing_desk_keeps_what_is_valid_and_then_says_why() {
    let (mut ca, desk, identities) = scene();
    let mut now = SystemTime::now();
    ca.want(identity("a"), now);
    ca.turn(now);
    desk.lock().unwrap().closed = true;
    now += DAY.mul_f64(0.6);
    assert_eq!(ca.turn(now), 1);
    assert!(available(&identities, "a", now), "a valid certificate was thrown away");
    // As after a suspend: the certificate has ended meanwhile, and the next attempt fails as well.
    now += DAY;
    assert!(!available(&identities, "a", now));
    assert_eq!(ca.turn(now), 1);
    let standing = identities.lookup(&identity("a"), now);
    assert!(matches!(standing, Some(Standing::Unavailable(why)) if &*why == "the desk is closed"));
    // A connection that asks meanwhile doesn't hurry the retry.
    ca.want(identity("a"), now);
    assert_eq!(ca.turn(now), 0);
    desk.lock().unwrap().closed = false;
    // What the desk signs is valid by the real clock.
    assert_eq!(ca.turn(now + Duration::from_secs(151)), 1);
    assert!(available(&identities, "a", SystemTime::now()));
}

#[test]
fn failures_back_off_to_their_bound_for_ever() {
    let (mut ca, desk, _) = scene();
    desk.lock().unwrap().closed = true;
    let start = SystemTime::now();
    ca.want(identity("a"), start);
    let mut attempts = Vec::new();
    for second in 0..3_600 {
        if ca.turn(start + Duration::from_secs(second)) > 0 {
            attempts.push(second);
        }
    }
    let pauses: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] <= 2 && pauses[1] <= 3, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 181), "{pauses:?}");
    assert!(pauses.iter().rev().take(10).all(|pause| *pause >= 119), "{pauses:?}");
}

#[test]
fn an_identity_is_forgotten_with_its_last_local_workload() {
    let (mut ca, _, identities) = scene();
    let now = SystemTime::now();
    ca.local("u1".into(), Some(identity("a")), true, now);
    ca.local("u2".into(), Some(identity("a")), true, now);
    ca.local("u3".into(), Some(identity("b")), false, now);
    assert_eq!(ca.turn(now), 1, "only what is fetched ahead");
    ca.want(identity("b"), now);
    ca.turn(now);
    ca.local("u1".into(), None, true, now);
    ca.local("u2".into(), Some(identity("a")), true, now);
    assert!(available(&identities, "a", now), "another workload has it still");
    ca.local("u2".into(), Some(identity("c")), true, now);
    assert!(identities.lookup(&identity("a"), now).is_none());
    ca.local("u3".into(), None, false, now);
    ca.local("u3".into(), None, false, now);
    assert!(identities.lookup(&identity("b"), now).is_none());
    ca.turn(now);
    assert!(available(&identities, "c", now));
}

#[test]
fn without_an_authority_the_reason_is_told() {
    let identities = Arc::<Identities>::default();
    let mut ca = Ca::new(Box::new(NoAuthority), DAY, identities.clone(), fastrand::Rng::new());
    let now = SystemTime::now();
    ca.want(identity("a"), now);
    ca.turn(now);
    let standing = identities.lookup(&identity("a"), now);
    assert!(matches!(standing, Some(Standing::Unavailable(why)) if why.contains("no certificate authority")));
}

#[test]
fn a_flood_of_identities_is_signed_in_turns_those_awaited_first() {
    let (mut ca, desk, identities) = scene();
    let now = SystemTime::now();
    for number in 0..SIGNINGS_A_TURN {
        ca.want(identity(&format!("old{number}")), now);
    }
    ca.turn(now);
    let later = now + DAY.mul_f64(0.6);
    ca.want(identity("new"), later);
    desk.lock().unwrap().signed.clear();
    assert_eq!(ca.turn(later), SIGNINGS_A_TURN);
    assert_eq!(desk.lock().unwrap().signed[0], identity("new"));
    assert_eq!(ca.turn(later), 1);
    assert_eq!(identities.all().len(), SIGNINGS_A_TURN + 1);
}
