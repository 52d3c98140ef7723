//! `glimt pull`: fetches a model by its name.

use clap::Args;

use super::error::CliError;
use super::{ask, fetch, lookup, output};
use crate::hub::{Hub, Name, Settings};

/// The most bytes that are fetched without a question.
const UNASKED: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  glimt pull unsloth/GLM-4.7-Flash-GGUF:Q4_K_M
  glimt pull glm-4.7-flash
  HF_TOKEN=hf_... glimt pull user/private-GGUF
  glimt generate -m unsloth/GLM-4.7-Flash-GGUF:Q4_K_M \"Why is the sky blue?\"

A name is user/repo, user/repo:QUANTISATION, or one of glm-4.7-flash, deepseek-v2-lite, youtu-llm-2b, \
deepseek-coder-v2-lite, glm-4.7-flash-reap-23b, moonlight-16b-a3b, kimi-vl-a3b, kanana-2-30b-a3b, gigachat3-10b-a1.8b, qwen3-30b-a3b, \
qwen2.5-7b, llama-3.1-8b and smollm2-135m, each also with :QUANTISATION. Without a quantisation Q4_K_M is taken, or the only one there is. The repositories behind the short names \
are not verified: in a terminal, glimt asks before it fetches one, and before it fetches more than a GiB. A model of an \
architecture or quantisation that glimt does not run is not fetched.

Files go to the cache that Python's huggingface_hub uses: ~/.cache/huggingface/hub, or where HF_HUB_CACHE or HF_HOME say. \
HF_ENDPOINT names another hub, HF_TOKEN an access token, and HF_HUB_OFFLINE=1 forbids to ask the hub. After Ctrl-C or a \
broken line the next pull goes on where this one ended. Every file is compared with its checksum before it gets its name.";

/// Fetch a model by its name
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Pull {
    /// The name of the model: user/repo, user/repo:QUANTISATION or a short name
    #[arg(value_name = "NAME")]
    name: String,
    /// Fetch or remove without asking
    #[arg(short, long)]
    yes: bool,
}

impl Pull {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let name = Name::parse(&self.name)?;
        lookup::refuse_synthetic(&name)?;
        let settings = Settings::from_env()?;
        if settings.offline
            && let Some(found) = crate::hub::stores::find(&settings, &name)?
            && let Some(first) = found.files.first()
        {
            return output::page(&format!("{}\n", first.display()));
        }
        let hub = Hub::new(&settings);
        let (offer, missing) = fetch::offer(&hub, &name)?;
        let short = matches!(name, Name::Repository { alias: Some(_), .. });
        let asks = !self.yes && ask::possible() && (short || missing > UNASKED);
        if asks && !fetch::may(&hub, &offer, missing)? {
            return Err(CliError::NotFetched(self.name.clone()));
        }
        let path = fetch::pull(&hub, &offer)?;
        output::page(&format!("{}\n", path.display()))
    }
}
