//! The running proxy, as commands reach it: at its socket in the file system, or at its admin port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::config::{ADMIN_PORT, Bind, Config, Surroundings};
use crate::control::ask::{ask, follow};

/// Bound of a step towards the proxy.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// A dump of a large mesh takes a while.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// More than any answer has; a mesh of a million workloads is half of it.
const ANSWER_BYTES: u64 = 2 << 30;

/// Nobody is there who could answer: exit code 69.
#[derive(Debug, thiserror::Error)]
#[error("no proxy answers at {at} (--admin says where else)")]
pub struct Unavailable {
    at: String,
    #[source]
    error: std::io::Error,
}

/// Where it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    Socket(PathBuf),
    /// `HOST:PORT`
    Port(String),
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

impl Admin {
    /// Where the option says; else the socket of the environment if it is there, else the configured port.
    pub fn new(given: Option<&str>, from: &Surroundings<'_>) -> Self {
        if let Some(given) = given {
            return if given.contains('/') {
                Self::Socket(given.into())
            } else {
                Self::Port(given.to_owned())
            };
        }
        let socket = from.environment.get("RINGWAY_ADMIN_SOCKET").map(PathBuf::from);
        if let Some(socket) = socket.filter(|path| from.files.exists(path)) {
            return Self::Socket(socket);
        }
        let port = Config::load(from).map_or(ADMIN_PORT, |config| match config.admin_addr {
            Bind::Localhost(_, port) => port,
            Bind::SocketAddr(address) => address.port(),
        });
        Self::Port(format!("127.0.0.1:{port}"))
    }

    /// The same proxy's other port.
    pub fn port(&self, port: u16) -> Self {
        match self {
            Self::Socket(_) => Self::Port(format!("127.0.0.1:{port}")),
            Self::Port(at) => {
                let host = at.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
                Self::Port(format!("{host}:{port}"))
            }
        }
    }

    /// The body of a GET; what isn't a success is an error with the proxy's words.
    pub fn get(&self, path: &str) -> Result<String> {
        self.request("GET", path)
    }

    pub fn post(&self, path: &str) -> Result<String> {
        self.request("POST", path)
    }

    /// The same as JSON.
    pub fn get_json(&self, path: &str) -> Result<Value> {
        parsed(&self.get(path)?)
    }

    pub fn post_json(&self, path: &str) -> Result<Value> {
        parsed(&self.post(path)?)
    }

    /// Lines as they come.
    pub fn follow(&self, path: &str) -> Result<impl BufRead + use<>> {
        let (status, mut body) = follow(self.connect(None)?, "GET", path)
            .map_err(|error| Unavailable { at: self.to_string(), error })?;
        if status != 200 {
            let mut text = String::new();
            let _ = body.by_ref().take(64 * 1024).read_to_string(&mut text);
            return Err(refusal(path, status, &text));
        }
        let body: BufReader<Box<dyn Stream>> = body;
        Ok(body)
    }

    fn request(&self, method: &str, path: &str) -> Result<String> {
        let stream = self.connect(Some(ANSWER_PATIENCE))?;
        let (status, body) = ask(stream, method, path, ANSWER_BYTES)
            .map_err(|error| Unavailable { at: self.to_string(), error })?;
        if status != 200 {
            return Err(refusal(path, status, &body));
        }
        Ok(body)
    }

    fn connect(&self, patience: Option<Duration>) -> Result<Box<dyn Stream>> {
        let connected = match self {
            Self::Socket(path) => by_socket(path, patience),
            Self::Port(at) => {
                let addresses = at.to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
                if addresses.is_empty() {
                    bail!("{at:?} is neither HOST:PORT nor a path");
                }
                by_port(&addresses, patience)
            }
        };
        Ok(connected.map_err(|error| Unavailable { at: self.to_string(), error })?)
    }
}

impl std::fmt::Display for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Port(at) => at.fmt(f),
        }
    }
}

fn by_socket(path: &Path, patience: Option<Duration>) -> std::io::Result<Box<dyn Stream>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
    Ok(Box::new(stream))
}

/// The first address that answers: a name has one of either family.
fn by_port(
    addresses: &[std::net::SocketAddr],
    patience: Option<Duration>,
) -> std::io::Result<Box<dyn Stream>> {
    let mut last = std::io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match TcpStream::connect_timeout(address, CONNECT_PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(Some(CONNECT_PATIENCE))?;
                return Ok(Box::new(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What the proxy says of a question that it doesn't answer.
fn refusal(path: &str, status: u16, body: &str) -> anyhow::Error {
    let said = body.trim_end();
    let path = path.split('?').next().unwrap_or(path);
    match status {
        404 if said.is_empty() => anyhow::anyhow!("the proxy knows no {path}: it is of another version"),
        _ if said.is_empty() => anyhow::anyhow!("the proxy answered {path} with status {status}"),
        _ => anyhow::anyhow!("{said}"),
    }
}

fn parsed(body: &str) -> Result<Value> {
    serde_json::from_str(body).context("the proxy's answer isn't JSON")
}

/// A path with parameters; those without a value are left out.
pub fn query(path: &str, parameters: &[(&str, Option<&str>)]) -> String {
    let mut text = path.to_owned();
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    for (number, (name, value)) in given.enumerate() {
        text.push(if number == 0 { '?' } else { '&' });
        text.push_str(&format!("{name}={}", encoded(value)));
    }
    text
}

/// For a query (RFC 3986 section 2.3).
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
pub mod test {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A proxy that gives these answers (status line and body), one after the other; then the requests' first lines.
    pub fn answering(answers: Vec<(&'static str, String)>) -> (Admin, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = Admin::Port(listener.local_addr().unwrap().to_string());
        let serving = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = [0; 4_096];
                let count = stream.read(&mut bytes).unwrap();
                stream
                    .write_all(format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n{body}").as_bytes())
                    .unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                heard.push(text.lines().next().unwrap_or_default().to_owned());
            }
            heard
        });
        (admin, serving)
    }
}

#[cfg(test)]
mod tests {
    use super::test::answering;
    use super::*;
    use crate::config::{CpuFacts, Files};

    /// A file system in which every file is there, or none.
    struct Everything(bool);

    impl Files for Everything {
        fn read(&self, _: &Path) -> std::io::Result<String> {
            Err(std::io::ErrorKind::NotFound.into())
        }

        fn exists(&self, _: &Path) -> bool {
            self.0
        }
    }

    #[test]
    fn the_option_goes_first_then_a_socket_that_is_there_then_the_configured_port() {
        let socket = ("RINGWAY_ADMIN_SOCKET", "/tmp/a.sock");
        let moved = ("PROXY_CONFIG", "{proxyAdminPort: 15999, proxyMetadata: {}}");
        for (given, environment, there, expected) in [
            (Some("/x.sock"), &[socket][..], true, "/x.sock"),
            (Some("localhost:1"), &[socket], true, "localhost:1"),
            (None, &[socket], true, "/tmp/a.sock"),
            (None, &[socket], false, "127.0.0.1:15000"),
            (None, &[moved], true, "127.0.0.1:15999"),
            (None, &[("FAKE_CA", "perhaps")], true, "127.0.0.1:15000"),
        ] {
            let from = Surroundings {
                environment: environment.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
                args: Vec::new(),
                cpus: CpuFacts { online: 1 },
                files: &Everything(there),
            };
            assert_eq!(Admin::new(given, &from).to_string(), expected);
        }
        assert_eq!(Admin::Port("[::1]:15000".into()).port(15020), Admin::Port("[::1]:15020".into()));
    }

    #[test]
    fn queries_are_encoded_and_answers_are_whole() {
        let (admin, serving) =
            answering(vec![("200 OK", "{\"a\":1}".to_owned()), ("200 OK", "x\ny\n".to_owned())]);
        let path = query("/p", &[("from", Some("a/b")), ("to", None), ("at", Some("[::1]:80"))]);
        assert_eq!(admin.get_json(&path).unwrap()["a"], 1);
        let lines: Vec<String> = admin.follow("/f").unwrap().lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["x", "y"]);
        let requests = serving.join().unwrap();
        assert_eq!(requests, ["GET /p?from=a%2Fb&at=%5B%3A%3A1%5D%3A80 HTTP/1.0", "GET /f HTTP/1.0"]);
    }

    #[test]
    fn refusals_are_told_in_the_proxys_words_and_absence_is_told_apart() {
        let answers = vec![("400 Bad Request", "no such pod\n".to_owned()), ("404 Not Found", String::new())];
        let (admin, serving) = answering(answers);
        assert_eq!(admin.get("/x").unwrap_err().to_string(), "no such pod");
        let error = admin.follow("/y?z").err().unwrap();
        assert!(error.to_string().contains("knows no /y:") && error.downcast_ref::<Unavailable>().is_none());
        serving.join().unwrap();
        for nobody in [Admin::Port("127.0.0.1:1".into()), Admin::Socket("/nowhere/admin.sock".into())] {
            let error = nobody.get("/x").unwrap_err();
            assert!(error.downcast_ref::<Unavailable>().is_some(), "{error:#}");
            assert!(format!("{error:#}").contains(&nobody.to_string()), "{error:#}");
        }
        assert!(Admin::Port("what".into()).get("/x").unwrap_err().to_string().contains("HOST:PORT"));
    }
}
