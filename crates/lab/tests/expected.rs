//! Protects what GPUs that nobody here owns are told: each model is planned on each of them, within its budget or refused in a sentence.
//!
//! docs/expected.md has the table. `GLIMT_WRITE=1` writes it anew.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use rayon::prelude::*;

use glimt::engine::gpu::plan::Plan;
use glimt::engine::gpu::plan::expected::Expected;
use glimt::engine::{Disk, Host, Memory, MemoryPlan, Partly, Place, Site, Way};
use glimt::gpu::behind::{Behind, ExpertsFrom};
use glimt::gpu::budget::Budget;
use glimt::gpu::pipeline::Spec;
use glimt::gpu::{GpuError, Target, Tier, shader};
use glimt::models::{self, Model};
use glimt::recipes::Residence;
use glimt::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use glimt_formats::testing::{drawn, some};
use glimt_lab::ROOT;
use glimt_lab::known::{KNOWN, Known};
use glimt_lab::tables::compare;

/// The context that they are planned with.
const N_CTX: usize = 4096;

const MODELS: [ModelName; 3] = [
    ModelName::Glm47Flash,
    ModelName::DeepseekV2Lite,
    ModelName::YoutuLlm2b,
];

/// Models of the same family whose sizes are told in one quantisation.
const COUSINS: [ModelName; 5] = [
    ModelName::Glm47FlashReap23b,
    ModelName::Moonlight16bA3b,
    ModelName::KimiVlA3b,
    ModelName::Kanana2_30bA3b,
    ModelName::Gigachat3_10bA18b,
];

fn model(name: ModelName) -> Arc<dyn Model> {
    model_in(name, Recipe::Q4_0)
}

fn model_in(name: ModelName, recipe: Recipe) -> Arc<dyn Model> {
    let gguf = without_matrices(name, recipe, &SynthOptions::default()).expect("a plan");
    models::load(Arc::new(gguf)).expect("it is supported")
}

/// The plan of a model on a GPU.
enum Planned {
    /// All of it lies there: its tier, dispatches and speed (tokens/s).
    Whole {
        tier: Tier,
        dispatches: usize,
        waits: usize,
        per_s: f64,
    },
    /// Some of its experts do.
    Partly(Partly),
}

/// The plan of a model on a GPU in the tier that it is opened in, or the sentence with which it is refused.
fn planned(known: &Known, model: &dyn Model) -> Result<Planned, String> {
    let tier = Tier::best(&known.facts());
    let target = known.target(tier);
    let memory = Memory {
        device: Some(known.memory()),
        behind: Behind::of(&known.facts().info),
        host: Host::of(known.host()),
        experts: ExpertsFrom::Auto,
        disk: Some(Disk::ASSUMED),
    };
    let place = Place {
        has_flag: true,
        site: Site::Gpu(&target, memory),
        model,
        ubatch: None,
    };
    let partly = place.check(N_CTX).map_err(|e| e.to_string())?;
    if let Some(partly) = partly {
        return Ok(Planned::Partly(partly));
    }
    let plan =
        Plan::of_one(&target, model, Residence::Whole, N_CTX, None).map_err(|e| e.to_string())?;
    let expected = Expected::of(&target, &plan).map_err(|e| e.to_string())?;
    Ok(Planned::Whole {
        tier,
        dispatches: expected.dispatches,
        waits: expected.waits,
        per_s: expected.tokens_per_s(known.gb_per_s),
    })
}

/// A cell of the table: the computed speed of a model on a GPU, or the end of the sentence that refuses it.
fn cell(known: &Known, model: &dyn Model) -> String {
    match planned(known, model) {
        Ok(Planned::Partly(partly)) => {
            let set = partly.wired_limit_mb;
            let set =
                set.map(|mb| format!("; all of it with `sudo sysctl iogpu.wired_limit_mb={mb}`"));
            format!("partly, {}{}", part(&partly), set.unwrap_or_default())
        }
        Ok(Planned::Whole {
            tier,
            dispatches,
            waits,
            per_s,
        }) => format!(
            "**{per_s:.0}** {}, {waits} of {dispatches} wait",
            tier.name()
        ),
        Err(refused) => {
            let (whole, hint) = refused.split_once("; ").expect("it says what would fit");
            assert!(whole.starts_with("not enough memory: weights of "));
            assert!(whole.contains(known.name), "{whole}");
            let hint = hint.strip_suffix(" (--force tries all the same)");
            format!("refused: {}", hint.expect("it says how to try it"))
        }
    }
}

/// The share of the experts on the GPU, and the computed speed.
fn part(partly: &Partly) -> String {
    let share = 100.0 * f64::from(partly.slots) / f64::from(partly.experts);
    let way = match partly.way {
        Way::Bus(_) => "",
        Way::Disk(_) => " from the file",
    };
    format!("{share:.0}%: **{:.0}**{way}", partly.tokens_per_s)
}

/// The table of docs/expected.md.
fn table() -> String {
    let models = MODELS.map(|name| (name.to_string(), model(name)));
    let names: Vec<_> = models.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!("| GPU | {} |\n", names.join(" | "));
    text += &format!("|---|{}\n", "---|".repeat(names.len()));
    for known in &KNOWN {
        let cells: Vec<_> = models.iter().map(|(_, m)| cell(known, &**m)).collect();
        writeln!(text, "| {} | {} |", known.name, cells.join(" | ")).expect("it grows");
    }
    text
}

#[test]
fn every_model_is_planned_on_every_known_gpu() {
    compare("docs/expected.md", "| GPU |", &table());
}

/// The recipes of the table of sizes.
const RECIPES: [Recipe; 5] = [
    Recipe::Q4_0,
    Recipe::Q4KM,
    Recipe::Q5KM,
    Recipe::Q6K,
    Recipe::Q8_0,
];

/// The size of a model's file (GB), and the memory of a GPU that it takes in contexts of 4096 and of 32768 tokens (GiB).
fn sizes_of(name: ModelName, recipe: Recipe) -> [f64; 3] {
    let known = KNOWN.iter().find(|known| known.name.ends_with("RTX 4090"));
    let known = known.expect("it is known");
    let target = known.target(Tier::best(&known.facts()));
    let model = model_in(name, recipe);
    let memory = |n_ctx| {
        let plan = MemoryPlan::new(&target, &*model, Residence::Whole, n_ctx, None);
        plan.expect("it is planned").total() as f64 / f64::from(1 << 30)
    };
    let file = model.gguf().file_size() as f64 / 1e9;
    [file, memory(4096), memory(32768)]
}

/// The table of the room that models take on a disk and in the memory of a GPU.
fn sizes() -> String {
    let mut text =
        "| model | quantisation | file, GB | memory at 4096, GiB | memory at 32768, GiB |\n\
                    |---|---|---:|---:|---:|\n"
            .to_owned();
    let cousins = COUSINS.map(|name| (name, &[Recipe::Q4KM][..]));
    for (name, recipes) in MODELS
        .map(|name| (name, &RECIPES[..]))
        .into_iter()
        .chain(cousins)
    {
        for &recipe in recipes {
            let [file, short, long] = sizes_of(name, recipe);
            writeln!(
                text,
                "| {name} | {} | {file:.1} | {short:.1} | {long:.1} |",
                recipe.name().to_uppercase()
            )
            .expect("it grows");
        }
    }
    text
}

#[test]
fn sizes_of_models_are_those_of_their_plans() {
    compare("docs/expected.md", "| model | quantisation |", &sizes());
}

/// The rows of README.md that tell sizes: how each begins, and the models of which it tells.
const IN_README: [(&str, &[ModelName], Recipe); 6] = [
    ("GLM-4.7-Flash", &[ModelName::Glm47Flash], Recipe::Q4KM),
    (
        "DeepSeek-V2-Lite",
        &[ModelName::DeepseekV2Lite],
        Recipe::Q4KM,
    ),
    ("Youtu-LLM-2B", &[ModelName::YoutuLlm2b], Recipe::Q8_0),
    (
        "GLM-4.7-Flash-REAP-23B",
        &[ModelName::Glm47FlashReap23b],
        Recipe::Q4KM,
    ),
    (
        "DeepSeek-Coder-V2-Lite, Moonlight-16B-A3B, Kimi-VL-A3B (text)",
        &[ModelName::Moonlight16bA3b],
        Recipe::Q4KM,
    ),
    (
        "GigaChat3-10B-A1.8B / Kanana-2-30B-A3B",
        &[ModelName::Gigachat3_10bA18b, ModelName::Kanana2_30bA3b],
        Recipe::Q4KM,
    ),
];

#[test]
fn the_readme_tells_the_same_sizes() {
    let path = format!("{ROOT}/README.md");
    let readme = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = IN_README.map(|(begin, models, recipe)| {
        let sizes: Vec<_> = models.iter().map(|name| sizes_of(*name, recipe)).collect();
        let cell = |of: fn([f64; 3]) -> String| {
            let cells: Vec<_> = sizes.iter().copied().map(of).collect();
            cells.join(" / ")
        };
        let file = cell(|[file, ..]| match file < 12.0 {
            true => format!("{file:.1}"),
            false => format!("{file:.0}"),
        });
        let short = cell(|[_, short, _]| format!("{short:.1}"));
        let long = cell(|[.., long]| format!("{long:.1}"));
        let recipe = recipe.name().to_uppercase();
        format!("| {begin} | {recipe} | {file} GB | {short} GiB | {long} GiB |")
    });
    let lacking = rows.iter().filter(|row| !readme.contains(*row));
    let lacking: Vec<_> = lacking.map(String::as_str).collect();
    assert!(lacking.is_empty(), "{path} lacks:\n{}", lacking.join("\n"));
}

/// The budget of each pipeline that the steps of a model have on a target.
fn budgets(
    target: &Target,
    model: &dyn Model,
    known: &mut HashMap<(Spec, Tier), Budget>,
) -> Result<Vec<(&'static str, Budget)>, GpuError> {
    let plan = Plan::of_one(target, model, Residence::Whole, N_CTX, None)?;
    let mut specs = vec![];
    for (_, step) in &plan.steps {
        specs.extend(step.resolve()?.into_iter().map(|call| call.spec));
    }
    let new: Vec<_> = specs
        .iter()
        .filter(|spec| !known.contains_key(&((*spec).clone(), target.tier)))
        .collect();
    let parsed = new.par_iter().map(|spec| {
        let text = shader::expand(spec.kernel, spec.source, &spec.variant, target.tier)?.text;
        let module = naga::front::wgsl::parse_str(&text).expect("other tests parse it");
        let budget = Budget::of(&module).expect("its types have sizes");
        Ok((((**spec).clone(), target.tier), budget))
    });
    known.extend(parsed.collect::<Result<Vec<_>, GpuError>>()?);
    let of = |spec: Spec| (spec.kernel, known[&(spec, target.tier)]);
    Ok(specs.into_iter().map(of).collect())
}

#[test]
fn no_kernel_takes_more_than_a_known_gpu_has() {
    let mut parsed = HashMap::new();
    let of_known = |known: &'static Known| known.tiers().into_iter().map(move |tier| (known, tier));
    let all: Vec<_> = KNOWN.iter().flat_map(of_known).collect();
    for name in some(&MODELS, 1) {
        let model = model(name);
        for &(known, tier) in drawn(&all, all.len() / 4) {
            let limits = known.facts().limits;
            let target = known.target(tier);
            let budgets = budgets(&target, &*model, &mut parsed).expect("it is planned");
            for (kernel, budget) in budgets {
                let what = || format!("{kernel} of {name} on {}", known.name);
                let checked = budget.check(&limits);
                assert_eq!(checked, Ok(()), "{} in tier {}", what(), tier.name());
            }
        }
    }
}

/// Tokens/s in tier `plain` since it takes the kernels of a batch (`benches/notes.md`, "Tier plain by the kernels of a batch").
const PLAIN: [(ModelName, f64); 3] = [
    (ModelName::Glm47Flash, 127.26),
    (ModelName::DeepseekV2Lite, 227.62),
    (ModelName::YoutuLlm2b, 232.21),
];

/// The speeds that an H200 reaches, as `benches/results` has them: model, tier, whether halves are multiplied in pairs, tokens/s.
fn measured() -> Vec<(ModelName, Tier, bool, f64)> {
    let plain = PLAIN.map(|(name, speed)| (name, Tier::Plain, true, speed));
    let mut all = plain.to_vec();
    for (file, packed) in [("expected", true), ("widened", false)] {
        let path = format!("{ROOT}/benches/results/h200-2026-11-23-{file}.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let results: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        for row in results["rows"].as_array().expect("it has rows") {
            let of = |key: &str| row[key].as_str().expect(key).to_owned();
            let name = of("model_filename");
            let name = name.strip_suffix(":q4_0").expect("of Q4_0");
            let name = MODELS.into_iter().find(|model| model.to_string() == name);
            let tier: Tier = of("tier").parse().expect("a tier");
            if !tier.has_subgroups() {
                continue;
            }
            let speed = row["avg_ts"].as_f64().expect("a speed");
            all.push((name.expect("one of these models"), tier, packed, speed));
        }
    }
    all
}

#[test]
fn the_formula_is_near_what_an_h200_was_measured_at() {
    let measured = measured();
    assert_eq!(measured.len(), 4 * MODELS.len());
    let [h200, ..] = KNOWN;
    for (name, tier, packed, speed) in measured {
        let target = Target {
            packed_halves: packed,
            ..h200.target(tier)
        };
        let model = model(name);
        let plan = Plan::of_one(&target, &*model, Residence::Whole, N_CTX, None).expect("it fits");
        let expected = Expected::of(&target, &plan).expect("it is recorded");
        let computed = expected.tokens_per_s(h200.gb_per_s);
        let ratio = computed / speed;
        println!(
            "{name} {} {packed}: {computed:.0} computed, {speed:.0} measured, {ratio:.3}",
            tier.name()
        );
        assert!(
            (0.85..1.15).contains(&ratio),
            "{name} in tier {}: {ratio}",
            tier.name()
        );
    }
}

#[test]
fn known_gpus_have_the_speed_that_is_planned_with() {
    for known in &KNOWN {
        let speed = glimt::gpu::machine::memory_speed(known.name);
        assert_eq!(speed, Some(known.gb_per_s), "{}", known.name);
    }
}
