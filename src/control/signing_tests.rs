//! The desk with signers that are slow, broken or not there.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::limits::SIGNINGS_AT_ONCE;
use crate::bridge::identities::{Identities, Standing};

const DAY: Duration = Duration::from_secs(86_400);

fn identity(name: &str) -> Identity {
    format!("spiffe://cluster.local/ns/ns/sa/{name}").parse().unwrap()
}

fn desk(signer: impl Signer + 'static) -> (Desk, Arc<Identities>) {
    let identities = Arc::<Identities>::default();
    let keeper = Ca::new(identities.clone(), fastrand::Rng::with_seed(1));
    (Desk::new(keeper, Arc::new(signer), DAY), identities)
}

async fn why(signer: impl Signer + 'static) -> String {
    let (mut desk, identities) = desk(signer);
    let now = SystemTime::now();
    desk.keeper.want(identity("a"), now);
    desk.start(now);
    assert!(desk.finished().await);
    match identities.lookup(&identity("a"), now) {
        Some(Standing::Unavailable(why)) => why.to_string(),
        Some(Standing::Available(_)) => "available".to_owned(),
        Some(Standing::Initializing) | None => "nothing".to_owned(),
    }
}

#[tokio::test]
async fn the_embedded_authority_signs_and_without_one_the_reason_is_told() {
    let authority = Authority::new("cluster.local").unwrap();
    assert_eq!(why(Embedded::new(authority, Profile::default())).await, "available");
    assert!(why(NoAuthority).await.contains("no certificate authority is configured"));
}

#[tokio::test]
async fn a_signer_that_panics_is_a_failure_like_any_other() {
    struct Broken;
    impl Signer for Broken {
        fn issue(&self, _: Identity, _: Duration) -> Signing {
            Box::pin(async { panic!("out of luck") })
        }
    }
    let said = why(Broken).await;
    assert!(said.contains("the signing task fell"), "{said}");
}

#[tokio::test]
async fn a_crowd_is_signed_a_few_at_a_time() {
    struct Slow(Arc<(AtomicUsize, AtomicUsize)>);
    impl Signer for Slow {
        fn issue(&self, _: Identity, _: Duration) -> Signing {
            let counts = self.0.clone();
            Box::pin(async move {
                let at_once = counts.0.fetch_add(1, Ordering::Relaxed) + 1;
                counts.1.fetch_max(at_once, Ordering::Relaxed);
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                counts.0.fetch_sub(1, Ordering::Relaxed);
                Err(Unsigned::failed("no"))
            })
        }
    }
    let counts = Arc::<(AtomicUsize, AtomicUsize)>::default();
    let (mut desk, identities) = desk(Slow(counts.clone()));
    let now = SystemTime::now();
    for number in 0..100 {
        desk.keeper.want(identity(&format!("i{number}")), now);
    }
    let told = |identities: &Identities| {
        let unavailable =
            |known: &crate::bridge::identities::Known| matches!(known.standing, Standing::Unavailable(_));
        identities.all().iter().filter(|(_, known)| unavailable(known)).count()
    };
    while told(&identities) < 100 {
        desk.start(now);
        desk.finished().await;
    }
    assert_eq!(counts.1.load(Ordering::Relaxed), SIGNINGS_AT_ONCE);
}

#[test]
fn reasons_are_one_line_of_bounded_length() {
    let unsigned = Unsigned::failed(format!("a\nb\x1b[1m{}", "ü".repeat(SIGNING_REASON_BYTES)));
    assert!(unsigned.why.starts_with("a b [1mü") && unsigned.why.len() <= SIGNING_REASON_BYTES);
}
