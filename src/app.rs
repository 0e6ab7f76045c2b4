//! Start and stop order of the process; the only place that knows both control and shards.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tracing::{info, warn};

use crate::base::limits::{ORDERS_QUEUED, REPORTS_QUEUED};
use crate::base::version::BuildInfo;
use crate::bridge::absent::Absent;
use crate::bridge::hosts::Hosts;
use crate::bridge::identities::Identities;
use crate::bridge::mailbox::mailbox;
use crate::bridge::order::{Order, Pod, PodInfo, PodKind};
use crate::bridge::published::Published;
use crate::bridge::report::{LastWord, Report};
use crate::config::{
    Aead, Auth, Config, ControlPlane, EventLoop as WantedLoop, LocalXds, ProxyMode, RootCertificate,
    WorkloadInfo,
};
use crate::control::control::Control;
use crate::control::crl::RevocationFile;
use crate::control::grpc::{self, CertificateClient, Target};
use crate::control::hosts::NameServers;
use crate::control::logs::Logs;
use crate::control::publish::Source;
use crate::control::signing::{Embedded, NoAuthority, Signer};
use crate::control::source::LocalSource;
use crate::control::wiring::{Discovery, Facts, Mode, Wiring};
use crate::control::xds::{self, NodeFacts};
use crate::mesh::snapshot::Snapshot;
use crate::path;
use crate::shard::rt::{EventLoop, block_on};
use crate::shard::{Seed, Ways, run as run_shard};
use crate::sys::{cpu, netns, proc, ring, socket};
use crate::tls::aead::{Choice, Library, choose};
use crate::tls::cert::Authority;
use crate::tls::config::{Exchange, Profile};

/// Runs the proxy until it is told to end; answers the exit code.
pub fn run(config: Config) -> anyhow::Result<u8> {
    let started = Instant::now();
    let logs = Logs::start(config.logs.directives.as_deref(), config.logs.format)?;
    let outcome = serve(&config, &logs, started);
    if let Err(error) = &outcome {
        tracing::error!("{error:#}");
    }
    logs.finish();
    outcome
}

fn serve(config: &Config, logs: &Logs, started: Instant) -> anyhow::Result<u8> {
    introduce(config);
    if config.mode == ProxyMode::Shared {
        check_rights(config)?;
    }
    let (event_loop, cause) = choose_event_loop(config)?;
    let shards = config.worker_threads;
    let settings = Arc::new(config.settings(shards));
    let profile = choose_profile(config);
    let records = profile.records;
    let published = Arc::new(Published::new(Snapshot::default()));
    let identities = Arc::new(Identities::default());
    let absent = Arc::new(Absent::default());
    let hosts = Arc::new(Hosts::default());
    let (reports, letters) =
        mailbox::<Report>(REPORTS_QUEUED).context("cannot make the mailbox of reports")?;

    let mut mailboxes = Vec::new();
    let mut seeds = Vec::new();
    for index in 0..shards {
        let (orders, letters) = mailbox::<Order>(ORDERS_QUEUED).context("cannot make a shard's mailbox")?;
        mailboxes.push(orders);
        seeds.push(Seed {
            index,
            settings: settings.clone(),
            published: published.clone(),
            identities: identities.clone(),
            revocations: profile.revocations.clone(),
            absent: absent.clone(),
            hosts: hosts.clone(),
            orders: letters,
            reports: reports.clone(),
            lines: logs.sink(),
            ways: Ways { serve: path::serve, datagram: path::dns::datagram },
        });
    }
    let wiring = Wiring {
        published,
        identities,
        shards: mailboxes,
        reports: letters,
        file: local_source(config),
        control_plane: control_plane(config)?,
        local_node: config.place.local_node.as_deref().map(Into::into),
        absent,
        hosts,
        name_servers: name_servers(config),
        revocation: config
            .sources
            .crl_path
            .clone()
            .map(|path| RevocationFile::new(path, profile.revocations.clone())),
        signer: signer(config, profile)?,
        certificate_ttl: config.sources.secret_ttl,
        mode: match config.mode {
            ProxyMode::Shared => Mode::Shared { cni: config.inpod_uds.clone() },
            ProxyMode::Dedicated(_) => Mode::Dedicated,
        },
        own: own_pods(config),
        readiness_addresses: config.readiness_addr.addresses(),
        metrics_addresses: config.stats_addr.addresses(),
        admin_addresses: config.admin_addr.addresses(),
        admin_socket: config.admin_socket.clone(),
        facts: facts(config, event_loop, cause, records),
        lines: logs.sink(),
        logs: Some(Arc::new(logs.clone())),
        settings,
    };
    // Binds the servers, so that an address in use ends the process before any shard runs.
    let control = Control::new(wiring)?;
    let threads = start_shards(seeds, event_loop)?;
    info!("started after {} ms", started.elapsed().as_millis());
    // A shard that was told to drain has reported, or its time is over: nothing is waited for after it.
    let outcome = control.run(threads)?;
    info!(target: "ztunnel::drain", "shutdown complete: {outcome:?}");
    Ok(0)
}

/// What a person wants to see first.
fn introduce(config: &Config) {
    info!(target: "ztunnel", "version: {}", build(config));
    match proc::raise_nofile() {
        Ok((soft, hard)) => info!(target: "ztunnel", "set file descriptor limits from {soft} to {hard}"),
        Err(error) => warn!(target: "ztunnel", "failed to set file descriptor limits: {error}"),
    }
    info!(target: "ztunnel", "running with config: {}", config.to_yaml());
    for warning in &config.warnings {
        warn!(target: "ztunnel", "{warning}");
    }
}

fn build(config: &Config) -> BuildInfo {
    BuildInfo::new(config.proxy_metadata.get("ISTIO_VERSION").map(String::as_str))
}

/// Shared mode works in pods' namespaces and marks its sockets: without the rights for that it can't even start.
fn check_rights(config: &Config) -> anyhow::Result<()> {
    netns::probe_setns().context("failed to set netns: setns to the own namespace (needs CAP_SYS_ADMIN)")?;
    if let Some(mark) = config.data.packet_mark.filter(|mark| *mark != 0) {
        socket::probe_mark(mark).map_err(|error| {
            anyhow!(
                "failed to set socket mark: failed to set mark on socket. make sure ztunnel has CAP_NET_RAW, \
                 CAP_NET_ADMIN. error: {error}"
            )
        })?;
    }
    Ok(())
}

/// The kind of event loop, and why it isn't io_uring where it isn't.
fn choose_event_loop(config: &Config) -> anyhow::Result<(EventLoop, String)> {
    if config.event_loop == WantedLoop::Epoll {
        return Ok((EventLoop::Epoll, "RINGWAY_EVENT_LOOP=epoll".to_owned()));
    }
    match ring::probe() {
        Ok(()) => Ok((EventLoop::IoUring, String::new())),
        Err(refusal) if config.event_loop == WantedLoop::IoUring => {
            Err(anyhow!(refusal).context("RINGWAY_EVENT_LOOP=io_uring can't be followed"))
        }
        Err(refusal) => {
            warn!("{refusal}");
            Ok((EventLoop::Epoll, refusal.to_string()))
        }
    }
}

fn choose_profile(config: &Config) -> Profile {
    let chosen = choose(match config.aead {
        Aead::Auto => Choice::Measure,
        Aead::Ring => Choice::Force(Library::Ring),
        Aead::AwsLc => Choice::Force(Library::AwsLc),
    });
    info!("record protection: {chosen}");
    Profile {
        exchange: exchange(config),
        records: chosen.library,
        domains: config.place.trust_domains.clone(),
        revocations: Arc::default(),
    }
}

fn exchange(config: &Config) -> Exchange {
    match (config.sources.pqc, config.sources.hybrid) {
        (true, _) => Exchange::PostQuantumOnly,
        (false, true) => Exchange::Hybrid,
        (false, false) => Exchange::Default,
    }
}

/// One pinned thread for each shard.
fn start_shards(seeds: Vec<Seed>, event_loop: EventLoop) -> anyhow::Result<Vec<thread::JoinHandle<()>>> {
    let cores = cpu::cores_for(seeds.len());
    let pinned = cores.iter().flatten().map(|core| core.id.to_string()).collect::<Vec<_>>().join(",");
    info!(
        "event loop: {}, shards: {}, cores: {}",
        event_loop.as_str(),
        seeds.len(),
        if pinned.is_empty() { "any" } else { &pinned },
    );
    let mut threads = Vec::new();
    for (seed, core) in seeds.into_iter().zip(cores) {
        let name = format!("shard-{}", seed.index);
        let last_word = LastWord::new(seed.index, seed.reports.clone());
        let spawned = thread::Builder::new().name(name.clone()).spawn(move || {
            let _told_at_the_end = last_word;
            if let Some(core) = core {
                cpu::pin(core);
            }
            if let Err(error) = block_on(event_loop, run_shard(seed)) {
                tracing::error!("{name} can't run its event loop: {error}");
            }
        });
        threads.push(spawned.context("cannot start a shard's thread")?);
    }
    Ok(threads)
}

fn local_source(config: &Config) -> Option<Box<dyn Source>> {
    match &config.sources.local_xds {
        LocalXds::File(path) => Some(Box::new(LocalSource::file(path.clone()))),
        LocalXds::Inline(text) => Some(Box::new(LocalSource::text(text.clone()))),
        LocalXds::None => None,
    }
}

fn name_servers(config: &Config) -> NameServers {
    let resolver = &config.resolver;
    NameServers {
        servers: resolver.name_servers.clone(),
        domain: resolver.domain.clone(),
        search: resolver.search.clone(),
        ndots: resolver.ndots,
        timeout: Duration::from_secs(resolver.timeout_s),
        attempts: resolver.attempts,
        edns0: resolver.edns0,
        ipv6: config.ipv6,
    }
}

fn signer(config: &Config, profile: Profile) -> anyhow::Result<Arc<dyn Signer>> {
    if config.sources.fake_ca {
        let directory = &config.sources.ca_dir;
        let authority = Authority::open(directory, &config.place.trust_domain)
            .with_context(|| format!("cannot open the embedded authority in {}", directory.display()))?;
        warn!("certificates are signed by the embedded authority in {} (FAKE_CA=true)", directory.display());
        return Ok(Arc::new(Embedded::new(authority, profile)));
    }
    let Some(target) = target(config, grpc::Service::Certificates, &config.sources.ca)? else {
        return Ok(Arc::new(NoAuthority));
    };
    let impersonates = config.mode == ProxyMode::Shared;
    Ok(Arc::new(CertificateClient::new(target, impersonates, profile)))
}

/// How a service of the control plane is reached; none where its address is empty.
fn target(config: &Config, service: grpc::Service, plane: &ControlPlane) -> anyhow::Result<Option<Target>> {
    let Some(address) = plane.address.clone() else { return Ok(None) };
    let sources = &config.sources;
    let options = grpc::Options {
        service,
        address,
        alternative_host: plane.alternative_host.clone(),
        roots: match &plane.root {
            RootCertificate::File(path) => grpc::Roots::File(path.clone()),
            RootCertificate::Static(pem) => grpc::Roots::Inline(pem.clone()),
            RootCertificate::System => grpc::Roots::System,
        },
        token: match &sources.auth {
            Auth::None => grpc::Token::None,
            Auth::File(path) => grpc::Token::File(path.clone()),
            Auth::Token(token) => grpc::Token::Fixed(token.clone()),
        },
        cluster_id: config.place.cluster_id.clone(),
        headers: plane.headers.clone(),
        protection: grpc::Protection { tls12: sources.tls12, exchange: exchange(config) },
    };
    Ok(Some(Target::new(options)?))
}

/// The control plane that tells the mesh; none where its address is empty.
fn control_plane(config: &Config) -> anyhow::Result<Option<Discovery>> {
    let Some(target) = target(config, grpc::Service::Discovery, &config.sources.xds)? else {
        return Ok(None);
    };
    let place = &config.place;
    let facts = NodeFacts {
        instance_ip: place.instance_ip.clone(),
        pod_name: place.pod_name.clone(),
        pod_namespace: place.pod_namespace.clone(),
        node_name: place.local_node.clone(),
        proxy_metadata: config.proxy_metadata.clone(),
        node_metadata: config.node_metadata.clone(),
    };
    Ok(Some(Discovery {
        dial: Box::new(target),
        on_demand: config.sources.xds_on_demand,
        node: xds::node(&facts),
    }))
}

/// Pods that no CNI agent names: the one of dedicated mode, or the proxy's own inbound listener of shared mode.
fn own_pods(config: &Config) -> Vec<Arc<Pod>> {
    let pod = |uid: &str, info: &WorkloadInfo, kind| {
        Arc::new(Pod {
            uid: uid.into(),
            info: PodInfo {
                name: info.name.as_str().into(),
                namespace: info.namespace.as_str().into(),
                service_account: info.service_account.as_str().into(),
            },
            netns: None,
            kind,
        })
    };
    match &config.mode {
        ProxyMode::Dedicated(info) => vec![pod("dedicated", info, PodKind::Workload)],
        ProxyMode::Shared => config
            .place
            .own_workload
            .iter()
            .map(|info| pod("own-inbound", info, PodKind::OwnInbound))
            .collect(),
    }
}

fn facts(config: &Config, event_loop: EventLoop, cause: String, records: Library) -> Facts {
    let build = build(config);
    Facts {
        istio_version: build.istio_version.clone(),
        version: serde_json::to_value(build).unwrap_or_default(),
        config: config.dump(),
        event_loop: event_loop.as_str().to_owned(),
        event_loop_cause: cause,
        aead: records.name().to_owned(),
    }
}
