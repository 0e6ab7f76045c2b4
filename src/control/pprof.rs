//! Profiles for `go tool pprof`, at the reference's URLs of the admin port (section 17.3): CPU time by signal, off
//! unless asked for, one at a time; the heap by the allocator's own samples.

use std::sync::Once;
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use hyper::StatusCode;
use pprof::ProfilerGuardBuilder;
use tokio::sync::{Semaphore, oneshot};

use crate::base::limits::{
    PROFILE_DEFAULT_HZ, PROFILE_DEFAULT_S, PROFILE_MOST_HZ, PROFILE_MOST_S, SCRAPE_NICE,
};
use crate::control::admin::parameter;
use crate::control::http::{self, Reply};
use crate::sys::{heap, proc, signal};
use crate::wire::profile::{Builder, HeapDump, Place};

/// The signal and its handler are the process's.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// The allocator's own functions, and those between it and who asks for memory. A stack is cut at the first one from
/// the thread's start on, so each name is as narrow as can be.
const ALLOCATORS: [&str; 14] = [
    "_rjem_.*",
    "__rustc::.*",
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    ".*GlobalAlloc.*",
    "alloc",
    "alloc_zeroed",
    "realloc",
    "alloc_impl.*",
    "alloc::alloc::.*",
    ".*alloc::raw_vec::.*",
    ".*RawVec.*",
    "exchange_malloc.*",
];

/// `/debug/pprof/profile`: the stacks of all threads while they use the CPU.
pub(super) async fn cpu(query: &str) -> Reply {
    let Some(seconds) = number(query, "seconds", PROFILE_DEFAULT_S, PROFILE_MOST_S) else {
        return http::plain(StatusCode::BAD_REQUEST, "invalid seconds value; expected 1-300\n");
    };
    let Some(hertz) = number(query, "frequency", PROFILE_DEFAULT_HZ, PROFILE_MOST_HZ) else {
        return http::plain(StatusCode::BAD_REQUEST, "invalid frequency value; expected 1-1000\n");
    };
    let Ok(_place) = ONE_AT_A_TIME.try_acquire() else {
        return failed("a CPU profile is being taken already");
    };
    // Dropped with this future, so that nobody is profiled for a client who has gone.
    let (_wanted, given_up) = bounded::<()>(0);
    taken(move || cpu_profile(Duration::from_secs(seconds), hertz, &given_up)).await
}

/// `/debug/pprof/heap`: what is in use, by who asked for it.
pub(super) async fn heap() -> Reply {
    if !heap::is_enabled() {
        return failed("heap profiling is not enabled");
    }
    if !heap::is_active() {
        return failed("heap profiling not active; activate with /debug/pprof/heap/profiling?activate=true");
    }
    taken(heap_profile).await
}

/// `/debug/pprof/heap/profiling`: whether allocations are sampled; switches it.
pub(super) fn heap_profiling(query: &str) -> Reply {
    let wanted = match parameter(query, "activate").as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(value) => {
            let body = format!("invalid activate value {value:?}; expected true or false\n");
            return http::plain(StatusCode::BAD_REQUEST, body);
        }
    };
    if !heap::is_enabled() {
        return failed("jemalloc profiling is not enabled");
    }
    if let Some(Err(error)) = wanted.map(heap::activate) {
        return failed(&error.to_string());
    }
    http::plain(StatusCode::OK, format!("heap profiling active: {}\n", heap::is_active()))
}

fn number(query: &str, name: &str, default: u64, most: u64) -> Option<u64> {
    let Some(value) = parameter(query, name) else { return Some(default) };
    value.parse().ok().filter(|value| (1..=most).contains(value))
}

fn failed(why: &str) -> Reply {
    http::plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n"))
}

/// The profile that a thread of its own takes: looking up symbols takes a while.
async fn taken(take: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static) -> Reply {
    let (answer, answered) = oneshot::channel();
    let spawned = thread::Builder::new().name("profile".to_owned()).spawn(move || {
        let _ = proc::be_nice(SCRAPE_NICE);
        let _ = answer.send(take());
    });
    let outcome = match spawned {
        Ok(_) => answered.await.unwrap_or_else(|_| Err("the profile's thread has ended early".to_owned())),
        Err(error) => Err(error.to_string()),
    };
    match outcome {
        Ok(profile) => http::plain(StatusCode::OK, profile),
        Err(why) => failed(&why),
    }
}

fn cpu_profile(duration: Duration, hertz: u64, given_up: &Receiver<()>) -> Result<Vec<u8>, String> {
    static READY: Once = Once::new();
    let told = |error: pprof::Error| format!("the CPU profile can't be taken: {error}");
    let sampling = |hertz: u64| {
        let hertz = i32::try_from(hertz).unwrap_or(i32::MAX);
        ProfilerGuardBuilder::default().frequency(hertz).build().map_err(told)
    };
    if !READY.is_completed() {
        // The handler reads the program's unwind tables at its first signal. It must not do that within another
        // thread's allocation, so the first signal is our own, while the timer's are seconds apart.
        let slow = sampling(1)?;
        signal::raise_sigprof();
        READY.call_once(|| {});
        drop(slow);
    }
    let (guard, since) = (sampling(hertz)?, SystemTime::now());
    if given_up.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) {
        return Err("nobody waits for it".to_owned());
    }
    let report = guard.report().build_unresolved().map_err(told)?;
    drop(guard);
    let nanoseconds = i64::try_from(1_000_000_000 / hertz).unwrap_or(i64::MAX);
    let measures = [("samples", "count"), ("cpu", "nanoseconds")];
    let mut profile = Builder::new(&measures, (("cpu", "nanoseconds"), nanoseconds), places_of);
    profile.during(since, duration);
    for (stack, samples) in &report.data {
        let name = stack.thread_name.get(..stack.thread_name_length).unwrap_or_default();
        let samples = i64::try_from(*samples).unwrap_or_default();
        let addresses = stack.frames.iter().map(|frame| frame.ip as u64).enumerate();
        profile.add(
            // All but the first are what calls return to.
            addresses.map(|(depth, address)| if depth == 0 { address } else { address.saturating_sub(1) }),
            &[samples, samples.saturating_mul(nanoseconds)],
            Some(&String::from_utf8_lossy(name)),
        );
    }
    Ok(finish(profile))
}

fn heap_profile() -> Result<Vec<u8>, String> {
    let text = heap::dump().map_err(|error| format!("the heap profile can't be taken: {error}"))?;
    let dump = HeapDump::parse(&text).ok_or("the allocator's profile can't be read")?;
    let period = i64::try_from(dump.period_bytes).unwrap_or(i64::MAX);
    let measures = [("inuse_objects", "count"), ("inuse_space", "bytes")];
    let mut profile = Builder::new(&measures, (("space", "bytes"), period), places_of);
    profile.leave_out(&ALLOCATORS.join("|"));
    for stack in &dump.stacks {
        let addresses = stack.addresses.iter().map(|address| address.saturating_sub(1));
        profile.add(addresses, &stack.estimate(dump.period_bytes), None);
    }
    Ok(finish(profile))
}

fn finish(profile: Builder<impl FnMut(u64) -> Vec<Place>>) -> Vec<u8> {
    let bytes = profile.finish();
    // Debug information that was read for it.
    backtrace::clear_symbol_cache();
    bytes
}

/// An address of this process, in its source.
fn places_of(address: u64) -> Vec<Place> {
    let mut places = Vec::new();
    let Ok(address) = usize::try_from(address) else { return places };
    // It is taken for what a call returns to, and so looked for one before.
    let after = std::ptr::without_provenance_mut(address.saturating_add(1));
    backtrace::resolve(after, |symbol| {
        let name = symbol.name().map(|name| format!("{name:#}"));
        places.push(Place {
            function: name.unwrap_or_else(|| format!("{address:#x}")),
            file: symbol.filename().map(|file| file.display().to_string()).unwrap_or_default(),
            line: symbol.lineno().unwrap_or_default(),
        });
    });
    places
}

#[cfg(test)]
#[path = "pprof_tests.rs"]
mod tests;
