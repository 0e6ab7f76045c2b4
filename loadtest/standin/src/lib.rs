//! A fast stand-in for istiod: delta ADS and the certificate service over TLS, from what tests put into it, with
//! every misbehaviour that a client must bear. No Kubernetes: for what istiod makes of objects there is
//! loadtest/peer/istiod.
//!
//! ```ignore
//! let mut istiod = Standin::start(Plan::within(&node.space, "10.77.0.1:15012".parse()?));
//! istiod.mesh().put([generate::pod("web", "demo", "node1", &[address])]);
//! istiod.behave(|how| how.faults.push_back(Fault::Half));      // the next response only
//! istiod.sign(|how| how.outcome = Outcome::Status(code::UNAVAILABLE, "later".into()));
//! istiod.eventually("a nack", STEP, |istiod| istiod.kinds(ADDRESS, Kind::Nack) == 1);
//! istiod.stop(); istiod.restart();                             // the same address, roots and resources
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: a panic is the report"
)]

pub mod authority;
pub mod behaviour;
pub mod certificates;
mod discovery;
pub mod generate;
pub mod heard;
pub mod mesh;
mod message;
mod serve;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway::demo::space::Space;
use tokio::runtime::Runtime;

use authority::Authority;
use behaviour::Behaviour;
use certificates::Signing;
use heard::{Asked, Heard, Kind, Opened};
use mesh::Mesh;
pub use serve::Closing;
use serve::Shared;

/// The name in the certificate, as a real istiod's.
pub const NAME: &str = "istiod.istio-system.svc";

/// Makes the listener, again at each restart.
type Bind = Box<dyn Fn(SocketAddr) -> io::Result<TcpListener> + Send>;

/// Where and how it listens.
pub struct Plan {
    /// Port 0 is any; a restart takes the same again.
    pub listen: SocketAddr,
    pub bind: Bind,
    /// Without TLS.
    pub plain: bool,
    /// DNS names of its certificate.
    pub names: Vec<String>,
    /// Of its thread: above 0 it leaves the CPUs to what is measured, as one on another machine does.
    pub nice: i32,
}

impl Plan {
    /// In the namespace of this process.
    pub fn at(listen: SocketAddr) -> Self {
        let names = vec![NAME.to_owned()];
        Self { listen, bind: Box::new(TcpListener::bind), plain: false, names, nice: 0 }
    }

    pub fn within(space: &Space, listen: SocketAddr) -> Self {
        let space = space.clone();
        Self { bind: Box::new(move |at| space.listen(at).map_err(io::Error::other)), ..Self::at(listen) }
    }
}

/// A running stand-in; dropping it ends it.
pub struct Standin {
    plan: Plan,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Standin {
    #[track_caller]
    pub fn start(plan: Plan) -> Self {
        let mut standin = Self { plan, shared: Arc::new(Shared::new()), runtime: None };
        standin.restart();
        standin
    }

    /// Ends it at once, as a crash does: listener and connections close.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own: inside a test's runtime nothing may wait.
            let stop = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            let _ = stop.join();
        }
    }

    /// The same address, roots, resources and switches; a new certificate.
    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        let listener = (self.plan.bind)(self.plan.listen).expect("the stand-in's listener");
        self.plan.listen = listener.local_addr().expect("a listener's address");
        let tls =
            (!self.plan.plain).then(|| self.shared.tls(&self.plan.names).expect("a server certificate"));
        let nice = self.plan.nice;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("standin")
            .on_thread_start(move || {
                // Without a process this is the calling thread. Refused only below 0.
                let _ = rustix::process::setpriority_process(None, nice);
            })
            .enable_all()
            .build()
            .expect("a runtime");
        let shared = Arc::clone(&self.shared);
        runtime.spawn(async move {
            let listener = serve::listener(listener).expect("a listener");
            serve::listen(shared, listener, tls).await;
        });
        self.runtime = Some(runtime);
    }

    pub fn address(&self) -> SocketAddr {
        self.plan.listen
    }

    /// The roots that it hands out, which its own certificate is signed by unless `authority` was told otherwise.
    pub fn root_pem(&self) -> String {
        self.shared.authority().bundle_pem()
    }

    pub fn mesh(&self) -> &Mesh {
        &self.shared.mesh
    }

    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour());
    }

    pub fn sign(&self, change: impl FnOnce(&mut Signing)) {
        change(&mut self.shared.signing());
    }

    /// Its roots: more of them, another that signs, intermediates.
    pub fn authority<R>(&self, change: impl FnOnce(&mut Authority) -> R) -> R {
        change(&mut self.shared.authority())
    }

    /// While frozen no connection reads, writes or answers a ping, and none ends: a black hole in mid-life. TCP
    /// itself still acknowledges.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// All connections that are up.
    pub fn close(&self, how: Closing) {
        // Fails where there is none.
        let _ = self.shared.closings.send(how);
    }

    /// All discovery streams that are open end with this status; their connections stay.
    pub fn end_streams(&self, code: u16, message: &str) {
        let _ = self.shared.endings.send((code, message.to_owned()));
    }

    /// Every discovery request so far, in the order of arrival.
    pub fn heard(&self) -> Vec<Heard> {
        self.shared.record.lock().requests.clone()
    }

    /// How many discovery requests were such.
    pub fn count(&self, such: impl Fn(&Heard) -> bool) -> usize {
        self.shared.record.lock().requests.iter().filter(|heard| such(heard)).count()
    }

    /// How many requests of this type were of this kind.
    pub fn kinds(&self, type_url: &str, kind: Kind) -> usize {
        self.count(|heard| heard.kind == kind && heard.request.type_url == type_url)
    }

    /// Every stream so far: discovery and certificates.
    pub fn streams(&self) -> Vec<Opened> {
        self.shared.record.lock().streams.clone()
    }

    /// Every certificate request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.record.lock().asked.clone()
    }

    /// The most certificate requests that were ever open at once.
    pub fn most_certificates_at_once(&self) -> usize {
        self.shared.record.lock().most_certificates_at_once
    }

    /// Connections that are up.
    pub fn connections(&self) -> u64 {
        self.shared.record.lock().connections
    }

    /// Connections that ever were.
    pub fn accepted(&self) -> u64 {
        self.shared.record.lock().accepted
    }

    /// Discovery responses that went out whole since the last `forget`.
    pub fn responses(&self) -> u64 {
        self.shared.record.lock().responses
    }

    /// Forgets what it was asked, so that a later assertion sees only what comes.
    pub fn forget(&self) {
        let mut log = self.shared.record.lock();
        log.requests.clear();
        log.streams.clear();
        log.asked.clear();
        log.responses = 0;
        log.most_certificates_at_once = log.certificates_at_once;
    }

    /// Waits until `done`, looking often; panics with `what` where it doesn't come true in time.
    #[track_caller]
    pub fn eventually(&self, what: &str, within: Duration, done: impl Fn(&Self) -> bool) {
        let until = Instant::now() + within;
        while !done(self) {
            assert!(Instant::now() < until, "the stand-in saw not within {within:?}: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.stop();
    }
}
