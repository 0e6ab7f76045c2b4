//! Real programs: curl, nginx, iperf3.

use std::process::{Child, Command, Stdio};

use ringway::demo::http::{Curl, HttpServer};
use ringway::demo::topology::Pod;
use ringway_e2e::baseline::Baseline;
use ringway_e2e::world::{APP_PORT, STEP, VIP, VIP6, World};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(pod: &Pod, program: &str, arguments: &[&str]) -> String {
    let output = pod.space.output(program, arguments).unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn curl_reaches_nginx_by_service_and_by_pod_and_nginx_sees_the_client() {
    let world = World::start();
    let server = HttpServer::start(&world.server, APP_PORT, world.cluster.directory()).unwrap();
    assert_eq!(server.name, "nginx", "nginx is what this test is about (deploy/test.sh installs it)");
    let baseline = Baseline::take(&world);
    let (v4, v6) = (world.client.v4.to_string(), world.client.v6.to_string());
    for (url, source) in [
        (format!("http://{VIP}/"), &v4),
        (format!("http://[{VIP6}]/"), &v6),
        (format!("http://{}:{APP_PORT}/", world.server.v4), &v4),
        (format!("http://[{}]:{APP_PORT}/", world.server.v6), &v6),
    ] {
        let curl = Curl::run(&world.client, &url, "hello").unwrap();
        assert_eq!(curl.body, format!("you are {source} and said hello"), "{url}: {}", curl.error);
    }
    // Many requests on a connection, and many connections.
    let url = format!("http://{VIP}/[1-50]");
    run(&world.client, "curl", &["-sS", "--noproxy", "*", "--fail", "--max-time", "20", &url]);
    run(
        &world.client,
        "curl",
        &["-sS", "--noproxy", "*", "--fail", "--parallel", "--parallel-max", "50", "--max-time", "20", &url],
    );
    baseline.is_back(&world);
}

#[test]
fn iperf3_runs_both_ways_and_with_many_streams() {
    let world = World::start();
    let mut command = Command::new("iperf3");
    command.args(["-s", "-p", "5201"]).stdin(Stdio::null()).stdout(Stdio::null());
    let _server = Running(world.server.space.spawn(&mut command).unwrap());
    ringway_e2e::eventually("iperf3 listens", STEP, || {
        ringway_e2e::sockets::listeners(&world.server.space)
            .iter()
            .any(|socket| socket.local.ends_with(":5201"))
    });
    let to = world.server.v4.to_string();
    for extra in [&[][..], &["-R"], &["-P", "8"], &["-P", "8", "-R"], &["--bidir"]] {
        let arguments = [&["-c", &to, "-p", "5201", "-t", "1", "-J"], extra].concat();
        let mut report = serde_json::Value::Null;
        // The server takes one test at a time, and the end of the one before may still be on its way. One second of a
        // busy machine may also be no second at all for one of two directions.
        ringway_e2e::eventually(&format!("{extra:?} runs at 100 Mbit/s"), STEP * 2, || {
            report = serde_json::from_str(&run(&world.client, "iperf3", &arguments)).unwrap();
            report["end"]["sum_received"]["bits_per_second"].as_f64().is_some_and(|rate| rate > 1e8)
        });
    }
}
