//! The command line: what was asked for, in which form the answer is printed, and the exit code.
//! Data goes to standard output, talk to standard error. Also answers to the name `ztunnel`.

mod arguments;
mod config;
mod why;

use std::io::Write;

use clap::{CommandFactory, Parser};

use crate::base::version::BuildInfo;
use crate::config::{Config, ConfigError, Surroundings};
pub use arguments::{Arguments, Command, DemoArguments, OutputFormat, WhyArguments};

/// Exit codes. Usage and configuration are those of sysexits.h.
pub mod exit {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    /// A check ran and found something.
    pub const PROBLEMS: u8 = 2;
    pub const USAGE: u8 = 64;
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
}

impl Console<'_> {
    /// Talk. A standard error that is gone is nobody's problem.
    fn say(&mut self, text: impl std::fmt::Display) {
        let _ = writeln!(self.err, "{text}");
    }

    /// Data. Who closes the pipe early (`| head`) has seen enough.
    fn print(&mut self, text: &str, code: u8) -> u8 {
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => code,
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => code,
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
    match arguments.command.unwrap_or_default() {
        Command::Run { .. } => run(from, programs, console),
        Command::Version => version(from, console),
        Command::Config(command) => config::main(&command, from, console),
        Command::Demo(demo) => match (programs.demo)(&demo) {
            Ok(true) => exit::OK,
            Ok(false) => exit::PROBLEMS,
            Err(error) => failed(&error, console),
        },
        Command::Why(asked) => why::main(&asked, console).unwrap_or_else(|error| failed(&error, console)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ringway", &mut script);
            console.print(&String::from_utf8_lossy(&script), exit::OK)
        }
    }
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
    let refusals = config.refusals();
    if refusals.is_empty() { Ok(config) } else { Err(refusals) }
}

fn refused(errors: &[ConfigError], console: &mut Console<'_>) -> u8 {
    for error in errors {
        console.say(format_args!("error: {error}"));
    }
    exit::CONFIGURATION
}

fn failed(error: &anyhow::Error, console: &mut Console<'_>) -> u8 {
    console.say(format_args!("error: {error:#}"));
    exit::FAILED
}

fn version(from: &Surroundings<'_>, console: &mut Console<'_>) -> u8 {
    let istio = from.environment.get("ISTIO_META_ISTIO_VERSION").map(String::as_str);
    let text = format!("{}\nringway {}\n", BuildInfo::new(istio), env!("CARGO_PKG_VERSION"));
    console.print(&text, exit::OK)
}

#[cfg(test)]
mod tests;
