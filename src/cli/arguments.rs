//! The grammar of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// The node proxy of an Istio ambient mesh. Without a command it runs the proxy.
#[derive(Parser, Debug)]
#[command(
    disable_version_flag = true,
    after_help = "Configured by environment variables: see `config show`."
)]
pub struct Arguments {
    /// Print which build this is
    #[arg(short = 'V', long)]
    pub version: bool,
    #[command(flatten)]
    pub admin: AdminArguments,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the proxy (the default)
    #[command(alias = "proxy")]
    Run {
        /// Accepted and recorded, as by ztunnel
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Print which build this is
    Version,
    /// Show or check the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Build a small mesh on this machine and show what the proxy does in it (needs root)
    Demo(DemoArguments),
    /// List the live connections of this node's pods
    #[command(visible_alias = "connections")]
    Conns(ConnsArguments),
    /// Show connections as they end or are refused, or the last that did
    Flows(FlowsArguments),
    /// Show what pods, services and shards carry, refreshed
    Top(TopArguments),
    /// List the certificates of this node's identities
    #[command(visible_alias = "certificates")]
    Certs(CertsArguments),
    /// Ask what would become of a connection (exit code 2 where it would not be carried)
    Why(WhyArguments),
    /// Show or change which log lines a running proxy writes
    Log(LogArguments),
    /// Let go of a pod, or of all: nothing new is taken, what is open goes on for a while
    Drain(DrainArguments),
    /// Gather what support needs into one archive, without secrets
    Dump(DumpArguments),
    /// Print a completion script
    Completions { shell: Shell },
    /// Print the manual page, or write those of all commands into a directory
    Man {
        /// Where ringway.1, ringway-conns.1 and the others go
        #[arg(long, value_name = "DIRECTORY")]
        dir: Option<PathBuf>,
    },
}

impl Default for Command {
    fn default() -> Self {
        Self::Run { arguments: Vec::new() }
    }
}

#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print each value and where it came from
    Show {
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
        /// Print the documentation page of all variables instead
        #[arg(long, conflicts_with = "output")]
        markdown: bool,
    },
    /// Tell everything that is wrong (exit code 78) or strange (exit code 2)
    Check {
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

#[derive(Args, Clone, Default, Debug)]
pub struct DemoArguments {
    /// Stay up after the checks, until Ctrl-C
    #[arg(long)]
    pub hold: bool,
}

/// Which proxy.
#[derive(Args, Clone, Default, Debug)]
pub struct AdminArguments {
    /// The proxy's admin port or socket; else that of RINGWAY_ADMIN_SOCKET if it is there, else port 15000
    #[arg(long, value_name = "HOST:PORT|PATH", global = true)]
    pub admin: Option<String>,
}

/// Which connections.
#[derive(Args, Clone, Default, Debug)]
pub struct EndArguments {
    /// Those of pods in this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Those of this pod of the node: [NAMESPACE/]POD
    #[arg(long)]
    pub pod: Option<String>,
    /// Who calls: [NAMESPACE/]WORKLOAD, an address, a range or a SPIFFE identity
    #[arg(long)]
    pub from: Option<String>,
    /// Who is called: the same, or a service
    #[arg(long)]
    pub to: Option<String>,
    /// Those that pods make, or those that come to them
    #[arg(long, value_enum)]
    pub direction: Option<DirectionArgument>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectionArgument {
    Inbound,
    Outbound,
}

impl DirectionArgument {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum VerdictArgument {
    /// Carried to its end
    Allowed,
    /// Refused or ended by a policy
    Denied,
    /// Anything else
    Failed,
}

impl VerdictArgument {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct ConnsArguments {
    #[command(flatten)]
    pub ends: EndArguments,
    /// No more than so many, the youngest
    #[arg(long)]
    pub limit: Option<usize>,
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
    /// Again every so many seconds, until interrupted
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    pub watch: Option<u64>,
}

#[derive(Args, Clone, Debug)]
pub struct FlowsArguments {
    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// So many of the last ones [default: 20, with --follow 0]
    #[arg(long, value_name = "COUNT")]
    pub last: Option<usize>,
    #[command(flatten)]
    pub ends: EndArguments,
    #[arg(long, value_enum)]
    pub verdict: Option<VerdictArgument>,
    /// Lines for people, or one JSON object a line
    #[arg(short, long, value_enum, default_value_t)]
    pub output: FlowFormat,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FlowFormat {
    #[default]
    Compact,
    /// With identities and addresses
    Wide,
    Json,
}

#[derive(Args, Clone, Debug)]
pub struct TopArguments {
    /// What the lines are about; p, s and h change it
    #[arg(long, value_enum, default_value_t)]
    pub by: TopBy,
    /// Between two looks, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2)]
    pub delay: u64,
    /// Print it once and end, as where standard output is no terminal
    #[arg(short = '1', long)]
    pub once: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TopBy {
    #[default]
    Pod,
    Service,
    Shard,
}

#[derive(Args, Clone, Debug)]
pub struct CertsArguments {
    #[arg(short, long, value_enum, default_value_t)]
    pub output: OutputFormat,
}

#[derive(Args, Clone, Debug)]
pub struct LogArguments {
    /// LEVEL for everything, or TARGET=LEVEL; without any the filter in force is shown
    #[arg(value_name = "[TARGET=]LEVEL")]
    pub levels: Vec<String>,
    /// Back to the filter of the start, before levels are set
    #[arg(long)]
    pub reset: bool,
    /// The change ends by itself: 10m, 1h30m, 90s
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub lasting: Option<Duration>,
}

#[derive(Args, Clone, Debug)]
pub struct DrainArguments {
    /// NAMESPACE/POD or its uid; without one the proxy drains and ends
    pub pod: Option<String>,
    /// How long the pod's connections may go on [default: CONNECTION_TERMINATION_DEADLINE]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "pod")]
    pub grace: Option<Duration>,
    /// Don't wait for the end of the pod's connections
    #[arg(long, requires = "pod")]
    pub no_wait: bool,
}

#[derive(Args, Clone, Debug)]
pub struct DumpArguments {
    /// Where the archive goes; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "ringway-dump.tar.gz")]
    pub output: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub struct WhyArguments {
    /// Who calls: NAMESPACE/POD, or one of its addresses
    pub from: String,
    /// Whom: ADDRESS:PORT, or a service's HOST:PORT
    pub to: String,
    /// Answer from this dump (config_dump as JSON, or an archive of `dump`) instead of asking a running proxy
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::config::parse::duration(text).map_err(|reason| reason.to_string())
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OutputFormat {
    #[default]
    Table,
    /// With more columns
    Wide,
    Json,
    Yaml,
}
