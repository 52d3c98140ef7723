//! Flags of llama.cpp and ollama: what they are here, or what to use instead. docs/cli.md lists them.

use clap::Command;

use super::config;

/// A flag of another program.
pub(super) struct Habit {
    names: &'static [&'static str],
    takes: Takes,
    pub(super) means: Means,
}

/// Whether the word behind a flag is its value.
enum Takes {
    Nothing,
    Value,
    /// Only if it is one of these.
    Maybe(&'static [&'static str]),
}

/// The meaning of another program's flag here.
#[derive(Clone, Copy)]
pub(super) enum Means {
    /// This flag.
    Flag(&'static str),
    /// Something that glimt always does, for these values (all, if there are none). For other values, the reason why they are refused.
    Always(&'static [&'static str], &'static str),
    /// Something that this command always does. Other commands say what to use instead.
    Only(&'static str, &'static str),
    /// Nothing. This is used instead.
    Instead(&'static str),
}

use Means::{Always, Flag, Instead, Only};
use Takes::{Maybe, Nothing, Value};

const fn habit(names: &'static [&'static str], takes: Takes, means: Means) -> Habit {
    Habit {
        names,
        takes,
        means,
    }
}

const SWITCH: &[&str] = &[
    "on", "off", "auto", "0", "1", "true", "false", "enabled", "disabled",
];
const MAPPED: &str = "glimt maps the file and reads it once for a GPU; leave it out";
const ONE_PLACE: &str = "a model runs on one device and is never divided; --device says on which";
const OF_THE_FILE: &str = "this is read from the model's file and cannot be changed; leave it out";
const ORDER: &str = "the order of samplers is fixed (docs/cli.md#sampling); each is switched off by its own flag, as --top-k 0";
const NO_SHIFT: &str = "glimt never shifts a context; in glimt chat, /drop makes room";
const ONE_MODEL: &str = "glimt runs one model and no second one beside it; leave it out";
const TALK: &str =
    "glimt chat holds conversations, and glimt generate answers one prompt; leave it out";
const TEXT: &str = "glimt reads and writes text alone; leave it out";
const ANSWER: &str = "glimt generate answers a prompt and ends; it takes the flags of glimt chat";

/// Flags of llama.cpp and ollama that glimt does not have under these names.
const HABITS: &[Habit] = &[
    habit(&["-pg"], Value, Flag("pg")),
    habit(&["-ub", "--ubatch-size"], Value, Flag("ubatch")),
    habit(&["-ngl", "--n-gpu-layers"], Value, Flag("gpu-layers")),
    habit(&["-dev"], Value, Flag("device")),
    habit(&["-sys", "--system-prompt"], Value, Flag("system")),
    habit(&["-hf", "-hfr", "--hf-repo"], Value, Flag("model")),
    habit(&["-np"], Value, Flag("parallel")),
    habit(&["-a"], Value, Flag("alias")),
    habit(&["-l"], Value, Flag("logit-bias")),
    habit(&["-r", "--reverse-prompt"], Value, Flag("stop")),
    habit(&["-j"], Value, Flag("json-schema")),
    habit(&["-jf", "--json-schema-file"], Value, Flag("json-schema")),
    habit(&["--reasoning-budget"], Value, Flag("think-limit")),
    habit(&["--max-tokens"], Value, Flag("n-predict")),
    habit(&["--max-kv-size"], Value, Flag("ctx")),
    habit(&["--repetition-penalty"], Value, Flag("repeat-penalty")),
    habit(&["--prompt-cache-file"], Value, Flag("session")),
    habit(&["--ignore-chat-template"], Nothing, Flag("raw")),
    habit(&["-rea", "--reasoning"], Value, Flag("think")),
    habit(&["--prompt-cache"], Value, Flag("session")),
    habit(&["-no-cnv", "--no-conversation"], Nothing, Flag("raw")),
    habit(&["--log-disable", "--no-perf"], Nothing, Flag("quiet")),
    habit(&["--nowordwrap"], Nothing, Flag("no-wrap")),
    habit(&["-tb", "--threads-batch"], Value, Flag("threads")),
    // Flags that say what glimt always does.
    habit(
        &["-fa", "--flash-attn"],
        Maybe(SWITCH),
        Always(
            &["on", "auto", "1", "true", "enabled"],
            "attention is always fused here, so it cannot be switched off; leave it out",
        ),
    ),
    habit(&["-ctk", "--cache-type-k"], Value, Flag("cache-type")),
    habit(&["-ctv", "--cache-type-v"], Value, Flag("cache-type")),
    habit(
        &[
            "--jinja",
            "--mmap",
            "--no-display-prompt",
            "--no-context-shift",
            "--no-escape",
        ],
        Nothing,
        Always(&[], ""),
    ),
    habit(
        &[
            "-sp",
            "--special",
            "--warmup",
            "--no-warmup",
            "--perf",
            "--repack",
            "--display-prompt",
            "--kv-offload",
            "-cb",
            "--cont-batching",
            "-kvu",
            "--kv-unified",
            "--swa-full",
            "--cache-prompt",
            "--check-tensors",
            "--metrics",
            "--slots",
            "--props",
            "--webui",
            "--ui",
            "--offline",
            "--trust-remote-code",
            "--use-default-chat-template",
        ],
        Nothing,
        Always(&[], ""),
    ),
    habit(
        &["--color", "-co"],
        Maybe(SWITCH),
        Always(
            &["on", "auto", "1", "true"],
            "NO_COLOR=1 in the environment switches colours off",
        ),
    ),
    habit(&["-mmp"], Value, Always(&["1"], MAPPED)),
    // Flags whose place is somewhere else, or nowhere.
    habit(
        &["-mu", "--model-url"],
        Value,
        Instead("a model is fetched by its name: glimt pull user/repo:QUANTISATION"),
    ),
    habit(
        &["-hff", "--hf-file"],
        Value,
        Instead("a file of a repository is named by its quantisation: -m user/repo:Q4_K_M"),
    ),
    habit(
        &["-hft", "--hf-token"],
        Value,
        Instead("the token of the hub is read from the environment: HF_TOKEN=hf_..."),
    ),
    habit(
        &["-b", "--batch-size"],
        Value,
        Instead("there is one size, of the tokens that a GPU computes at once: --ubatch N"),
    ),
    habit(
        &["--no-mmap", "--mlock", "-dio", "--direct-io"],
        Nothing,
        Instead(MAPPED),
    ),
    habit(
        &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-mg",
            "--main-gpu",
            "-ot",
            "--override-tensor",
            "-ncmoe",
            "--n-cpu-moe",
        ],
        Value,
        Instead(ONE_PLACE),
    ),
    habit(
        &["-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload"],
        Nothing,
        Instead(ONE_PLACE),
    ),
    habit(
        &["--list-devices"],
        Nothing,
        Instead("glimt devices lists what there is to run on"),
    ),
    habit(
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
            "--yarn-ext-factor",
            "--yarn-attn-factor",
            "--yarn-orig-ctx",
            "--yarn-beta-slow",
            "--yarn-beta-fast",
            "--override-kv",
        ],
        Value,
        Instead(OF_THE_FILE),
    ),
    habit(
        &["--chat-template", "--chat-template-file"],
        Value,
        Instead("the chat template is that of the model's file; --raw goes without one"),
    ),
    habit(
        &["--no-jinja"],
        Nothing,
        Instead("the chat template is that of the model's file; --raw goes without one"),
    ),
    habit(
        &["--samplers", "--sampling-seq", "--sampler-seq"],
        Value,
        Instead(ORDER),
    ),
    habit(
        &[
            "--top-nsigma",
            "--top-n-sigma",
            "--dynatemp-range",
            "--dynatemp-exp",
        ],
        Value,
        Instead(
            "glimt does not have this sampler; --temp, --top-k, --top-p, --min-p and --typical are there",
        ),
    ),
    habit(
        &["--ignore-eos"],
        Nothing,
        Instead(
            "--logit-bias ID-inf excludes the token that ends answers; glimt inspect names it, and glimt tokenize tells its ID",
        ),
    ),
    habit(&["--context-shift"], Nothing, Instead(NO_SHIFT)),
    habit(&["--keep"], Value, Instead(NO_SHIFT)),
    habit(
        &["--lora", "--mmproj", "-mm", "--adapter-path"],
        Value,
        Instead(ONE_MODEL),
    ),
    habit(&["--spec-type"], Value, Flag("draft")),
    habit(
        &["--spec-draft-n-max", "--draft-n"],
        Value,
        Flag("draft-max"),
    ),
    habit(
        &["-md", "--model-draft", "--spec-draft-model"],
        Value,
        Flag("draft-model"),
    ),
    habit(
        &["--spec-draft-n-min", "--draft-min", "--draft-p-min"],
        Value,
        Instead(
            "the number of drafts follows the share that is accepted and the times of steps; leave it out",
        ),
    ),
    habit(
        &["--keepalive"],
        Value,
        Instead("glimt keeps no model between two commands; glimt serve does until it ends"),
    ),
    habit(
        &["--simple-io"],
        Nothing,
        Instead("TERM=dumb in the environment makes all output plain lines"),
    ),
    habit(
        &["--hidethinking"],
        Nothing,
        Instead("--think hide shows how much a model thinks, and not what (glimt chat)"),
    ),
    habit(
        &["--format"],
        Value,
        Instead("--json-schema '{}' answers with JSON, and --json tells all of an answer as JSON"),
    ),
    habit(
        &["--reasoning-format"],
        Value,
        Instead(
            "thoughts are told apart always; --think on, off or hide says what becomes of them",
        ),
    ),
    habit(
        &["-if", "--interactive-first", "-mli", "--multiline-input"],
        Nothing,
        Instead(TALK),
    ),
    habit(
        &["-cnv", "--conversation", "-i", "--interactive"],
        Nothing,
        Only("chat", TALK),
    ),
    habit(&["-st", "--single-turn"], Nothing, Only("generate", ANSWER)),
    habit(
        &["-sysf", "--system-prompt-file"],
        Value,
        Instead("--system takes the text itself, as in --system \"$(cat FILE)\""),
    ),
    habit(&["--image", "--audio", "--video"], Value, Instead(TEXT)),
    habit(
        &["--no-mmproj", "--no-mmproj-offload"],
        Nothing,
        Instead(TEXT),
    ),
    habit(
        &["--in-prefix", "--in-suffix"],
        Value,
        Instead("the chat template stands around each message; --raw goes without one"),
    ),
    habit(
        &["--chat-template-kwargs", "--chat-template-config"],
        Value,
        Instead("--think on or off is the one switch of templates that glimt has"),
    ),
    habit(
        &["-lv", "--verbosity", "--log-verbosity", "--log-file"],
        Value,
        Instead("-v or RUST_LOG=info shows what the program does, on standard error; -q is quiet"),
    ),
    habit(
        &["--embedding", "--embeddings", "--rerank", "--reranking"],
        Nothing,
        Instead("glimt generates text and computes no embeddings"),
    ),
    habit(
        &["--no-slots", "--no-webui", "--no-ui"],
        Nothing,
        Instead(
            "glimt serve --no-page serves no page, and --key-everywhere asks for a key on all paths",
        ),
    ),
    habit(
        &["--ssl-key-file", "--ssl-cert-file"],
        Value,
        Instead("glimt serve speaks HTTP; a proxy in front of it adds TLS"),
    ),
    habit(
        &[
            "--kv-bits",
            "--quantize-kv",
            "--kv-group-size",
            "--quantized-kv-start",
        ],
        Value,
        Instead("the cache has one of two types: --cache-type f16 or q8_0"),
    ),
    habit(
        &[
            "-C",
            "--cpu-mask",
            "--cpu-range",
            "--numa",
            "--prio",
            "--poll",
        ],
        Value,
        Instead("-t says how many threads compute, and taskset or numactl says where they run"),
    ),
    habit(
        &["--insecure"],
        Nothing,
        Instead("the address of another hub, HF_ENDPOINT=http://..., says how it is reached"),
    ),
];

impl Habit {
    /// The value of the flag, if the `next` word is that.
    pub(super) fn value<'a>(&self, next: Option<&'a str>) -> Option<&'a str> {
        match self.takes {
            Nothing => None,
            Value => next,
            Maybe(values) => next.filter(|next| values.contains(next)),
        }
    }
}

/// The flag of another program that `word` is, if `command` has none of this name: with its name, and the value behind `=`.
pub(super) fn find<'a>(
    command: &Command,
    word: &'a str,
) -> Option<(&'static Habit, &'a str, Option<&'a str>)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let own = match name.strip_prefix("--") {
        Some(long) => config::flag(command, long).is_some(),
        None => command
            .get_arguments()
            .filter_map(|flag| flag.get_short())
            .any(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    };
    if own {
        return None;
    }
    let habit = HABITS.iter().find(|habit| habit.names.contains(&name))?;
    Some((habit, name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    #[test]
    fn the_documentation_names_every_flag() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        let text = std::fs::read_to_string(path).expect("docs/cli.md is there");
        for name in HABITS.iter().flat_map(|habit| habit.names) {
            assert!(
                text.contains(&format!("`{name}`")),
                "docs/cli.md does not name {name}"
            );
        }
    }

    #[test]
    fn what_flags_are_called_here_is_there() {
        let definition = definition();
        for habit in HABITS {
            let names = |command: &Command| match habit.means {
                Flag(flag) => config::flag(command, flag).is_some(),
                Only(name, _) => command.get_name() == name,
                _ => true,
            };
            assert!(definition.get_subcommands().any(names), "{:?}", habit.names);
        }
    }
}
