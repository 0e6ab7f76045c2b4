//! ringway-gen: the load generator, the yardstick proxies, and the comparison of arms. No part of the product.

mod authority;
mod compare;
mod control;
mod counts;
mod load;
mod names;
mod netns;
mod pattern;
mod plot;
mod sockets;
mod topology;
mod yardstick;

use std::path::PathBuf;

use anyhow::Result;
use authority::{Cipher, Credential};
use clap::Parser;
use load::client::run_here;
use load::{bulk, mix, requests, serve, tls};

/// The identities of the TLS load without a proxy.
const TLS_CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
const TLS_SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";

#[derive(Parser)]
#[command(name = "ringway-gen", version, about = "Load generator, yardsticks and comparison for Ringway")]
enum Command {
    /// Serve sinks, sources and exchanges.
    Serve {
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// Over TLS, with an authority in this directory (made if it isn't there).
        #[arg(long)]
        tls: Option<PathBuf>,
    },
    /// Transfer bulk for a while, every byte checked.
    Bulk(bulk::Bulk),
    /// Request and response on kept connections.
    Rr {
        #[command(flatten)]
        requests: requests::Requests,
        /// Over TLS, with the authority in this directory.
        #[arg(long)]
        tls: Option<PathBuf>,
    },
    /// A new connection for each request.
    Crr(requests::Requests),
    /// Each connection between addresses that never met.
    Cold(requests::Cold),
    /// Hold connections.
    Hold(requests::Hold),
    /// Small requests beside bulk or unread transfers.
    Mix(mix::Mix),
    /// The HBONE yardstick: tokio, tokio-rustls, h2.
    H2tokio(yardstick::Proxy),
    /// Plain relays.
    Hop2(yardstick::Proxy),
    /// Compare arms, in network namespaces; needs root.
    Compare(compare::Compare),
    /// Draw a comparison's JSON as SVG.
    Plot(plot::Plot),
    /// Count system calls, allocations and held bytes, each with its bound; needs root and perf.
    Counts(counts::Counts),
    /// Measure what a control plane's pushes cost; needs root.
    Control(control::Control),
    /// Measure what an answer of the DNS proxy costs; needs root.
    Dns(names::Names),
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Serve { port, tls: None } => run_here(serve::serve(port)),
        Command::Serve { port, tls: Some(directory) } => {
            tls::serve(port, Credential::issue(&directory, TLS_SERVER, Cipher::Aes256Gcm)?.server(&[])?)
        }
        Command::Bulk(arguments) => run_here(bulk::bulk(arguments)),
        Command::Rr { requests, tls: None } => run_here(requests::rr(requests)),
        Command::Rr { requests, tls: Some(directory) } => tls::rr(
            &requests,
            Credential::issue(&directory, TLS_CLIENT, Cipher::Aes256Gcm)?.client(TLS_SERVER, &[])?,
        ),
        Command::Crr(arguments) => run_here(requests::crr(arguments)),
        Command::Cold(arguments) => run_here(requests::cold(arguments)),
        Command::Hold(arguments) => run_here(requests::hold(arguments)),
        Command::Mix(arguments) => run_here(mix::mix(arguments)),
        Command::H2tokio(proxy) => yardstick::h2tokio(proxy),
        Command::Hop2(proxy) => yardstick::hop2(proxy),
        Command::Compare(compare) => compare.run(),
        Command::Plot(plot) => plot.run(),
        Command::Counts(counts) => counts.run(),
        Command::Control(control) => control.run(),
        Command::Dns(arguments) => names::names(&arguments),
    }
}
