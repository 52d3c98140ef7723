//! Protects who measures a server: `bench-serve` asks what it says, counts what comes, and tells what keeps it from that.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output};

use serde_json::Value;

use super::{Server, write};

fn bench(url: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glimt"));
    for name in ["GLIMT_API_KEY", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
        .args(["bench-serve", "--url", url])
        .args(flags)
        .env("GLIMT_CONFIG", "")
        .output()
        .expect("the binary was built with this test")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The record of a measurement that must succeed.
fn measured(server: &Server, flags: &[&str]) -> Value {
    let flags = [flags, &["-o", "jsonl"]].concat();
    let output = bench(&format!("http://{}", server.address), &flags);
    assert!(output.status.success(), "{}", told(&output));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

fn number(record: &Value, name: &str) -> f64 {
    record[name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name} in {record}"))
}

#[test]
fn a_server_is_measured_in_every_format() {
    let server = Server::start(&[]);
    let flags = [
        "--requests",
        "4",
        "-p",
        "24",
        "-n",
        "6",
        "--shared-prefix",
        "70",
        "--seed",
        "5",
    ];
    let record = measured(&server, &flags);
    assert_eq!(number(&record, "completed"), 4.0);
    assert_eq!(number(&record, "failed"), 0.0);
    assert_eq!(number(&record, "total_input_tokens"), 4.0 * 94.0);
    assert_eq!(number(&record, "total_output_tokens"), 24.0);
    // The request that is not counted has made the beginning known.
    assert!(number(&record, "total_cached_tokens") > 0.0, "{record}");
    assert!(number(&record, "median_ttft_ms") > 0.0);
    assert!(number(&record, "p99_itl_ms") <= number(&record, "max_itl_ms"));
    assert!(number(&record, "mean_e2el_ms") <= 1e3 * number(&record, "duration"));
    assert_eq!(record["request_rate"], Value::Null);
    let url = format!("http://{}/v1/", server.address);
    let table = bench(&url, &["--requests", "2", "-p", "4", "-n", "2"]);
    let text = String::from_utf8(table.stdout).expect("UTF-8");
    for part in [
        "| requests | errors |",
        "p99",
        "TTFT",
        "TPOT",
        "ITL",
        "E2EL",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    server.until_idle();
}

#[test]
fn requests_come_at_their_rate() {
    let server = Server::start(&[]);
    let flags = [
        "--requests",
        "8",
        "-p",
        "4",
        "-n",
        "1",
        "--rate",
        "8",
        "--seed",
        "5",
    ];
    let record = measured(&server, &flags);
    assert_eq!(number(&record, "request_rate"), 8.0);
    assert_eq!(number(&record, "completed"), 8.0);
    // All at once would take some milliseconds.
    assert!(number(&record, "duration") > 0.2, "{record}");
    assert_eq!(record["mean_tpot_ms"], Value::Null);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn many_at_once_and_a_long_prompt_beside_them_are_measured() {
    let server = Server::start(&[
        "--device",
        "0",
        "--tier",
        "subgroup",
        "-c",
        "512",
        "--parallel",
        "4",
    ]);
    let flags = [
        "--requests",
        "3",
        "--concurrency",
        "3",
        "-p",
        "8",
        "-n",
        "150",
        "--join",
        "200",
    ];
    let record = measured(&server, &flags);
    assert_eq!(number(&record, "total_output_tokens"), 450.0);
    assert!(number(&record, "join_ttft_ms") > 0.0, "{record}");
    let joined = number(&record, "max_itl_joined_ms");
    assert!(
        joined > 0.0 && joined <= number(&record, "max_itl_ms"),
        "{record}"
    );
    server.until_idle();
}

#[test]
fn what_keeps_it_from_measuring_is_told() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let key = write(folder.path(), "key.txt", b"first\n");
    let server = Server::start(&[
        "-c",
        "64",
        "--queue",
        "0",
        "--parallel",
        "1",
        "--api-key-file",
        &key,
    ]);
    let url = format!("http://{}", server.address);
    let failed = |url: &str, flags: &[&str], part: &str| {
        let output = bench(url, flags);
        let error = told(&output);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains(part) && output.stdout.is_empty(),
            "{part}: {error}"
        );
    };
    failed(&url, &[], "status 401");
    let with_key = ["--api-key-file", &*key];
    failed(
        &url,
        &[&with_key[..], &["-p", "60", "-n", "8"]].concat(),
        "would have 68 tokens, but the server's context holds 64",
    );
    let wrong = [
        &with_key[..],
        &["-p", "4", "-n", "4", "--vocab", "99999999"],
    ]
    .concat();
    failed(&url, &wrong, "none of 1 request was answered");
    failed("http://127.0.0.1:9", &[], "cannot reach http://127.0.0.1:9");
    // One place, and no queue: some are refused, which is counted.
    let many = ["--requests", "6", "-p", "4", "-n", "40", "-o", "jsonl"];
    let output = bench(&url, &[&with_key[..], &many].concat());
    assert!(output.status.success(), "{}", told(&output));
    let record: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    assert!(number(&record, "failed") >= 1.0, "{record}");
    assert!(
        told(&output).contains("failed; the first: status 429"),
        "{}",
        told(&output)
    );
    assert_eq!(
        number(&record, "failed") + number(&record, "completed"),
        6.0
    );
}

/// A server that answers every request with one response, which it writes in two pieces.
fn saying(models: &'static str, stream: [&'static str; 2]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let answer = move |mut connection: std::net::TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(connection.try_clone()?);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a number");
            }
        }
        std::io::Read::read_exact(&mut reader, &mut vec![0; length])?;
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        let pieces = match first.starts_with("GET") {
            true => [models, ""],
            false => stream,
        };
        write!(connection, "{head}{}", pieces[0])?;
        connection.flush()?;
        std::thread::sleep(std::time::Duration::from_millis(60));
        write!(connection, "{}", pieces[1])
    };
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(connection));
        }
    });
    url
}

#[test]
fn servers_of_others_are_measured_by_their_events() {
    let models = r#"{"data": [{"id": "m"}]}"#;
    let stream = [
        "data: {\"choices\": [{\"text\": \"a\"}]}\n\n",
        ": nothing\n\ndata:{\"choices\":[{\"text\":\"b\"}]}\r\n\r\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
    ];
    let url = saying(models, stream);
    let output = bench(
        &url,
        &[
            "--requests",
            "3",
            "--vocab",
            "100",
            "-p",
            "4",
            "-n",
            "2",
            "-o",
            "jsonl",
        ],
    );
    assert!(output.status.success(), "{}", told(&output));
    let record: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    assert_eq!(number(&record, "total_output_tokens"), 6.0);
    assert_eq!(number(&record, "total_input_tokens"), 12.0);
    // The second event came when it was sent, and not with the first.
    assert!(number(&record, "median_itl_ms") >= 40.0, "{record}");
    assert!(number(&record, "median_ttft_ms") < 50.0, "{record}");
    for (stream, part) in [
        (
            ["data: {\"error\": {\"message\": \"too hot\"}}\n\n", ""],
            "too hot",
        ),
        (
            ["data: {\"choices\": [{\"text\": \"a\"}]}\n\n", ""],
            "ended before its answer",
        ),
        (["data: nonsense\n\n", ""], "is no JSON"),
        (["data: [DONE]\n\n", ""], "has no tokens"),
    ] {
        let url = saying(models, stream);
        let output = bench(&url, &["--vocab", "100"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(told(&output).contains(part), "{part}: {}", told(&output));
    }
    let nameless = saying("{}", stream);
    assert!(told(&bench(&nameless, &["--vocab", "9"])).contains("--served-model-name"));
    let unbounded = saying(models, ["{}", ""]);
    assert!(told(&bench(&unbounded, &[])).contains("--vocab"));
}
