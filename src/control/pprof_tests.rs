//! Profiles of this very process; `go tool pprof` reads them end to end.

use super::*;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::http::test::body;
use crate::wire::pb::profile::Profile;

/// The profiler is the process's, and both tests use it.
fn alone() -> tokio::sync::SemaphorePermit<'static> {
    loop {
        match ONE_AT_A_TIME.try_acquire() {
            Ok(place) => return place,
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[inline(never)]
fn burn_until(over: &AtomicBool) {
    let mut sum = 0_u64;
    while !over.load(Ordering::Relaxed) {
        for number in 0..10_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
    }
}

#[test]
fn a_thread_that_works_is_in_the_profile_with_its_name_and_function() {
    let _place = alone();
    let (_wanted, given_up) = bounded(0);
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    let busy = thread::Builder::new().name("busy".to_owned()).spawn(move || burn_until(&told)).unwrap();
    let bytes = cpu_profile(Duration::from_secs(1), 250, &given_up).unwrap();
    over.store(true, Ordering::Relaxed);
    busy.join().unwrap();
    let profile = Profile::decode(&*bytes).unwrap();
    let text = |place: i64| profile.string_table[usize::try_from(place).unwrap()].as_str();
    let is_busy = |sample: &&crate::wire::pb::profile::Sample| {
        let location = |id: &u64| profile.location.iter().find(|location| location.id == *id).unwrap();
        let lines = sample.location_id.iter().flat_map(|id| &location(id).line);
        let mut functions = lines.map(|line| {
            let function = profile.function.iter().find(|function| function.id == line.function_id);
            text(function.unwrap().name)
        });
        text(sample.label[0].str) == "busy" && functions.any(|name| name.contains("burn_until"))
    };
    let samples: i64 = profile.sample.iter().filter(is_busy).map(|sample| sample.value[0]).sum();
    assert!(samples >= 5, "{samples} of {} stacks", profile.sample.len());
    assert_eq!(profile.period, 4_000_000);
}

#[test]
fn a_client_that_has_gone_ends_its_profile() {
    let (wanted, given_up) = bounded(0);
    drop(wanted);
    let _place = alone();
    let started = std::time::Instant::now();
    let outcome = cpu_profile(Duration::from_secs(300), 1, &given_up);
    assert!(outcome.is_err() && started.elapsed() < Duration::from_secs(200));
}

#[test]
fn parameters_are_checked_as_the_reference_does() {
    for (query, seconds) in [
        ("", Some(10)),
        ("seconds=1", Some(1)),
        ("seconds=300", Some(300)),
        ("seconds=301", None),
        ("seconds=0", None),
        ("seconds=x", None),
        ("seconds=", None),
    ] {
        assert_eq!(number(query, "seconds", PROFILE_DEFAULT_S, PROFILE_MOST_S), seconds, "{query}");
    }
    assert_eq!(number("frequency=1000", "frequency", PROFILE_DEFAULT_HZ, PROFILE_MOST_HZ), Some(1_000));
    assert_eq!(number("frequency=1001", "frequency", PROFILE_DEFAULT_HZ, PROFILE_MOST_HZ), None);
    let reply = heap_profiling("activate=maybe");
    assert_eq!(reply.status(), 400);
    assert_eq!(body(reply), "invalid activate value \"maybe\"; expected true or false\n");
    // The tests run on the system's allocator.
    assert_eq!(body(heap_profiling("")), "jemalloc profiling is not enabled\n");
}

#[test]
fn only_the_allocators_own_functions_are_left_out_of_heap_profiles() {
    let is_left_out = |name: &str| {
        ALLOCATORS.iter().any(|pattern| {
            let (head, tail) = (pattern.starts_with(".*"), pattern.ends_with(".*"));
            let middle = pattern.trim_start_matches(".*").trim_end_matches(".*");
            match (head, tail) {
                (false, false) => name == middle,
                (false, true) => name.starts_with(middle),
                (true, false) => name.ends_with(middle),
                (true, true) => name.contains(middle),
            }
        })
    };
    for inner in ["_rjem_je_prof_backtrace", "__rust_alloc", "<alloc::raw_vec::RawVecInner>::finish_grow"] {
        assert!(is_left_out(inner), "{inner}");
    }
    // At the start of every thread's stack.
    for outer in ["__rust_begin_short_backtrace", "std::sys::backtrace::__rust_begin_short_backtrace"] {
        assert!(!is_left_out(outer), "{outer}");
    }
}
