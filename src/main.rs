//! The `glimt` binary: everything is in [`glimt::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    glimt::cli::main()
}
