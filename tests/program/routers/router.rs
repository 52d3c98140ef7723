//! Protects users of several servers behind a router: while one server is killed and another is drained, every request is answered whole
//! or fails so that its client knows, and a drain loses nothing.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::load::{self, Answer, COMPLETIONS, End, Load, Target};
use super::others::made;
use super::process::{Process, free_port};
use super::server::{KEY, Server};
use super::{file, path, until};

/// Clients that ask at the same time.
const CLIENTS: usize = 9;

/// The demands on a router.
#[derive(Clone, Copy)]
pub struct Manners {
    /// How long after a kill requests may still begin that fail.
    pub settled: Duration,
    /// Whether a client may be told that one server failed, and not another server be asked.
    pub excused: fn(&Answer, &str) -> bool,
}

/// Of a router that asks another server at once.
const PROMPT: Manners = Manners {
    settled: Duration::from_secs(2),
    excused: |_, _| false,
};

/// Waits until no other test of this file's kind runs, since each takes all cores.
pub fn turn() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A router that runs, and how it is asked.
struct Router {
    process: Process,
    target: Target,
}

impl Router {
    /// Starts one that listens on this port and wants this key.
    fn start(command: &mut Command, folder: &Path, port: u16, key: &str) -> Self {
        Self {
            process: Process::start(command, &folder.join("router.log")),
            target: Target {
                url: format!("http://127.0.0.1:{port}"),
                key: Some(key.to_owned()),
            },
        }
    }
}

/// A file of the examples with the addresses of these servers and this port.
fn configured(name: &str, servers: &[Server], port: u16) -> String {
    let mut text = file(&format!("examples/routing/{name}"));
    for (i, server) in servers.iter().enumerate() {
        let example = format!("127.0.0.1:800{}", i + 1);
        assert!(text.contains(&example), "{name} has no {example}");
        text = text.replace(&example, &server.address);
    }
    text.replace("127.0.0.1:8000", &format!("127.0.0.1:{port}"))
}

/// Kills a server and drains another while clients ask through a router.
fn survives(name: &str, manners: Manners, start: impl FnOnce(&[Server], &Path) -> Router) {
    let _turn = turn();
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut servers: Vec<_> = (0..3).map(|_| Server::start(home.path())).collect();
    let questions = load::questions(&servers[0].target());
    let mut router = start(&servers, home.path());
    let target = router.target.clone();
    until("the router answers", 120, || {
        assert_eq!(router.process.ended(), None, "{}", router.process.printed());
        load::ask(&target, &questions[0], false).end == End::Whole
    });

    let load = Load::start(&target, &questions, CLIENTS);
    let until_whole = |more: usize| {
        let enough = load.whole() + more;
        until("clients are answered", 120, || load.whole() >= enough);
    };
    until_whole(CLIENTS);
    until("the first has work", 60, || servers[0].held() >= 2.0);
    servers[0].process.kill();
    let killed = Instant::now();
    until_whole(2 * CLIENTS);
    until("requests no longer fail", 60, || {
        killed.elapsed() > manners.settled
    });
    until("the second has work", 60, || servers[1].held() >= 2.0);
    servers[1].process.terminate();
    let drained = servers[1].process.wait(120);
    until_whole(CLIENTS);
    let answers = load.stop();

    // All that it had accepted was answered.
    assert_eq!(drained.code(), Some(0));
    let log = router.process.printed();
    judge(name, manners, &answers, killed, &log);
}

/// Looks at how answers ended: those whose requests began when the router had settled are whole, of the others each client may have lost one in a way
/// that it knows.
pub fn judge(name: &str, manners: Manners, answers: &[Answer], killed: Instant, log: &str) {
    let told = format!("{name}: {}", summary(answers));
    eprintln!("{told}");
    let mut failed = 0;
    for answer in answers {
        match &answer.end {
            End::Whole => {}
            End::Failed(why) if (manners.excused)(answer, why) => {}
            End::Failed(why) => {
                failed += 1;
                assert!(
                    answer.began < killed + manners.settled,
                    "failed late: {why}\n{told}\n{log}"
                );
            }
            End::Wrong(how) => panic!("{how}\n{told}\n{log}"),
        }
    }
    assert!(failed <= CLIENTS, "{told}\n{log}");
}

/// How many answers ended how.
fn summary(answers: &[Answer]) -> String {
    let mut kinds = std::collections::BTreeMap::<String, usize>::new();
    for answer in answers {
        let how = match &answer.end {
            End::Whole => "whole".to_owned(),
            End::Failed(why) => format!("failed, {}", why.chars().take(160).collect::<String>()),
            End::Wrong(_) => "wrong".to_owned(),
        };
        let form = if answer.streams {
            "stream"
        } else {
            "one piece"
        };
        *kinds.entry(format!("{form} {how}")).or_default() += 1;
    }
    let kinds = kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join("; ")
}

#[test]
#[ignore = "long: scripts/test --all"]
fn nginx_keeps_users_served() {
    let nginx = made("nginx");
    survives("nginx", PROMPT, |servers, folder| {
        let port = free_port();
        let text = configured("nginx.conf", servers, port);
        std::fs::write(folder.join("glimt.conf"), text).expect("it is writable");
        // The lines that Debian's own file has around it.
        let main = "daemon off; pid nginx.pid; error_log stderr; worker_processes 2;\n\
             events {}\n\
             http { access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             include glimt.conf; }\n";
        std::fs::write(folder.join("main.conf"), main).expect("it is writable");
        let mut command = Command::new(nginx);
        command.arg("-p").arg(folder).args(["-e", "stderr"]);
        command.arg("-c").arg(folder.join("main.conf"));
        Router::start(&mut command, folder, port, KEY)
    });
}

#[test]
#[ignore = "long: scripts/test --all"]
fn litellm_keeps_users_served() {
    let litellm = made("litellm");
    // LiteLLM's checks have to find out. It opens streams of completions when it is too late to ask another server.
    let manners = Manners {
        settled: Duration::from_secs(8),
        excused: |answer, why| {
            answer.path == COMPLETIONS && answer.streams && why.starts_with("status 5")
        },
    };
    survives("LiteLLM", manners, |servers, folder| {
        let port = free_port();
        let text = configured("litellm.yaml", servers, port);
        let text = text.replace("api_key: none", &format!("api_key: {KEY}"));
        let config = folder.join("litellm.yaml");
        std::fs::write(&config, text).expect("it is writable");
        let key = "sk-0f4b7d1c9a2e486b8d35";
        let mut command = Command::new(litellm);
        command.arg("--config").arg(config).current_dir(folder);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.env("LITELLM_MASTER_KEY", key);
        // It would look for prices on the network first.
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        Router::start(&mut command, folder, port, key)
    });
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_router_of_vllm_keeps_users_served() {
    let router = made("vllm-router");
    survives("vLLM's router", PROMPT, |servers, folder| {
        by_script("vllm-router.sh", &router, servers, folder)
    });
}

/// A router that a script of the examples starts.
fn by_script(script: &str, program: &str, servers: &[Server], folder: &Path) -> Router {
    let port = free_port();
    let mut command = Command::new(path(&format!("examples/routing/{script}")));
    command.args(servers.iter().map(Server::url));
    command.env("VLLM_ROUTER", program);
    // For the checks of production-stack's router.
    command.env("VLLM_API_KEY", KEY);
    command.env("PORT", port.to_string());
    command.env("METRICS_PORT", free_port().to_string());
    Router::start(&mut command, folder, port, KEY)
}

/// It is in no registry, so this runs where the variable names the program of an installation.
#[test]
#[ignore = "long: scripts/test --all"]
fn the_router_of_production_stack_keeps_users_served() {
    let Ok(program) = std::env::var("GLIMT_PRODUCTION_STACK") else {
        eprintln!(
            "not run: GLIMT_PRODUCTION_STACK names no vllm-router of vLLM's production-stack"
        );
        return;
    };
    let start = |servers: &[Server], folder: &Path| {
        by_script("production-stack.sh", &program, servers, folder)
    };
    // It passes on what a draining server refuses.
    let manners = Manners {
        excused: |_, why| why.starts_with("status 503"),
        ..PROMPT
    };
    survives("production-stack", manners, start);
}
