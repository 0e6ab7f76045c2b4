//! The rules that istio-cni programs inside an enrolled pod (iptables mode), in its order: traffic of the app
//! goes to the proxy's ports, traffic of the proxy (mark 0x539) doesn't, and replies of the app to a
//! connection that carries a foreign source address find their way back (connection mark 0x111, routing table
//! 100).

use std::fmt::Write as _;

use anyhow::Result;

use super::space::{Space, ip};

/// Whether names are captured as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dns {
    Off,
    On,
}

#[derive(Clone, Copy)]
struct Addresses {
    loopback: &'static str,
    /// Kubelet's probes arrive from this address; they are never captured.
    probe: &'static str,
}

const V4: Addresses = Addresses { loopback: "127.0.0.1/32", probe: "169.254.7.127" };
const V6: Addresses = Addresses { loopback: "::1/128", probe: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff" };
const PROXY_MARK: &str = "0x539/0xfff";
const REPLY_MARK: &str = "0x111/0xfff";

/// Enrols the pod: from here on it fails closed until a proxy listens.
pub fn program(space: &Space, dns: Dns) -> Result<()> {
    space.ip_batch(
        "route replace local 0.0.0.0/0 dev lo table 100\nroute replace local ::/0 dev lo table 100\n\
         rule add fwmark 0x111/0xfff pref 32764 lookup 100\n",
    )?;
    ip(&["-6", "-n", space.name(), "rule", "add", "fwmark", REPLY_MARK, "pref", "32764", "lookup", "100"])?;
    space.feed("iptables-restore", &["--noflush"], &restore(V4, dns))?;
    space.feed("ip6tables-restore", &["--noflush"], &restore(V6, dns))
}

/// Takes the pod out again.
pub fn remove(space: &Space, dns: Dns) -> Result<()> {
    for program in ["iptables-restore", "ip6tables-restore"] {
        space.feed(program, &["--noflush"], &withdraw(dns))?;
    }
    ip(&["-6", "-n", space.name(), "rule", "del", "fwmark", REPLY_MARK, "pref", "32764", "lookup", "100"])?;
    space.ip_batch(
        "rule del fwmark 0x111/0xfff pref 32764 lookup 100\n\
         route del local 0.0.0.0/0 dev lo table 100\nroute del local ::/0 dev lo table 100\n",
    )
}

fn restore(of: Addresses, dns: Dns) -> String {
    let mut text = String::new();
    table(&mut text, "mangle", &mangle());
    table(&mut text, "nat", &nat(of, dns));
    if dns == Dns::On {
        table(&mut text, "raw", &raw());
    }
    text
}

fn mangle() -> Vec<String> {
    vec![
        format!("-A ISTIO_PRERT -m mark --mark {PROXY_MARK} -j CONNMARK --set-xmark {REPLY_MARK}"),
        format!(
            "-A ISTIO_OUTPUT -m connmark --mark {REPLY_MARK} \
             -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"
        ),
    ]
}

fn nat(of: Addresses, dns: Dns) -> Vec<String> {
    let Addresses { loopback, probe } = of;
    let mut rules = vec![
        format!("-A ISTIO_PRERT -s {probe} -p tcp -m tcp -j ACCEPT"),
        format!(
            "-A ISTIO_PRERT ! -d {loopback} -p tcp ! --dport 15008 -m mark ! --mark {PROXY_MARK} \
             -j REDIRECT --to-ports 15006"
        ),
        format!("-A ISTIO_OUTPUT -d {probe} -p tcp -m tcp -j ACCEPT"),
    ];
    if dns == Dns::On {
        rules.push(format!(
            "-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark {PROXY_MARK} -m udp --dport 53 \
             -j REDIRECT --to-port 15053"
        ));
        rules.push(format!(
            "-A ISTIO_OUTPUT ! -d {loopback} -p tcp --dport 53 -m mark ! --mark {PROXY_MARK} \
             -j REDIRECT --to-ports 15053"
        ));
    }
    rules.push(format!("-A ISTIO_OUTPUT -p tcp -m mark --mark {REPLY_MARK} -j ACCEPT"));
    rules.push(format!("-A ISTIO_OUTPUT ! -d {loopback} -o lo -j ACCEPT"));
    rules.push(format!(
        "-A ISTIO_OUTPUT ! -d {loopback} -p tcp -m mark ! --mark {PROXY_MARK} -j REDIRECT --to-ports 15001"
    ));
    rules
}

fn raw() -> Vec<String> {
    vec![
        format!("-A ISTIO_OUTPUT -p udp -m mark --mark {PROXY_MARK} -m udp --dport 53 -j CT --zone 1"),
        format!("-A ISTIO_PRERT -p udp -m mark ! --mark {PROXY_MARK} -m udp --sport 53 -j CT --zone 1"),
    ]
}

fn table(text: &mut String, name: &str, rules: &[String]) {
    let _ = writeln!(text, "*{name}\n:ISTIO_PRERT - [0:0]\n:ISTIO_OUTPUT - [0:0]");
    text.push_str("-A PREROUTING -j ISTIO_PRERT\n-A OUTPUT -j ISTIO_OUTPUT\n");
    for rule in rules {
        text.push_str(rule);
        text.push('\n');
    }
    text.push_str("COMMIT\n");
}

fn withdraw(dns: Dns) -> String {
    let mut text = String::new();
    for name in ["mangle", "nat", "raw"] {
        if name == "raw" && dns == Dns::Off {
            continue;
        }
        let _ = writeln!(text, "*{name}");
        text.push_str("-D PREROUTING -j ISTIO_PRERT\n-D OUTPUT -j ISTIO_OUTPUT\n");
        text.push_str("-F ISTIO_PRERT\n-F ISTIO_OUTPUT\n-X ISTIO_PRERT\n-X ISTIO_OUTPUT\nCOMMIT\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::topology::Topology;

    /// What the kernel lists after programming, so that a rule it reads otherwise than meant shows.
    fn listed(space: &Space, table: &str) -> Vec<String> {
        let output = space.output("iptables-save", &["-t", table]).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect()
    }

    #[test]
    fn the_kernel_holds_the_rules_in_the_agents_order_and_removal_leaves_none() {
        let mut topology = Topology::build("rwunit", 1).expect("namespaces (root is needed)");
        let pod = topology.add_pod(1, "pod").unwrap();
        program(&pod.space, Dns::On).unwrap();
        let nat = listed(&pod.space, "nat");
        let expected = [
            "-A PREROUTING -j ISTIO_PRERT",
            "-A OUTPUT -j ISTIO_OUTPUT",
            "-A ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -m tcp -j ACCEPT",
            "-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff -m udp --dport 53 \
             -j REDIRECT --to-ports 15053",
            "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m tcp --dport 53 -m mark ! --mark 0x539/0xfff \
             -j REDIRECT --to-ports 15053",
            "-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT",
            "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT",
            "-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff \
             -j REDIRECT --to-ports 15001",
            "-A ISTIO_PRERT -s 169.254.7.127/32 -p tcp -m tcp -j ACCEPT",
            "-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp -m tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff \
             -j REDIRECT --to-ports 15006",
        ];
        assert_eq!(nat, expected);
        assert_eq!(listed(&pod.space, "mangle").len(), 4);
        assert_eq!(listed(&pod.space, "raw").len(), 4);
        remove(&pod.space, Dns::On).unwrap();
        for table in ["nat", "mangle", "raw"] {
            assert_eq!(listed(&pod.space, table), Vec::<String>::new());
        }
        let rules = pod.space.output("ip", &["rule", "list"]).unwrap();
        assert!(!String::from_utf8_lossy(&rules.stdout).contains("0x111"));
    }

    #[test]
    fn a_captured_pod_is_closed_until_a_proxy_listens_and_then_everything_goes_there() {
        let mut topology = Topology::build("rwunit", 1).expect("namespaces (root is needed)");
        let pod = topology.add_pod(1, "pod").unwrap();
        let other = topology.add_pod(1, "other").unwrap();
        let app = pod.space.listen(pod.at(8080)).unwrap();
        pod.capture().unwrap();
        let within = Duration::from_secs(5);
        other.space.connect(pod.at(8080), within).unwrap_err();
        other.space.connect(pod.at6(8080), within).unwrap_err();
        pod.space.connect(other.at(8080), within).unwrap_err();
        let wildcard = "[::]:0".parse::<std::net::SocketAddr>().unwrap();
        let on = |port| std::net::SocketAddr::new(wildcard.ip(), port);
        let inbound = pod.space.listen(on(15006)).unwrap();
        let outbound = pod.space.listen(on(15001)).unwrap();
        other.space.connect(pod.at(8080), within).unwrap();
        assert_eq!(inbound.accept().unwrap().1.ip().to_canonical(), other.at(0).ip());
        pod.space.connect(other.at6(9), within).unwrap();
        assert_eq!(outbound.accept().unwrap().1.ip(), pod.at6(0).ip());
        // A pod calling itself is not captured.
        pod.space.connect(pod.at(8080), within).unwrap();
        assert_eq!(app.accept().unwrap().1.ip(), pod.at(0).ip());
    }
}
