//! The program that tests of kernels ask. It reads a shader or a dispatch, and writes what it makes of it.

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;

use glimt::gpu::testing::metal::Math;
use glimt_lab::{matrices, metal, mutants, waves};

const USAGE: &str = "expected: waves SIZE | matrices SIZE LANES forwards|backwards | metal precise|fast | mutant NAME | mutants [FILES]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match answer(&arguments) {
        Ok(answer) if stdout().write_all(&answer).is_ok() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("glimt-lab: error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text}: {USAGE}"));
    let text = match arguments {
        ["waves", size] => waves::emulated(&text()?, number(size)?),
        ["matrices", size, lanes, order] => {
            let [size, lanes] = [number(size)?, number(lanes)?].map(|n| n as usize);
            matrices::emulated(&text()?, [size, lanes], *order == "backwards")
        }
        ["mutant", name] => name.parse::<mutants::Mutant>()?.made(&text()?),
        ["mutants"] => mutants::list::list(|_| true).0,
        ["mutants", words] => {
            let wanted = |name: &str| words.split(',').any(|word| name.starts_with(word));
            mutants::list::list(wanted).0
        }
        ["metal", math] => {
            let kinds = [Math::Precise, Math::Fast];
            let math = kinds.into_iter().find(|kind| kind.name() == *math);
            return metal::dispatched(&input()?, math.ok_or(USAGE)?);
        }
        _ => return Err(USAGE.to_owned()),
    };
    Ok(text.into_bytes())
}

fn input() -> Result<Vec<u8>, String> {
    let mut input = vec![];
    let read = stdin().read_to_end(&mut input);
    read.map_err(|e| format!("standard input: {e}"))?;
    Ok(input)
}

fn text() -> Result<String, String> {
    String::from_utf8(input()?).map_err(|e| format!("standard input: {e}"))
}
