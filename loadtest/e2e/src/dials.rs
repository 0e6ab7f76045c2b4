//! Every TCP connection that anything in a namespace tries to make, by the kernel's own count: each begins with a SYN.

use ringway::demo::space::Space;

const CHAIN: &str = "DIALS";

/// Counts SYNs that sockets of a namespace send, wherever to.
pub struct Dials {
    space: Space,
}

impl Dials {
    /// Begins at 0. Calls over loopback count where `loopback` says so.
    pub fn watch(space: &Space, loopback: bool) -> Self {
        let which = if loopback { "" } else { "! -o lo " };
        let rules = format!("*filter\n:{CHAIN} - [0:0]\n-A OUTPUT {which}-p tcp --syn -j {CHAIN}\nCOMMIT\n");
        for program in ["iptables-restore", "ip6tables-restore"] {
            space.feed(program, &["--noflush"], &rules).expect("a counting rule");
        }
        Self { space: space.clone() }
    }

    pub fn count(&self) -> u64 {
        ["iptables", "ip6tables"].map(|program| self.packets(program)).iter().sum()
    }

    fn packets(&self, program: &str) -> u64 {
        let listing = self.space.output(program, &["-nvxL", "OUTPUT"]).expect("the counters");
        let text = String::from_utf8_lossy(&listing.stdout).into_owned();
        let line = text.lines().find(|line| line.contains(CHAIN));
        let packets = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        packets.unwrap_or_else(|| panic!("no counter in {text}{}", String::from_utf8_lossy(&listing.stderr)))
    }
}
