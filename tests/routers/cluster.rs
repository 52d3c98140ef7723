//! Protects users of a cluster: examples/ray_serve.py adds servers when requests wait, and goes on when a node is lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::load::{self, End, Load, Target};
use super::process::{free_port, without_settings};
use super::ready::made;
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
}

impl Cluster {
    fn start(python: &str, port: u16, folder: &Path) -> Self {
        let log = File::create(folder.join("cluster.log"));
        let log = log.expect("the temporary directory is writable");
        let mut command = Command::new(python);
        command.arg(path("tests/routers/ray_cluster.py"));
        command.args([env!("CARGO_BIN_EXE_glimt"), &port.to_string(), KEY]);
        command.env("RAY_USAGE_STATS_ENABLED", "0");
        command.env("RAY_TMPDIR", folder);
        let child = without_settings(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
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
        }
    }

    /// The next that it tells. Ray prints there, too.
    fn line(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(120));
            let line = line.expect("the cluster goes on");
            if let Some(told) = line.strip_prefix("cluster: ") {
                return told.to_owned();
            }
        }
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
    let mut cluster = Cluster::start(&python, port, home.path());
    let told = || std::fs::read_to_string(home.path().join("cluster.log")).unwrap_or_default();
    assert_eq!(cluster.line(), "ready", "{}", told());
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
    judge("Ray Serve", MANNERS, &answers, lost, &told());
}
