//! The command line: what was asked for, in which form the answer is printed, and the exit code.
//! Data goes to standard output, talk to standard error. Also answers to the name `ztunnel`.

mod admin;
mod archive;
mod arguments;
mod config;
mod conns;
mod drain;
mod dump;
mod flows;
mod log;
mod man;
mod scrub;
mod table;
mod top;
mod why;

use std::io::Write;

use clap::{CommandFactory, Parser};

use crate::base::version::BuildInfo;
use crate::config::{Config, ConfigError, LocalXds, Surroundings};
use crate::control::source::LocalSource;
use admin::{Admin, Unavailable};
pub use arguments::{Arguments, Command, DemoArguments, OutputFormat, WhyArguments};

/// Exit codes. Usage and configuration are those of sysexits.h.
pub mod exit {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    /// A check ran and found something.
    pub const PROBLEMS: u8 = 2;
    pub const USAGE: u8 = 64;
    /// Nobody is there to answer.
    pub const UNAVAILABLE: u8 = 69;
    pub const CONFIGURATION: u8 = 78;
}

/// What the commands start; `main` names the real ones.
pub struct Programs {
    /// Runs the proxy until it ends; answers the exit code.
    pub run: fn(Config) -> anyhow::Result<u8>,
    /// Runs the demo; whether every check passed.
    pub demo: fn(&DemoArguments) -> anyhow::Result<bool>,
}

/// Where a command prints.
pub struct Console<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    /// Standard output is a terminal.
    pub terminal: bool,
    /// Nobody reads standard output any more.
    pub closed: bool,
}

impl<'a> Console<'a> {
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write, terminal: bool) -> Self {
        Self { out, err, terminal, closed: false }
    }

    /// Talk. A standard error that is gone is nobody's problem.
    fn say(&mut self, text: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{text}");
    }

    /// Data. Who closes the pipe early (`| head`) has seen enough.
    fn print(&mut self, text: &str, code: u8) -> u8 {
        self.print_bytes(text.as_bytes(), code)
    }

    fn print_bytes(&mut self, bytes: &[u8], code: u8) -> u8 {
        match self.out.write_all(bytes).and_then(|()| self.out.flush()) {
            Ok(()) => code,
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                self.closed = true;
                code
            }
            Err(error) => {
                self.say(format_args!("error: cannot write to standard output: {error}"));
                exit::FAILED
            }
        }
    }
}

/// Carries out one command line (`name` is the program's own, as invoked); answers the exit code.
pub fn main(name: &str, from: &Surroundings<'_>, programs: &Programs, console: &mut Console<'_>) -> u8 {
    let words = std::iter::once(name).chain(from.args.iter().map(String::as_str));
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            console.say(error.render());
            return exit::USAGE;
        }
        Err(help) => return console.print(&help.render().to_string(), exit::OK),
    };
    if arguments.version {
        return version(from, console);
    }
    let admin = || Admin::new(arguments.admin.admin.as_deref(), from);
    let outcome = match &arguments.command.unwrap_or_default() {
        Command::Run { .. } => Ok(run(from, programs, console)),
        Command::Version => Ok(version(from, console)),
        Command::Config(command) => Ok(config::main(command, from, console)),
        Command::Demo(demo) => {
            (programs.demo)(demo).map(|passed| if passed { exit::OK } else { exit::PROBLEMS })
        }
        Command::Conns(asked) => conns::connections(asked, &admin(), console),
        Command::Certs(asked) => conns::certificates(asked, &admin(), console),
        Command::Flows(asked) => flows::main(asked, &admin(), colours(from, console), console),
        Command::Top(asked) => top::main(asked, &admin(), colours(from, console), console),
        Command::Why(asked) => why::main(asked, &admin(), console),
        Command::Log(asked) => log::main(asked, &admin(), console),
        Command::Drain(asked) => drain::main(asked, &admin(), console),
        Command::Dump(asked) => dump::main(asked, &admin(), from, console),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "ringway", &mut script);
            Ok(console.print(&String::from_utf8_lossy(&script), exit::OK))
        }
        Command::Man { dir } => man::main(dir.as_deref(), console),
    };
    outcome.unwrap_or_else(|error| failed(&error, console))
}

/// Colours are for terminals, and for who wants them (https://no-color.org).
fn colours(from: &Surroundings<'_>, console: &Console<'_>) -> bool {
    console.terminal && from.environment.get("NO_COLOR").is_none_or(String::is_empty)
}

fn run(from: &Surroundings<'_>, programs: &Programs, console: &mut Console<'_>) -> u8 {
    match runnable(from) {
        Ok(config) => (programs.run)(config).unwrap_or_else(|error| failed(&error, console)),
        Err(errors) => refused(&errors, console),
    }
}

/// A configuration that is valid, and that this version can serve.
fn runnable(from: &Surroundings<'_>) -> Result<Config, Vec<ConfigError>> {
    let config = Config::load(from)?;
    let mut refusals = config.refusals();
    refusals.extend(local_mesh(&config.sources.local_xds).err());
    if refusals.is_empty() { Ok(config) } else { Err(refusals) }
}

/// A process that can't read its mesh at the start doesn't start (reference section 3).
fn local_mesh(local: &LocalXds) -> Result<(), ConfigError> {
    let (variable, source) = match local {
        LocalXds::None => return Ok(()),
        LocalXds::File(path) => ("LOCAL_XDS_PATH", LocalSource::file(path.clone())),
        LocalXds::Inline(text) => ("LOCAL_XDS", LocalSource::text(text.clone())),
    };
    source.probe().map_err(|error| ConfigError::LocalMesh { variable, error: error.to_string() })
}

fn refused(errors: &[ConfigError], console: &mut Console<'_>) -> u8 {
    for error in errors {
        console.say(format_args!("error: {error}"));
    }
    exit::CONFIGURATION
}

fn failed(error: &anyhow::Error, console: &mut Console<'_>) -> u8 {
    console.say(format_args!("error: {error:#}"));
    if error.downcast_ref::<Unavailable>().is_some() { exit::UNAVAILABLE } else { exit::FAILED }
}

fn version(from: &Surroundings<'_>, console: &mut Console<'_>) -> u8 {
    let istio = from.environment.get("ISTIO_META_ISTIO_VERSION").map(String::as_str);
    let text = format!("{}\nringway {}\n", BuildInfo::new(istio), env!("CARGO_PKG_VERSION"));
    console.print(&text, exit::OK)
}

#[cfg(test)]
mod tests;
