//! What an application says first goes out together with its CONNECT. Whatever the far side answers, each byte
//! arrives once, in order, or not at all.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ringway_e2e::hbone_server::{Call, HboneServer};
use ringway_e2e::lines::{self, number, text};
use ringway_e2e::pattern;
use ringway_e2e::world::{APP_PORT, World, dial};

const IDENTITY: &str = "spiffe://cluster.local/ns/default/sa/gateway";
const FIRST: usize = 3_000;
const REST: usize = 100_000;

/// Waits a moment for the first payload before it answers, then echoes everything. True: the payload was there.
async fn hear_then_echo(mut call: Call) -> bool {
    let ahead = tokio::time::timeout(Duration::from_millis(300), call.body.data()).await;
    let heard = ahead.is_ok();
    let mut next = ahead.ok().flatten();
    let response = http::Response::builder().status(200).body(()).unwrap();
    let mut send = call.respond.send_response(response, false).unwrap();
    if next.is_none() {
        next = call.body.data().await;
    }
    while let Some(Ok(bytes)) = next {
        let _ = call.body.flow_control().release_capacity(bytes.len());
        send.reserve_capacity(bytes.len());
        send.send_data(bytes, false).unwrap();
        next = call.body.data().await;
    }
    let _ = send.send_data(bytes::Bytes::new(), true);
    heard
}

/// Talks first, and on as soon as something comes back. All of it comes back unchanged.
fn talk(world: &World, to: std::net::SocketAddr) {
    let mut stream = dial(&world.client, to);
    let mut sent = vec![0; FIRST + REST];
    pattern(5, 0, &mut sent);
    stream.write_all(&sent[..FIRST]).unwrap();
    let mut heard = vec![0; FIRST];
    stream.read_exact(&mut heard).unwrap();
    stream.write_all(&sent[FIRST..]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut heard).unwrap();
    assert!(heard == sent, "{} bytes came back, or others", heard.len());
    let line = lines::wait_for(world.near(), "the call", |line| line["message"] == "connection complete");
    let all = u64::try_from(sent.len()).unwrap();
    assert_eq!((number(&line, "bytes_recv"), number(&line, "bytes_sent")), (all, all));
}

#[test]
fn the_far_side_hears_the_application_before_it_answers() {
    let (world, gateway) = World::start_with_gateway();
    let heard = Arc::new(AtomicBool::new(false));
    let told = heard.clone();
    let _server = HboneServer::start(&gateway, &world.cluster.authority(), IDENTITY, move |call| {
        let told = told.clone();
        Box::pin(async move {
            if hear_then_echo(call).await {
                told.store(true, Ordering::SeqCst);
            }
        })
    });
    // An application that is slow to speak is heard after the answer; not each one of these is.
    for _ in 0..20 {
        talk(&world, gateway.at(APP_PORT));
        if heard.load(Ordering::SeqCst) {
            return;
        }
    }
    panic!("not one of 20 callers was heard before the answer");
}

#[test]
fn what_a_refused_request_carried_is_carried_by_the_next_one() {
    let (world, gateway) = World::start_with_gateway();
    let _server = HboneServer::start(&gateway, &world.cluster.authority(), IDENTITY, |mut call| {
        Box::pin(async move {
            if call.number == 0 {
                let _ = tokio::time::timeout(Duration::from_millis(300), call.body.data()).await;
                call.respond.send_reset(h2::Reason::REFUSED_STREAM);
                return;
            }
            let _ = hear_then_echo(call).await;
        })
    });
    talk(&world, gateway.at(APP_PORT));
}

#[test]
fn what_a_lost_tunnel_may_have_delivered_is_not_sent_again() {
    let (world, gateway) = World::start_with_gateway();
    let heard = Arc::new(AtomicUsize::new(0));
    let told = heard.clone();
    let _server = HboneServer::start(&gateway, &world.cluster.authority(), IDENTITY, move |mut call| {
        let told = told.clone();
        Box::pin(async move {
            let ahead = tokio::time::timeout(Duration::from_millis(300), call.body.data()).await;
            told.fetch_add(usize::from(ahead.is_ok()), Ordering::SeqCst);
            call.cut();
        })
    });
    // Callers that are heard too late to be heard ahead are asked for again; so several are tried.
    for _ in 0..20 {
        let before = heard.load(Ordering::SeqCst);
        let mut stream = dial(&world.client, gateway.at(APP_PORT));
        stream.write_all(&[7; FIRST]).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        match heard.load(Ordering::SeqCst) - before {
            0 => {}
            1 => return,
            more => panic!("the same bytes were sent {more} times"),
        }
    }
    panic!("not one of 20 callers was heard before the answer");
}

#[test]
fn a_denied_call_is_reset_and_counts_no_bytes() {
    let (world, gateway) = World::start_with_gateway();
    let _server = HboneServer::start(&gateway, &world.cluster.authority(), IDENTITY, |mut call| {
        Box::pin(async move {
            let _ = tokio::time::timeout(Duration::from_millis(300), call.body.data()).await;
            let response = http::Response::builder().status(401).body(()).unwrap();
            let _ = call.respond.send_response(response, true);
        })
    });
    let mut stream = dial(&world.client, gateway.at(APP_PORT));
    stream.write_all(&[7; FIRST]).unwrap();
    let error = stream.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let line = lines::wait_for(world.near(), "the denied call", |line| !text(line, "error").is_empty());
    assert_eq!((number(&line, "bytes_recv"), number(&line, "bytes_sent")), (0, 0), "{line}");
}
