//! A real istiod in a network namespace: loadtest/peer/istiod, which runs istio's own discovery server and CA
//! over a fake Kubernetes API. Its objects survive a restart, as do its root and its tokens.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringway::demo::space::Space;
use serde_json::Value;

use crate::world::owned;

/// The name in its certificate, whatever address it is reached at.
pub const ISTIOD_NAME: &str = "istiod.istio-system.svc";
/// Bound of a start; generous, since machines that run tests may be slow.
const START: Duration = Duration::from_secs(60);
const REQUEST: Duration = Duration::from_secs(20);

/// A running istiod; dropping it ends it.
pub struct Istiod {
    space: Space,
    directory: PathBuf,
    listen: SocketAddr,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Child,
}

/// How an istiod starts.
pub struct IstiodPlan<'a> {
    pub space: &'a Space,
    /// Its files go to `istiod` in here.
    pub directory: &'a Path,
    /// Discovery and CA over TLS; the control interface is at loopback, two ports higher.
    pub listen: SocketAddr,
    /// YAML of the objects that are there from the start.
    pub objects: &'a str,
    /// More flags, such as `--max-age 2s`.
    pub arguments: &'a [&'a str],
    /// Istio's own settings, such as `AMBIENT_ENABLE_MULTI_NETWORK=true`.
    pub environment: &'a [(&'a str, &'a str)],
}

impl Istiod {
    /// Up and ready.
    pub fn start(plan: &IstiodPlan<'_>) -> Self {
        let directory = plan.directory.join("istiod");
        std::fs::create_dir_all(&directory).expect("a directory for istiod");
        let first = directory.join("first.yaml");
        std::fs::write(&first, plan.objects).expect("writing istiod's objects");
        let arguments: Vec<String> = plan.arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let environment: Vec<_> = owned(plan.environment).collect();
        let mut command = command(&directory, plan.listen, &arguments, &environment);
        command.arg("--objects").arg(&first);
        let child = plan.space.spawn(&mut command).expect("starting istiod");
        let space = plan.space.clone();
        let mut istiod = Self { space, directory, listen: plan.listen, arguments, environment, child };
        istiod.wait();
        istiod
    }

    /// Ends it at once, as a crash does: its listeners and connections close.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// A new process in the old one's place: the same addresses, root, tokens and objects; nothing else.
    pub fn restart(&mut self) {
        self.stop();
        let mut command = command(&self.directory, self.listen, &self.arguments, &self.environment);
        self.child = self.space.spawn(&mut command).expect("starting istiod again");
        self.wait();
    }

    /// Creates or replaces objects (YAML documents). Its watchers hear of it a little later.
    #[track_caller]
    pub fn apply(&self, yaml: &str) {
        self.expect("PUT", "/apply", yaml);
    }

    #[track_caller]
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.expect("DELETE", &format!("/object/{kind}/{namespace}/{name}"), "");
    }

    /// Names of the `workloads`, `services` and `policies` that its index holds.
    #[track_caller]
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.expect("GET", "/state", "")).expect("JSON")
    }

    /// What `istioctl proxy-status` reads: the proxies that are connected, and what they acknowledged.
    #[track_caller]
    pub fn connections(&self) -> Value {
        serde_json::from_str(&self.expect("GET", "/connections", "")).expect("JSON")
    }

    /// A token of any pod that it knows.
    #[track_caller]
    pub fn token(&self, namespace: &str, pod: &str) -> String {
        self.expect("GET", &format!("/token/{namespace}/{pod}"), "")
    }

    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    pub fn root_file(&self) -> PathBuf {
        self.directory.join("root-cert.pem")
    }

    /// There for each pod of istio-system with the service account ztunnel.
    pub fn token_file(&self, pod: &str) -> PathBuf {
        self.directory.join(format!("istio-token-{pod}"))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("istiod.log")).unwrap_or_default()
    }

    fn wait(&mut self) {
        let until = std::time::Instant::now() + START;
        while !self.request("GET", "/ready", "").is_ok_and(|(status, _)| status == 200) {
            assert!(self.child.try_wait().expect("a child").is_none(), "istiod ended:\n{}", self.log());
            assert!(std::time::Instant::now() < until, "istiod isn't ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn expect(&self, method: &str, path: &str, body: &str) -> String {
        let (status, text) = self.request(method, path, body).expect("istiod's control interface answers");
        assert_eq!(status, 200, "{method} {path}: {text}");
        text
    }

    /// HTTP/1.0, so that the answer ends where the connection does.
    fn request(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
        let mut stream = self.space.connect(control(self.listen), REQUEST)?;
        stream.set_read_timeout(Some(REQUEST))?;
        stream.set_write_timeout(Some(REQUEST))?;
        write!(stream, "{method} {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, text) = answer.split_once("\r\n\r\n").unwrap_or_default();
        Ok((status.unwrap_or_default(), text.to_owned()))
    }
}

impl Drop for Istiod {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- istiod said\n{}", self.log());
        }
        self.stop();
    }
}

fn control(listen: SocketAddr) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, listen.port() + 2).into()
}

fn command(
    directory: &Path,
    listen: SocketAddr,
    arguments: &[String],
    environment: &[(String, String)],
) -> Command {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("istiod.log"));
    let mut command = Command::new(binary());
    command.arg("--listen").arg(listen.to_string()).arg("--control").arg(control(listen).to_string());
    command.arg("--out-dir").arg(directory).arg("--store").arg(directory.join("store"));
    command.arg("--ca-dir").arg(directory.join("ca")).args(arguments);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("a log for istiod"));
    command
}

fn binary() -> PathBuf {
    built("ISTIOD_PEER_BIN", "istiod_binary", "build_istiod")
}

/// What this variable names, else what this function of deploy/needs.sh does; the other one builds it.
#[track_caller]
pub(crate) fn built(variable: &str, place: &str, build: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let checkout = Path::new("../..");
    let mut ask = Command::new("sh");
    ask.args(["-c", &format!(". deploy/needs.sh && {place}")]).current_dir(checkout);
    let answer = ask.output().expect("running sh");
    let path = PathBuf::from(String::from_utf8_lossy(&answer.stdout).trim());
    assert!(
        path.exists(),
        "{} is missing: `. deploy/needs.sh && {build}` builds it, as deploy/test.sh does {}",
        path.display(),
        String::from_utf8_lossy(&answer.stderr)
    );
    path
}
