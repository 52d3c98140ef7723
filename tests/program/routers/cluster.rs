//! Protects users of a cluster: examples/ray_serve.py adds servers when requests wait, and goes on when a node is lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::load::{self, End, Load, Target};
use super::others::made;
use super::process::{free_port, without_settings};
use super::router::{Manners, judge, turn};
use super::server::{KEY, Server};
use super::{path, until};

/// A lost node has to be noticed.
const MANNERS: Manners = Manners {
    settled: Duration::from_secs(10),
    excused: |_, _| false,
};

/// The program in Python that has the cluster.
struct Cluster {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Cluster {
    /// Starts a cluster, and waits until its servers answer. Ray waits for its own processes only for a while. On a busy machine it may
    /// give up, and then another cluster is started.
    fn answering(python: &str, port: u16, folder: &Path) -> Self {
        for _ in 0..3 {
            let cluster = Self::start(python, port, folder);
            match cluster.next() {
                Ok(told) if told == "ready" => return cluster,
                told => eprintln!("the cluster began with {told:?}:\n{}", cluster.told()),
            }
        }
        panic!("no cluster of Ray could be started");
    }

    fn start(python: &str, port: u16, folder: &Path) -> Self {
        let log = folder.join("cluster.log");
        let stderr = File::create(&log).expect("the temporary directory is writable");
        let mut command = Command::new(python);
        command.arg(path("tests/program/routers/ray_cluster.py"));
        command.args([env!("CARGO_BIN_EXE_glimt"), &port.to_string(), KEY]);
        command.env("RAY_USAGE_STATS_ENABLED", "0");
        command.env("RAY_DASHBOARD_STARTUP_TIMEOUT_S", "180");
        command.env("RAY_TMPDIR", folder);
        let child = without_settings(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn();
        let mut child = child.expect("Python can be run");
        let commands = child.stdin.take().expect("it is piped");
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            commands,
            lines,
            log,
        }
    }

    /// The next that it tells. Ray prints there, too.
    fn next(&self) -> Result<String, RecvTimeoutError> {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(240))?;
            if let Some(told) = line.strip_prefix("cluster: ") {
                return Ok(told.to_owned());
            }
        }
    }

    fn line(&self) -> String {
        self.next()
            .unwrap_or_else(|error| panic!("the cluster goes on: {error}\n{}", self.told()))
    }

    /// The output of the cluster so far.
    fn told(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("the cluster reads");
        self.line()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It ends all its processes when its input ends, or when it is interrupted.
        let id = self.child.id().to_string();
        let _ = Command::new("kill").args(["-INT", &id]).status();
        for _ in 0..300 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_cluster_grows_and_survives_a_lost_node() {
    let python = made("ray");
    let _turn = turn();
    let home = tempfile::tempdir().expect("a temporary directory");
    let questions = load::questions(&Server::start(home.path()).target());
    let port = free_port();
    let mut cluster = Cluster::answering(&python, port, home.path());
    let target = Target {
        url: format!("http://127.0.0.1:{port}"),
        key: Some(KEY.to_owned()),
    };
    let first = load::ask(&target, &questions[0], true);
    assert_eq!(first.end, End::Whole);
    assert_eq!(cluster.command("replicas"), "1");

    let load = Load::start(&target, &questions, 9);
    until("there are three servers", 120, || {
        cluster.command("replicas") == "3"
    });
    assert_eq!(cluster.command("remove"), "removing");
    let lost = Instant::now();
    assert_eq!(cluster.line(), "removed");
    until("the loss is noticed", 60, || {
        lost.elapsed() > MANNERS.settled
    });
    let enough = load.whole() + 12;
    until("clients are answered", 120, || load.whole() >= enough);
    let answers = load.stop();
    judge("Ray Serve", MANNERS, &answers, lost, &cluster.told());
}
