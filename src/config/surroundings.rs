//! Everything outside the program that the configuration depends on, as values and one seam for files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;

/// What the configuration is read from.
pub struct Surroundings<'a> {
    pub environment: BTreeMap<String, String>,
    /// Arguments of the process, without its name.
    pub args: Vec<String>,
    pub cpus: CpuFacts,
    pub files: &'a dyn Files,
}

/// The machine's CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuFacts {
    /// Logical CPUs that this process may use.
    pub online: usize,
}

/// Files, as the configuration needs them.
pub trait Files {
    fn read(&self, path: &Path) -> io::Result<String>;
    fn exists(&self, path: &Path) -> bool;
}

/// The file system.
pub struct RealFiles;

impl Files for RealFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }
}

impl Surroundings<'static> {
    /// Those of this process. Text that isn't UTF-8 is read with replacement characters: its parser refuses it.
    pub fn of_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self {
            environment: std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect(),
            args: std::env::args_os().skip(1).map(text).collect(),
            cpus: CpuFacts { online: thread::available_parallelism().map_or(1, usize::from) },
            files: &RealFiles,
        }
    }
}
