//! The grammar of the command line.

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
    /// Ask a running proxy what would become of a connection (exit code 2 where it would not be carried)
    Why(WhyArguments),
    /// Print a completion script
    Completions { shell: Shell },
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

#[derive(Args, Clone, Debug)]
pub struct WhyArguments {
    /// Who calls: NAMESPACE/POD, or one of its addresses
    pub from: String,
    /// Whom: ADDRESS:PORT, or a service's HOST:PORT
    pub to: String,
    /// The admin port of the proxy
    #[arg(long, default_value = "localhost:15000")]
    pub admin: String,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OutputFormat {
    #[default]
    Table,
    Json,
    Yaml,
}
