//! `glimt web`: serves the page that runs models in a browser.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::output::note;
use super::serve;
use crate::server::Folder;

const EXAMPLES: &str = "\
Examples:
  scripts/web && glimt web
  glimt web target/web --port 8000

The page computes in the browser, by WebGPU; this command only hands out its files, and any other static server can. Browsers \
give WebGPU to pages of https or of the same machine alone. docs/web.md tells what a browser cannot do.";

/// Serve the page that runs models in a browser
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Web {
    /// The folder that scripts/web has made
    #[arg(value_name = "DIR", default_value = "target/web")]
    folder: PathBuf,
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = serve::host)]
    host: IpAddr,
    /// The port to listen on; 0 takes a free one, which is printed
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
}

impl Web {
    pub(super) fn run(&self) -> Result<(), CliError> {
        if !self.folder.join("glimt_bg.wasm").is_file() {
            let path = self.folder.display().to_string();
            return Err(CliError::NoPage { path });
        }
        let served = Folder::bind(SocketAddr::new(self.host, self.port), &self.folder)?;
        note(format_args!(
            "the page is at http://{}/ until Ctrl-C",
            served.address()?
        ));
        Ok(served.run()?)
    }
}
