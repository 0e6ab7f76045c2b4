//! The HTTP server of the demo's server pod: nginx where it is installed, else a small one of our own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::topology::Pod;

pub const MARKER_HEADER: &str = "x-marker";
/// Bound of a request's head.
const HEAD_BYTES: u64 = 16 * 1_024;

/// A running server; dropping it ends it.
pub struct HttpServer {
    pub name: &'static str,
    nginx: Option<Child>,
}

impl HttpServer {
    pub fn start(pod: &Pod, port: u16, directory: &Path) -> Result<Self> {
        let Some(nginx) = installed("nginx") else {
            let listener = pod.space.listen((std::net::Ipv6Addr::UNSPECIFIED, port).into())?;
            std::thread::spawn(move || serve(&listener));
            return Ok(Self { name: "the built-in server", nginx: None });
        };
        let directory = directory.join("nginx");
        std::fs::create_dir_all(&directory)?;
        let configuration = directory.join("nginx.conf");
        std::fs::write(&configuration, nginx_configuration(port, &directory.to_string_lossy()))?;
        let mut command = Command::new(nginx);
        command.arg("-p").arg(&directory).arg("-c").arg(&configuration).args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { name: "nginx", nginx: Some(pod.space.spawn(&mut command)?) };
        server.wait_for(pod, port)?;
        Ok(server)
    }

    fn wait_for(&mut self, pod: &Pod, port: u16) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(10);
        let loopback = (std::net::Ipv4Addr::LOCALHOST, port).into();
        while pod.space.connect(loopback, Duration::from_secs(1)).is_err() {
            if let Some(status) = self.nginx.as_mut().map(Child::try_wait).transpose()?.flatten() {
                bail!("nginx ended at once ({status})");
            }
            if Instant::now() > until {
                bail!("nginx doesn't listen on {port}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(nginx) = &mut self.nginx {
            let _ = nginx.kill();
            let _ = nginx.wait();
        }
    }
}

fn installed(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let with_sbin = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    with_sbin.map(|directory| directory.join(program)).find(|file| file.is_file())
}

fn nginx_configuration(port: u16, directory: &str) -> String {
    format!(
        "daemon off;\nmaster_process off;\npid {directory}/pid;\nevents {{ worker_connections 4096; }}\n\
         http {{\n access_log off;\n client_body_temp_path {directory}/body;\n \
         proxy_temp_path {directory}/proxy;\n \
         fastcgi_temp_path {directory}/fastcgi;\n uwsgi_temp_path {directory}/uwsgi;\n \
         scgi_temp_path {directory}/scgi;\n default_type text/plain;\n server {{\n  listen {port};\n  \
         listen [::]:{port};\n  \
         location / {{ return 200 \"you are $remote_addr and said $http_x_marker\\n\"; }}\n }}\n}}\n"
    )
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            // What a client does to its own connection is its own affair.
            let _ = converse(&stream);
        });
    }
}

fn converse(stream: &TcpStream) -> Result<()> {
    let peer = stream.peer_addr()?.ip().to_canonical();
    loop {
        let mut head = BufReader::new(stream.take(HEAD_BYTES));
        let (mut line, mut marker) = (String::new(), String::new());
        if head.read_line(&mut line)? == 0 {
            return Ok(());
        }
        loop {
            line.clear();
            if head.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end().split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case(MARKER_HEADER) => {
                    value.trim().clone_into(&mut marker);
                }
                Some(_) => {}
                None => break,
            }
        }
        let body = format!("you are {peer} and said {marker}\n");
        let length = body.len();
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
    }
}

/// One request by curl from inside a pod.
pub struct Curl {
    pub exit_code: Option<i32>,
    pub body: String,
    pub error: String,
}

impl Curl {
    pub fn run(pod: &Pod, url: &str, marker: &str) -> Result<Self> {
        let header = format!("{MARKER_HEADER}: {marker}");
        let arguments = ["-sS", "--noproxy", "*", "--max-time", "10", "-H", &header, url];
        let output = pod.space.output("curl", &arguments).context("curl (deploy/demo.sh installs it)")?;
        Ok(Self {
            exit_code: output.status.code(),
            body: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            error: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_server_names_its_client_and_keeps_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener));
        let stream = TcpStream::connect(to).unwrap();
        for marker in ["one", "two"] {
            write!(&stream, "GET / HTTP/1.1\r\nhost: x\r\nX-Marker: {marker}\r\n\r\n").unwrap();
            let wanted = format!("you are 127.0.0.1 and said {marker}\n");
            let mut heard = String::new();
            while !heard.ends_with(&wanted) {
                let mut bytes = [0; 256];
                let count = (&stream).read(&mut bytes).unwrap();
                assert!(count > 0, "closed after {heard:?}");
                heard.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
            }
        }
    }
}
