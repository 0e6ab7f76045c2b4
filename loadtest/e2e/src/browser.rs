//! A real browser without a window: Chromium, asked by the DevTools protocol over a pipe (a zero byte ends a message).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringway::demo::space::Space;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Bound of one answer; starting a browser takes seconds on a slow machine.
const ANSWER: Duration = Duration::from_secs(60);

/// A browser with one tab; dropping it ends it.
pub struct Browser {
    child: Child,
    orders: ChildStdin,
    messages: Receiver<Value>,
    number: u64,
    session: Option<String>,
    /// What pages said on their consoles, policy violations among it.
    pub said: Vec<String>,
    _home: TempDir,
}

impl Browser {
    /// In a network namespace, with a profile of its own.
    #[track_caller]
    pub fn start(space: &Space) -> Self {
        let home = tempfile::tempdir().expect("a profile's directory");
        // The protocol is spoken on descriptors 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "chromium"]);
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--disable-background-networking", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", home.path().display())).env("HOME", home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = space.spawn(&mut command).expect("starting Chromium");
        let orders = child.stdin.take().expect("its orders");
        let answers = child.stdout.take().expect("its answers");
        let (tell, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0).map_while(Result::ok) {
                if serde_json::from_slice(&message).is_ok_and(|message: Value| tell.send(message).is_err()) {
                    break;
                }
            }
        });
        let mut browser =
            Self { child, orders, messages, number: 0, session: None, said: Vec::new(), _home: home };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attached);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// One order and its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut order = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).expect("Chromium takes orders");
        loop {
            let message = self.messages.recv_timeout(ANSWER);
            let message = message.unwrap_or_else(|error| panic!("{method}: no answer of Chromium: {error}"));
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            if let Some("Log.entryAdded" | "Runtime.exceptionThrown") = message["method"].as_str() {
                self.said.push(message["params"].to_string());
            }
        }
    }

    /// Opens an address; doesn't wait for what its scripts do.
    #[track_caller]
    pub fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", json!({"url": address}));
        assert!(opened["errorText"].is_null(), "{address}: {opened}");
    }

    /// What an expression is worth in the page now; null also where the page is just being left.
    #[track_caller]
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        self.call("Runtime.evaluate", asked)["result"]["value"].clone()
    }

    /// Waits until an expression is true; panics with what the page shows otherwise.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let end = std::time::Instant::now() + ANSWER;
        while self.value(expression) != true {
            if std::time::Instant::now() > end {
                let shown = self.value("document.body.innerText");
                panic!("not true within {ANSWER:?}: {expression}\n{shown}\n{:?}", self.said);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
