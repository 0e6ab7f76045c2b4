//! Tables of policies in a mesh of a real istiod: a row's objects are applied in place of the row's before, and each
//! way to the server shows whether it is open. What is refused must never have reached the application.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ringway::demo::topology::Pod;
use serde_json::{Value, json};

use crate::istio_world::IstioWorld;
use crate::serve::{Server, echo};
use crate::world::{APP_PORT, service, try_dial};

pub const OTHER_PORT: u16 = 9_090;
/// How soon a row's objects are in force; generous, since machines that run tests may be slow.
const IN_FORCE: Duration = Duration::from_secs(5);
/// A verdict must stand for so long, so that one that only passes by is seen.
const STANDS: Duration = Duration::from_millis(120);

/// A Kubernetes object with what names it.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    kind: &'static str,
    namespace: &'static str,
    name: String,
    yaml: String,
}

/// A PeerAuthentication; `spec` in YAML's flow style.
pub fn peer_authentication(namespace: &'static str, name: &str, spec: &str) -> Object {
    Object::new("PeerAuthentication", namespace, name, "{}", spec)
}

/// An AuthorizationPolicy; `spec` in YAML's flow style.
pub fn authorization(namespace: &'static str, name: &str, spec: &str) -> Object {
    Object::new("AuthorizationPolicy", namespace, name, "{}", spec)
}

impl Object {
    fn new(kind: &'static str, namespace: &'static str, name: &str, annotations: &str, spec: &str) -> Self {
        let yaml = format!(
            "apiVersion: security.istio.io/v1\nkind: {kind}\n\
             metadata: {{name: {name}, namespace: {namespace}, annotations: {annotations}}}\nspec: {spec}\n"
        );
        Self { kind, namespace, name: name.to_owned(), yaml }
    }

    pub fn yaml(&self) -> &str {
        &self.yaml
    }

    /// The same under `istio.io/dry-run: "{value}"`.
    pub fn dry_run(self, value: &str) -> Self {
        let annotations = format!("{{istio.io/dry-run: \"{value}\"}}");
        Self {
            yaml: self.yaml.replacen("annotations: {}", &format!("annotations: {annotations}"), 1),
            ..self
        }
    }
}

/// What stands in a world, and what was wrong so far.
pub struct Verdicts<'a> {
    world: &'a IstioWorld,
    apps: [Server; 2],
    held: Vec<Object>,
    rows: usize,
    wrong: Vec<String>,
}

impl<'a> Verdicts<'a> {
    pub fn new(world: &'a IstioWorld) -> Self {
        let apps = [APP_PORT, OTHER_PORT].map(|port| Server::start(&world.server, port, echo));
        let mut verdicts = Self { world, apps, held: Vec::new(), rows: 0, wrong: Vec::new() };
        verdicts.row("nothing", Vec::new(), Some(&[]), "+++++");
        verdicts
    }

    /// `passes` has `+` or `-` for: plaintext to port 8080, plaintext to 9090, HBONE to 8080, HBONE to 9090, HBONE to
    /// the service (its port 80 is 8080). `attached`: the policies that istiod names at the server, where they are
    /// looked at. `{client}`, `{stranger}` and `{server}` in an object are the pods' addresses.
    pub fn row(&mut self, what: &str, objects: Vec<Object>, attached: Option<&[&str]>, passes: &str) {
        self.rows += 1;
        let marker = format!("marker-{}", self.rows);
        self.replace(objects, &marker);
        let until = Instant::now() + IN_FORCE;
        let mut seen = self.look(&marker, attached);
        while seen.as_deref() != Ok(passes) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
            seen = self.look(&marker, attached);
        }
        if seen.as_deref() == Ok(passes) {
            std::thread::sleep(STANDS);
            let before = self.reached();
            seen = self.look(&marker, attached);
            let through = |ways: &[usize]| ways.iter().filter(|way| passes.as_bytes()[**way] == b'+').count();
            let expected = [before[0] + through(&[0, 2, 4]), before[1] + through(&[1, 3])];
            if self.reached() != expected {
                self.wrong.push(format!("{what}: a call that was refused reached the application"));
            }
        }
        if seen.as_deref() != Ok(passes) {
            self.wrong.push(format!("{what}: {passes} is right, there was {seen:?}"));
        }
    }

    /// Panics with every row that was wrong.
    #[track_caller]
    pub fn are_right(mut self) {
        self.replace(Vec::new(), "marker-last");
        assert!(self.wrong.is_empty(), "of {} rows:\n{}", self.rows, self.wrong.join("\n"));
    }

    fn replace(&mut self, objects: Vec<Object>, marker: &str) {
        // Of a workload that isn't there: when it has arrived, so has what was applied before it.
        let marker = authorization("default", marker, "{selector: {matchLabels: {app: nobody}}}");
        let [client, stranger, server] =
            [&self.world.client, &self.world.stranger, &self.world.server].map(|pod| pod.v4.to_string());
        let mut objects = objects;
        for object in &mut objects {
            let named = object.yaml.replace("{client}", &client).replace("{stranger}", &stranger);
            object.yaml = named.replace("{server}", &server);
        }
        objects.push(marker);
        for old in &self.held {
            let same =
                |new: &Object| (new.kind, new.namespace, &new.name) == (old.kind, old.namespace, &old.name);
            if !objects.iter().any(same) {
                self.world.istiod.delete(old.kind, old.namespace, &old.name);
            }
        }
        let yaml: Vec<_> = objects.iter().map(|object| object.yaml.as_str()).collect();
        self.world.istiod.apply(&yaml.join("---\n"));
        self.held = objects;
    }

    /// Which ways are open; or what isn't known yet.
    fn look(&self, marker: &str, attached: Option<&[&str]>) -> Result<String, String> {
        let dump = self.world.far().dump().map_err(|error| error.to_string())?;
        let named = |kind: &str, name: &str| {
            let all = dump[kind].as_array().into_iter().flatten();
            all.filter(|entry| entry["name"] == name).cloned().collect::<Vec<Value>>()
        };
        if named("policies", marker).is_empty() {
            return Err(format!("no policy {marker}"));
        }
        let server = named("workloads", "server").pop().ok_or("no workload server")?;
        let holds = server.get("authorizationPolicies").cloned().unwrap_or_else(|| json!([]));
        if let Some(attached) = attached.filter(|attached| holds != json!(attached)) {
            return Err(format!("{attached:?} belong to the server, it has {holds}"));
        }
        let (client, stranger, server) = (&self.world.client, &self.world.stranger, &self.world.server);
        let (one, other) = (server.at(APP_PORT), server.at(OTHER_PORT));
        let ways = [(stranger, one), (stranger, other), (client, one), (client, other), (client, service())];
        Ok(ways.into_iter().map(|(from, to)| way(from, to)).collect())
    }

    /// How many connections each application ever had.
    fn reached(&self) -> [usize; 2] {
        self.apps.each_ref().map(|app| app.peers().len())
    }
}

/// `+` where an echo comes back, `-` where the connection ends without a byte, `?` for anything else.
fn way(from: &Pod, to: SocketAddr) -> char {
    match exchange(from, to) {
        Ok(()) => '+',
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
            ) =>
        {
            '-'
        }
        Err(_) => '?',
    }
}

/// One echo over a connection of its own.
pub fn exchange(from: &Pod, to: SocketAddr) -> std::io::Result<()> {
    let mut stream = try_dial(from, to)?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    echo_on(&mut stream)
}

/// One echo over a connection that is open.
pub fn echo_on(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"word")?;
    let mut heard = [0; 4];
    stream.read_exact(&mut heard)?;
    if &heard == b"word" { Ok(()) } else { Err(std::io::Error::other(format!("heard {heard:?}"))) }
}

/// Whether the far side ended this connection; nothing is read that was sent.
pub fn has_ended(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
    let ended = match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    };
    stream.set_read_timeout(Some(crate::world::STEP)).expect("a timeout");
    ended
}
