//! The commands of the binary against two running proxies: what operators type, and what comes back.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use ringway::demo::mesh_file::namespace_policy;
use ringway::demo::space::Space;
use ringway_e2e::eventually;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, STEP, World, binary, dial, service, talk, try_dial};
use serde_json::Value;

/// A port of the server that a policy denies to everybody.
const DENIED: u16 = 9_999;

struct Shell<'a> {
    space: &'a Space,
    directory: PathBuf,
}

impl Shell<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments).env_clear().current_dir(&self.directory);
        command
    }

    /// Runs one command in the node's namespace.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.space.spawn(&mut command).unwrap().wait_with_output().unwrap()
    }

    /// One that must answer so; its data.
    #[track_caller]
    fn says(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
        out
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.says(arguments, 0)).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `flows --follow` beside the test.
struct Following {
    child: Child,
    file: PathBuf,
}

impl Following {
    fn start(shell: &Shell<'_>) -> Self {
        let file = shell.directory.join("flows.ndjson");
        let mut command = shell.command(&["flows", "-f", "-o", "json", "--to", "server"]);
        command.stdout(File::create(&file).unwrap()).stderr(Stdio::null());
        Self { child: shell.space.spawn(&mut command).unwrap(), file }
    }

    fn has(&self, fits: impl Fn(&Value) -> bool) -> bool {
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).any(|flow| fits(&flow))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything in an archive, as text.
fn unpacked(archive: &Path, into: &Path) -> Vec<(String, String)> {
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(into).status().unwrap();
    assert!(status.success());
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    std::fs::read_dir(into.join("ringway-dump")).unwrap().map(read).collect()
}

#[test]
fn commands_show_and_change_what_a_running_proxy_does() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let at = socket.to_str().unwrap().to_owned();
    // The access log is off: flows don't depend on it. A token, so that a dump has something to leave out.
    let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQifQ.c2lnbmF0dXJlc2lnbmF0dXJl";
    let variables = [
        ("RINGWAY_ADMIN_SOCKET", at.as_str()),
        ("RUST_LOG", "info,access=off"),
        ("XDS_HEADER_AUTHORIZATION", token),
        ("CONNECTION_TERMINATION_DEADLINE", "60s"),
    ];
    let world = World::start_with(&variables, |world| {
        let matching = format!("{{destinationPorts: [{DENIED}]}}");
        world.cluster.mesh.policies = vec![namespace_policy("closed-port", "Deny", &matching)];
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let spaces = [1, 2].map(|node| world.cluster.topology.node(node).unwrap().space.clone());
    let [near, far] = spaces.each_ref().map(|space| Shell { space, directory: directory.path().to_owned() });

    let following = Following::start(&near);
    let mut held = dial(&world.client, service());
    held.write_all(b"?").unwrap();
    held.read_exact(&mut [0]).unwrap();
    lists(&near, &far, &at);
    refusals(&world, &near, &far, &following);
    changes(&near);
    archives(&near, token);
    drains(world, &near, &far, held);
    assert!(!socket.exists(), "its process has gone");
}

/// What is alive, in tables and as data, by port and by socket. Both proxies have the same name for their socket, and
/// the one that came last has it.
fn lists(near: &Shell<'_>, far: &Shell<'_>, socket: &str) {
    let mut all = Value::Null;
    eventually("the connection is open", STEP, || {
        all = near.json(&["conns", "-n", "default", "--to", "web", "-o", "json"]);
        all["items"][0]["state"] == "open"
    });
    let one = &all["items"][0];
    assert_eq!((all["total"].as_u64(), one["direction"].as_str()), (Some(1), Some("outbound")));
    assert_eq!(one["source"]["identity"], "spiffe://cluster.local/ns/default/sa/client");
    assert_eq!((one["bytesSent"].as_u64(), one["bytesReceived"].as_u64()), (Some(1), Some(1)));
    assert_eq!(near.json(&["conns", "--from", "10.99.99.0/24", "-o", "json"])["total"], 0);
    let serial = |text: String| text.split_whitespace().last().map(str::to_owned);
    let theirs = [near, far].map(|shell| serial(shell.says(&["certs"], 0)));
    let by_socket = serial(near.says(&["certs", "--admin", socket], 0));
    assert!(theirs.contains(&by_socket), "{by_socket:?} is of neither: {theirs:?}");
    let far = far.says(&["conns", "-o", "wide"], 0);
    let row = far.lines().nth(1).unwrap_or_else(|| panic!("no connection: {far}"));
    for part in ["default/server", "inbound", "default/client:", "HBONE", "sa/client"] {
        assert!(row.contains(part), "{part}: {far}");
    }
    let certificates = near.says(&["certs"], 0);
    assert!(
        certificates.contains("spiffe://cluster.local/ns/default/sa/client   Available"),
        "{certificates}"
    );
    let top = near.says(&["top", "-1", "--delay", "1"], 0);
    assert!(top.contains("default/client   Up"), "{top}");
    refreshes(near);
    let shards = near.says(&["top", "--by", "shard", "--delay", "1"], 0);
    assert!(shards.lines().count() > 1 && shards.contains('%'), "{shards}");
    assert!(near.says(&["top", "--by", "service", "--delay", "1"], 0).contains("default/web"));
}

/// On a terminal, until q is pressed.
fn refreshes(near: &Shell<'_>) {
    let program = format!("{} top --delay 1", binary().display());
    let mut command = Command::new("script");
    command.args(["-qec", &program, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = near.space.spawn(&mut command).unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut seen, mut piece) = (String::new(), [0; 4_096]);
    // First pods, then what s asks for, then the end.
    for (waits_for, then) in [("default/client", b"s"), ("default/web", b"q")] {
        while !seen.contains(waits_for) {
            let count = output.read(&mut piece).unwrap();
            assert!(count > 0, "it ended without {waits_for}: {seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        input.write_all(then).unwrap();
    }
    assert!(child.wait().unwrap().success() && seen.contains("q quit"), "{seen}");
}

/// A denial at the far side is one at the near side too; who isn't there has a code of its own.
fn refusals(world: &World, near: &Shell<'_>, far: &Shell<'_>, following: &Following) {
    let _ = try_dial(&world.client, world.server.at(DENIED)).map(|mut stream| stream.read(&mut [0]));
    talk(&world.client, service(), "word");
    eventually("the flows are followed", STEP, || {
        following.has(|flow| flow["verdict"] == "denied" && flow["error"] == "http status: 401 Unauthorized")
            && following.has(|flow| flow["verdict"] == "allowed" && flow["bytesSent"] == 4)
    });
    let denied = far.says(&["flows", "--last", "1", "--verdict", "denied"], 0);
    assert!(denied.contains("explicitly denied by: default/closed-port"), "{denied}");
    assert!(
        denied.contains("default/client:") && denied.contains(&format!("default/server:{DENIED}")),
        "{denied}"
    );
    let target = world.server.at(DENIED).to_string();
    assert!(near.says(&["why", "default/client", &target], 2).contains("default/closed-port"));
    near.says(&["conns", "--admin", "127.0.0.1:1"], 69);
    near.says(&["conns", "--admin", "/nowhere/admin.sock"], 69);
    near.says(&["conns", "--direction", "up"], 64);
    near.says(&["drain", "default/nobody"], 1);
}

fn changes(near: &Shell<'_>) {
    let levels = near.says(&["log", "ztunnel::xds=debug", "--for", "10m"], 0);
    assert!(levels.contains("ztunnel::xds=debug") && levels.contains("in 600 s"), "{levels}");
    let levels = near.says(&["log", "--reset"], 0);
    assert!(levels.starts_with("current log level is ") && !levels.contains("xds=debug"), "{levels}");
    near.says(&["log", "loud"], 1);
}

/// An archive has everything but secrets, and answers questions by itself.
fn archives(near: &Shell<'_>, token: &str) {
    near.says(&["dump", "-o", "all.tar.gz"], 0);
    let archive = near.directory.join("all.tar.gz");
    let files = unpacked(&archive, &near.directory);
    for (name, part) in [
        ("config_dump.json", "\"workloadState\""),
        ("connections.json", "\"outbound\""),
        ("flows.ndjson", "\"denied\""),
        ("metrics.txt", "istio_tcp_connections_opened_total"),
        ("ready.txt", "ready"),
        ("logging.txt", "current log level"),
        ("shards.json", "busyNanoseconds"),
        ("config.txt", "RINGWAY_ADMIN_SOCKET"),
        ("kernel.txt", "Seccomp:"),
        ("errors.txt", ""),
    ] {
        let (_, text) = files.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}"));
        assert!(text.contains(part), "{name}: {text}");
    }
    for (name, text) in &files {
        assert!(!text.contains("PRIVATE KEY") && !text.contains(token), "a secret is in {name}");
    }
    let why =
        near.says(&["why", "default/client", "web.default.svc.cluster.local:80", "--file", "all.tar.gz"], 0);
    assert!(why.ends_with("=> carried\n"), "{why}");
}

/// A pod that is let go takes nothing new and keeps what it has; then the whole proxies.
fn drains(mut world: World, near: &Shell<'_>, far: &Shell<'_>, mut held: TcpStream) {
    near.says(&["drain", "default/client", "--grace", "60s", "--no-wait"], 0);
    eventually("nothing new is taken", STEP, || try_dial(&world.client, service()).is_err());
    held.write_all(b"!").unwrap();
    held.read_exact(&mut [0]).unwrap();
    let all = near.json(&["conns", "-o", "json"]);
    assert_eq!(all["total"], 1, "{all}");
    drop(held);
    near.says(&["drain", "default/client", "--grace", "60s"], 0);
    // It can be deleted as any other.
    world.cluster.agent(1).unwrap().delete("uid-client").unwrap();
    for (node, shell) in [(1, near), (2, far)] {
        shell.says(&["drain"], 0);
        let status = world.cluster.proxy_mut(node).unwrap().wait(3 * STEP).unwrap();
        assert_eq!(status.code(), Some(0));
        shell.says(&["certs"], 69);
    }
}
