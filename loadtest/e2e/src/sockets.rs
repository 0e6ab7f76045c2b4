//! What the kernel knows of a pod's sockets, by `ss` inside its namespace.

use ringway::demo::space::Space;

/// One TCP socket of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub state: String,
    pub local: String,
    pub peer: String,
    /// Everything after the addresses, e.g. `timer:(keepalive,2min59sec,0)`.
    pub rest: String,
}

/// All TCP sockets but those that only wait for the kernel (TIME-WAIT) and listeners.
pub fn connections(space: &Space) -> Vec<Socket> {
    list(space, &["-Htano"])
        .into_iter()
        .filter(|socket| !matches!(socket.state.as_str(), "LISTEN" | "TIME-WAIT"))
        .collect()
}

/// The congestion control of each connection that is up, with its local and far address.
pub fn congestion_controls(space: &Space) -> Vec<(String, String, String)> {
    let up = list(space, &["-HtniO"]).into_iter().filter(|socket| socket.state == "ESTAB");
    up.map(|socket| {
        let name = socket.rest.split_whitespace().next().unwrap_or_default().to_owned();
        (socket.local, socket.peer, name)
    })
    .collect()
}

pub fn listeners(space: &Space) -> Vec<Socket> {
    list(space, &["-Htlno"])
}

/// How many listeners of a proxy stand in the namespace: one a shard for each captured port.
pub fn proxy_listeners(space: &Space) -> usize {
    let ports = [":15001", ":15006", ":15008"];
    listeners(space).iter().filter(|socket| ports.iter().any(|port| socket.local.ends_with(port))).count()
}

fn list(space: &Space, arguments: &[&str]) -> Vec<Socket> {
    let output = space.output("ss", arguments).expect("ss (iproute2)");
    assert!(output.status.success(), "ss: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Socket> {
    let mut words = line.split_whitespace();
    let state = words.next()?.to_owned();
    let (_, _) = (words.next()?, words.next()?);
    let (local, peer) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(Socket { state, local, peer, rest: words.collect::<Vec<_>>().join(" ") })
}
