//! `didactyl` as a process of its own: what it says, line by line, and how it ends.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long anything may take: far longer than it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command; it dies with the value.
pub struct Process {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
    /// All that it said so far, on either of its outputs.
    pub said: Vec<String>,
}

impl Process {
    /// Starts `didactyl` with these arguments, these variables and no others.
    pub fn start(arguments: &[&str], vars: &BTreeMap<&'static str, String>) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_didactyl"))
            .args(arguments)
            .env_clear()
            .envs(vars)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (say, lines) = mpsc::unbounded_channel();
        read_lines(child.stdout.take().unwrap(), say.clone());
        read_lines(child.stderr.take().unwrap(), say);
        Self { child, lines, said: Vec::new() }
    }

    /// Waits for a line that holds `what`.
    pub async fn says(&mut self, what: &str) -> String {
        loop {
            let next = timeout(PATIENCE, self.lines.recv()).await.ok().flatten();
            let Some(line) = next else { panic!("it does not say {what:?}: {:#?}", self.said) };
            self.said.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }

    /// Kills it, without a word.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Tells it to end, and waits for that. All that it said is in `said` then.
    pub async fn end(&mut self) -> ExitStatus {
        let id = self.child.id().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let status = timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        while let Some(line) = self.lines.recv().await {
            self.said.push(line);
        }
        status
    }
}

fn read_lines(from: impl AsyncRead + Unpin + Send + 'static, say: mpsc::UnboundedSender<String>) {
    let mut lines = BufReader::new(from).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            if say.send(line).is_err() {
                return;
            }
        }
    });
}
