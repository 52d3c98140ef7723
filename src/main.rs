//! The `glimt` binary: everything is in `cli`.

mod cli;

use glimt::{chat, engine, gguf, gpu, kernels, model, models, quant, recipes, synth, tokenizer};
use glimt_formats::{aliases, files, plural};
use glimt_hub::hub;
use glimt_measure::{bench, pictures, profile, tune, verify};
use glimt_server::server;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
