//! The admin port's page in a real browser: what an operator sees and changes, and what names from peers and pages of
//! other sites can't do.

use std::io::{Read, Write};
use std::net::SocketAddr;

use ringway::demo::node::{ADMIN_PORT, READY_PORT};
use ringway::demo::topology::Pod;
use ringway_e2e::browser::Browser;
use ringway_e2e::lines;
use ringway_e2e::serve::{Server, echo};
use ringway_e2e::world::{APP_PORT, World, dial, service, try_dial};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A port of the server that a policy denies to everybody.
const DENIED: u16 = 9_999;
/// A workload's and a policy's name that would be heard of if they were taken for markup.
const WORKLOAD: &str = "<img src=x onerror=ran=1>";
const POLICY: &str = "</td><script>ran=1</script>";

fn held(from: &Pod, to: SocketAddr) -> std::net::TcpStream {
    let mut stream = dial(from, to);
    stream.write_all(b"?").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    stream
}

/// Goes to a view, and waits until its text has all of these.
#[track_caller]
fn shows(browser: &mut Browser, view: &str, texts: &[&str]) {
    browser.value(&format!("location.hash = '{view}'"));
    let view = view.split('?').next().unwrap();
    for text in texts {
        let text = json!(text);
        browser
            .until(&format!("document.querySelector('#{view}:not([hidden])')?.innerText.includes({text})"));
    }
}

fn level(world: &World) -> String {
    world.far().request("POST", ADMIN_PORT, "/logging").unwrap().1
}

#[test]
fn the_page_shows_and_changes_what_it_should_and_names_stay_text() {
    let world = World::start_with(&[], |world| {
        world.cluster.mesh.add(&world.stranger, false).name = WORKLOAD.to_owned();
        world.cluster.mesh.policies.push(format!(
            "{{name: \"{POLICY}\", namespace: default, scope: Namespace, action: Deny, dryRun: false, \
             rules: [[[{{destinationPorts: [{DENIED}]}}]]]}}"
        ));
    });
    let _app = Server::start(&world.server, APP_PORT, echo);
    let _held = [held(&world.client, service()), held(&world.stranger, world.server.at(APP_PORT))];
    drop(try_dial(&world.stranger, world.server.at(DENIED)));
    lines::wait_for(world.far(), "the denial", |line| {
        line["error"].as_str().is_some_and(|e| e.contains(POLICY))
    });

    let shards: Value = serde_json::from_str(&world.far().get(ADMIN_PORT, "/shards").unwrap().1).unwrap();
    let shards = &shards["shards"]["asked"];
    let page = format!("http://127.0.0.1:{ADMIN_PORT}/");
    let mut browser = Browser::start(world.far().space());
    browser.open(&page);
    browser.until("document.querySelector('#state')?.textContent == 'Ready'");
    shows(
        &mut browser,
        "overview",
        &["io_uring", &format!("{shards} of {shards}"), "1 Up", "the first expires in 23 h", "Nothing."],
    );
    shows(&mut browser, "pods", &["1 pod.", "default/server", "uid-server", "Up"]);
    let service = "default/web.default.svc.cluster.local";
    let client = "cluster.local/ns/default/sa/client";
    shows(&mut browser, "connections", &["2 connections.", WORKLOAD, service, client, "HBONE", "inbound"]);
    shows(&mut browser, "ended?verdict=denied", &["1 connection.", WORKLOAD, POLICY, "denied"]);
    shows(
        &mut browser,
        "certificates",
        &["1 certificate.", "cluster.local/ns/default/sa/server", "Available"],
    );
    shows(&mut browser, "policies", &["1 policy.", POLICY, "Deny", &DENIED.to_string()]);
    shows(&mut browser, "shards", &["answers", "%", "io_uring"]);
    shows(&mut browser, "endpoints", &["config_dump", "quitquitquit"]);

    // A list of more than a page says so.
    let long = "table('shards', ['shard', 'shards'], Array.from({length: 201}, (_, at) => [String(at)])); \
        [document.querySelector('#shards tbody').rows.length, document.querySelector('#shards .count').textContent]";
    assert_eq!(browser.value(long), json!([200, "The first 200 of 201 shards."]));

    // A filter, by hand.
    shows(&mut browser, "connections", &["2 connections."]);
    let from = world.stranger.v4;
    browser.value(&format!("document.querySelector('#connections [name=from]').value = '{from}'"));
    browser.value("document.querySelector('#connections form').requestSubmit()");
    shows(&mut browser, &format!("connections?from={from}"), &["1 connection.", WORKLOAD]);
    browser.value("document.querySelector('#connections form').reset()");
    browser.until("document.querySelector('#connections').innerText.includes('2 connections.')");
    // A wrong one is explained, and the page stays.
    browser.value("location.hash = 'ended?verdict=maybe'");
    browser.until("document.querySelector('#trouble:not([hidden])')?.innerText.includes('answered 400')");

    assert_eq!(browser.value("document.querySelector('#ended tbody').rows.length"), 0);

    // The log level, for a while.
    let before = level(&world);
    shows(&mut browser, "logging", &["hickory_server::server=off,info"]);
    browser.value("document.querySelector('#logging [name=level]').value = 'debug'");
    browser.value("document.querySelector('#logging form').requestSubmit()");
    shows(&mut browser, "logging", &["hickory_server::server=off,debug", "in 300 s it is"]);
    assert!(level(&world).contains("debug"));
    browser.value("document.querySelector('#level-reset').click()");
    browser.until("document.querySelector('#level-now').textContent == 'hickory_server::server=off,info'");
    assert_eq!(level(&world), before);

    // Nothing of it is wider than a telephone; dark where that is wished.
    let light = browser.value("getComputedStyle(document.body).backgroundColor");
    let dark = json!({"features": [{"name": "prefers-color-scheme", "value": "dark"}]});
    browser.call("Emulation.setEmulatedMedia", dark);
    assert_ne!(browser.value("getComputedStyle(document.body).backgroundColor"), light);
    let narrow = json!({"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", narrow);
    for view in
        ["overview", "pods", "connections", "ended", "certificates", "policies", "shards", "endpoints"]
    {
        shows(&mut browser, view, &[""]);
        let whole = browser.value("document.documentElement.scrollWidth");
        assert!(whole.as_u64().is_some_and(|whole| whole <= 360), "{view} is {whole} wide");
    }

    // No name was ever taken for markup, no rule of the page's own was in its way.
    assert_eq!(browser.value("typeof ran"), "undefined");
    assert_eq!(browser.value("document.querySelectorAll('main img, main script').length"), 0);
    let refusals =
        |said: &[String]| said.iter().filter(|said| said.contains("Content Security Policy")).count();
    assert_eq!(refusals(&browser.said), 0, "{:?}", browser.said);

    // Without scripts it is the list of paths.
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.open(&format!("{page}?plain"));
    browser.until("location.search == '?plain' && document.body?.innerText.includes('shut down (POST)')");
    assert_eq!(browser.value("document.body.innerText.includes('Overview')"), false);
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": false}));

    // A page of another site, even of this machine, changes nothing.
    browser.open(&format!("http://127.0.0.1:{READY_PORT}/healthz/ready"));
    browser.until("document.body?.innerText.startsWith('ready')");
    browser.value(&format!(
        "(form => {{ form.method = 'POST'; form.action = '{page}logging?level=trace'; \
         document.body.append(form); form.submit(); }})(document.createElement('form'))"
    ));
    browser.until("document.body?.innerText.startsWith('refused: a page of another site')");
    assert_eq!(level(&world), before);

    // Where the proxy is gone, what was seen last stays, and the page says so.
    browser.open(&format!("{page}#pods"));
    shows(&mut browser, "pods", &["default/server"]);
    world.far().signal(Signal::KILL).unwrap();
    browser.until("document.querySelector('#state').textContent == 'No answer'");
    browser.until(
        "document.querySelector('#trouble:not([hidden])')?.innerText.includes('no answer from the proxy')",
    );
    shows(&mut browser, "pods", &["default/server"]);
}
