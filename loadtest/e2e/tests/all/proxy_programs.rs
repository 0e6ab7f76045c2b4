//! Real programs that know a proxy, through the explicit proxies of a pod: curl, OkHttp, against nginx.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ringway::demo::http::HttpServer;
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::eventually;
use ringway_e2e::forge::{Draft, Forge};
use ringway_e2e::lines;
use ringway_e2e::world::{APP_PORT, STEP, VIP, VIP6, World};

const ON: [(&str, &str); 2] = [("RINGWAY_HTTP_CONNECT", "true"), ("UNSTABLE_ENABLE_SOCKS5", "true")];
const WEB: &str = "web.default.svc.cluster.local";
const LARGE_BYTES: usize = 3_000_000;

/// By its arguments: every one of these takes names to the proxy, but the last.
const PROXIES: [(&str, &[&str]); 4] = [
    ("connect", &["--proxytunnel", "-x", "http://127.0.0.1:15081"]),
    ("connect", &["--proxytunnel", "-x", "http://[::1]:15081"]),
    ("socks5", &["--socks5-hostname", "127.0.0.1:15080"]),
    ("socks5", &["--socks5", "127.0.0.1:15080"]),
];

struct Curled {
    code: Option<i32>,
    out: String,
    said: String,
}

fn curl(pod: &Pod, arguments: &[&str]) -> Curled {
    let all = [&["-sS", "--max-time", "15", "--noproxy", ""], arguments].concat();
    let output = pod.space.output("curl", &all).unwrap();
    Curled {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// nginx with TLS, HTTP/1.1 and HTTP/2, on the service's port; its certificate is of a root that the clients are given.
struct Tls {
    nginx: Child,
    root: PathBuf,
}

impl Tls {
    fn start(pod: &Pod, directory: &Path) -> Self {
        let directory = directory.join("nginx-tls");
        std::fs::create_dir_all(directory.join("files")).unwrap();
        let papers = Forge::foreign().papers(&Draft::of("").only_dns(&[WEB, "localhost"]));
        let write = |name: &str, content: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let root = write("root.pem", papers.root_pem.as_bytes());
        write("chain.pem", papers.chain_pem.as_bytes());
        write("key.pem", papers.key_pem.as_bytes());
        write("files/large", &vec![b'z'; LARGE_BYTES]);
        let there = directory.to_string_lossy();
        let configuration = format!(
            "daemon off;\nmaster_process off;\npid {there}/pid;\nevents {{ worker_connections 1024; }}\n\
             http {{\n access_log off;\n client_max_body_size 8m;\n client_body_temp_path {there}/body;\n \
             proxy_temp_path {there}/proxy;\n fastcgi_temp_path {there}/fastcgi;\n \
             uwsgi_temp_path {there}/uwsgi;\n scgi_temp_path {there}/scgi;\n default_type text/plain;\n \
             server {{\n  listen {APP_PORT} ssl http2;\n  listen [::]:{APP_PORT} ssl http2;\n  \
             ssl_certificate {there}/chain.pem;\n  ssl_certificate_key {there}/key.pem;\n  \
             root {there}/files;\n  location = /who {{ return 200 \"$server_protocol from $remote_addr\\n\"; }}\n \
             }}\n}}\n"
        );
        let configuration = write("nginx.conf", configuration.as_bytes());
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-p").arg(&directory).arg("-c").arg(&configuration).args(["-e", "stderr"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let nginx = pod.space.spawn(&mut command).unwrap();
        eventually("nginx listens with TLS", STEP, || {
            pod.space.connect((std::net::Ipv4Addr::LOCALHOST, APP_PORT).into(), STEP).is_ok()
        });
        Self { nginx, root }
    }
}

impl Drop for Tls {
    fn drop(&mut self) {
        let _ = self.nginx.kill();
        let _ = self.nginx.wait();
    }
}

#[test]
fn curl_reaches_http_through_every_proxy_by_name_and_by_address() {
    let world = World::start_with(&ON, |_| {});
    let _server = HttpServer::start(&world.server, APP_PORT, world.cluster.directory()).unwrap();
    let baseline = Baseline::take(&world);
    let by_name = format!("http://{WEB}/");
    let by_address = [
        format!("http://{VIP}/"),
        format!("http://[{VIP6}]/"),
        format!("http://{}:{APP_PORT}/", world.server.v4),
    ];
    for (via, proxy) in PROXIES {
        let names = (!proxy.contains(&"--socks5")).then_some(&by_name);
        for url in names.into_iter().chain(&by_address) {
            let curled = curl(&world.client, &[proxy, &["-H", "x-marker: me", url]].concat());
            // The family of the call decides where a name has both.
            let by_six =
                url.contains('[') || (*url == by_name && proxy.iter().any(|word| word.contains('[')));
            let own = if by_six { world.client.v6.to_string() } else { world.client.v4.to_string() };
            assert_eq!(
                curled.out.trim(),
                format!("you are {own} and said me"),
                "{proxy:?} {url}: {}",
                curled.said
            );
        }
        lines::wait_for(world.near(), via, |line| line["via"] == via && line["dst.service"] == WEB);
    }
    // Many at once, and many on one tunnel.
    let many = format!("http://{WEB}/[1-60]");
    let curled = curl(&world.client, &[PROXIES[0].1, &["--fail", "--parallel", &many]].concat());
    assert_eq!(curled.code, Some(0), "{}", curled.said);
    // Without --proxytunnel curl asks the proxy for the page itself, and is told what to do.
    let curled = curl(&world.client, &["-x", "http://127.0.0.1:15081", "-w", "%{http_code}", &by_name]);
    assert!(
        curled.out.contains("only tunnels") && curled.out.ends_with("405"),
        "{}{}",
        curled.out,
        curled.said
    );
    baseline.is_back(&world);
}

#[test]
fn curl_is_told_why_a_tunnel_is_refused() {
    let world = World::start_with(&ON, |_| {});
    let refused = format!("http://{}:9/", world.stranger.v4);
    let curled = curl(&world.client, &[PROXIES[0].1, &["-w", "%{http_connect}", &refused]].concat());
    assert!(curled.code == Some(56) && curled.out.ends_with("502"), "{}{}", curled.out, curled.said);
    let curled = curl(&world.client, &[PROXIES[3].1, &[&*refused]].concat());
    assert!(curled.code == Some(97) && curled.said.contains("(5)"), "{:?} {}", curled.code, curled.said);
}

#[test]
fn curl_speaks_tls_through_every_proxy_with_both_versions_of_http() {
    let world = World::start_with(&ON, |_| {});
    let server = Tls::start(&world.server, world.cluster.directory());
    let baseline = Baseline::take(&world);
    let (root, url) = (server.root.to_string_lossy(), format!("https://{WEB}:80"));
    for (_, proxy) in &PROXIES[..3] {
        // The family of the call decides where a name has both.
        let by_six = proxy.iter().any(|word| word.contains('['));
        let from = if by_six { world.client.v6.to_string() } else { world.client.v4.to_string() };
        for (version, name) in [("--http1.1", "HTTP/1.1"), ("--http2", "HTTP/2.0")] {
            let common = [proxy, &["--fail", "--cacert", &*root, version][..]].concat();
            let curled = curl(&world.client, &[&common[..], &[&format!("{url}/who")]].concat());
            assert_eq!(curled.out.trim(), format!("{name} from {from}"), "{proxy:?}: {}", curled.said);
            let curled = curl(&world.client, &[&common[..], &[&format!("{url}/large")]].concat());
            assert_eq!(curled.out.len(), LARGE_BYTES, "{proxy:?}: {}", curled.said);
        }
    }
    baseline.is_back(&world);
}

#[test]
fn okhttp_tunnels_tls_with_http_1_and_http_2_inside() {
    let world = World::start_with(&ON, |_| {});
    let server = Tls::start(&world.server, world.cluster.directory());
    let baseline = Baseline::take(&world);
    let peer = Path::new("../peer/okhttp");
    let (jars, program) = (jars(peer), peer.join("Tunnel.java"));
    for (kind, port) in [("http", "15081"), ("socks", "15080")] {
        let arguments = [
            "-Xmx256m",
            "-cp",
            &format!("{}/*", jars.display()),
            &program.to_string_lossy(),
            kind,
            "127.0.0.1",
            port,
            &server.root.to_string_lossy(),
            &format!("https://{WEB}:80"),
        ];
        let output = world.client.space.output("java", &arguments).unwrap();
        let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{kind}: {out}{said}");
        let mut expected = Vec::new();
        for (protocol, name) in [("http/1.1", "HTTP/1.1"), ("h2", "HTTP/2.0")] {
            let who = format!("{name} from {}", world.client.v4);
            let short = format!("{protocol} 200 {} {who}", who.len() + 1);
            let large = format!("GET {protocol} 200 {LARGE_BYTES} {}", "z".repeat(60));
            expected.extend([format!("GET {short}"), format!("GET {short}"), large.clone()]);
            expected.push(format!("POST {short}"));
            expected.extend(std::iter::repeat_n(large, 8));
        }
        assert_eq!(out.lines().collect::<Vec<_>>(), expected, "{kind}: {said}");
    }
    for via in ["connect", "socks5"] {
        lines::wait_for(world.near(), via, |line| line["via"] == via && line["dst.service"] == WEB);
    }
    baseline.is_back(&world);
}

/// OKHTTP_JARS, else where deploy/needs.sh puts them.
fn jars(peer: &Path) -> PathBuf {
    if let Some(directory) = std::env::var_os("OKHTTP_JARS") {
        return directory.into();
    }
    let cache = std::env::var_os("RINGWAY_CACHE").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or("/root".into())).join(".cache/ringway"),
        PathBuf::from,
    );
    let sums = peer.join("jars.sha256");
    let digest = Command::new("sha256sum").stdin(std::fs::File::open(sums).unwrap()).output().unwrap();
    let key = String::from_utf8(digest.stdout).unwrap();
    let directory = cache.join("okhttp").join(key.get(..16).unwrap());
    assert!(directory.is_dir(), "{} isn't there: deploy/test.sh fetches it", directory.display());
    directory
}
