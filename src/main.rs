//! The program: hands the command line to `cli` and tells it what the commands start.

use std::io::{self, Write};
use std::process::ExitCode;

use ringway::cli::{self, Console, Programs};
use ringway::config::Surroundings;

fn main() -> ExitCode {
    let programs = Programs { run: ringway::app::run, demo };
    let name = std::env::args().next().unwrap_or_else(|| "ringway".to_owned());
    // Not locked for the life of the program: `run` and `demo` write on their own.
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut console = Console { out: &mut out as &mut dyn Write, err: &mut err };
    cli::main(&name, &Surroundings::of_process(), &programs, &mut console).into()
}

/// To be replaced by `ringway::demo::run`.
fn demo(_arguments: &cli::DemoArguments) -> anyhow::Result<bool> {
    anyhow::bail!("this build has no demo")
}
