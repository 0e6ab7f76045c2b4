//! The program: hands the command line to `cli` and tells it what the commands start.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use ringway::cli::{self, Console, Programs};
use ringway::config::Surroundings;

/// Gives memory of a burst back to the system, from a thread of its own.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Few arenas, since shards allocate little; unused pages go back within a second. Heap profiling is prepared, as in
/// the reference, and off until somebody switches it on (`/debug/pprof/heap/profiling`).
#[expect(unsafe_code, reason = "the allocator reads its options from this symbol")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_OPTIONS: &[u8; 114] =
    b"narenas:4,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,\
    tcache_max:8192,prof:true,prof_active:false\0";

fn main() -> ExitCode {
    let programs = Programs { run: ringway::app::run, demo };
    let name = std::env::args().next().unwrap_or_else(|| "ringway".to_owned());
    // Not locked for the life of the program: `run` and `demo` write on their own.
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let terminal = out.is_terminal();
    let mut console = Console::new(&mut out as &mut dyn Write, &mut err, terminal);
    cli::main(&name, &Surroundings::of_process(), &programs, &mut console).into()
}

fn demo(arguments: &cli::DemoArguments) -> anyhow::Result<bool> {
    ringway::demo::run(&ringway::demo::Options { hold: arguments.hold, binary: None })
}
