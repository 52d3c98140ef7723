//! Protects portability without the hardware: every shader of the recorded steps, written as Metal, DX12, Vulkan and browsers get it.
//!
//! Each is expanded, parsed, validated with no more than what its tier may use, and translated with the options that wgpu takes for
//! unchecked shaders. It holds no slow code and fits every device. Compilers that are installed read a sample. `scripts/portability`
//! fetches compilers and has them read everything (docs/portability.md).

mod code;
mod compilers;
mod folder;
mod interface;
mod language;
mod pipelines;
mod shaders;

use glimt::gpu::{Tier, shader};
use glimt::quant::GgmlType;
use glimt::synth::ModelName;
use language::Language;
use pipelines::{Pipeline, pipelines};
use rayon::prelude::*;
use shaders::Translations;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// Fails with the text where `ok` is false.
fn ensure(ok: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(otherwise()) }
}

/// Every pipeline of every model with weights of every type.
static ALL: LazyLock<Vec<Pipeline>> = LazyLock::new(|| {
    let models = [
        ModelName::Glm47Flash,
        ModelName::DeepseekV2Lite,
        ModelName::YoutuLlm2b,
        ModelName::Kanana2_30bA3b,
        ModelName::Gigachat3_10bA18b,
        ModelName::TinyGlm,
        ModelName::Qwen3_30bA3b,
        ModelName::Qwen25_7b,
        ModelName::Llama31_8b,
        ModelName::Smollm2_135m,
    ];
    pipelines(&models, GgmlType::ALL)
});

/// Models that have every kernel in most of its forms.
const SAMPLED: [ModelName; 4] = [
    ModelName::Glm47Flash,
    ModelName::DeepseekV2Lite,
    ModelName::Qwen3_30bA3b,
    ModelName::Qwen25_7b,
];

/// The pipelines of some models, with weights of two types.
static SAMPLE: LazyLock<Vec<Pipeline>> =
    LazyLock::new(|| pipelines(&SAMPLED, &[GgmlType::Q4_0, GgmlType::Q6_K]));

/// The translations of all `pipelines`, all of which pass.
#[track_caller]
fn translated(pipelines: &[Pipeline]) -> Vec<(&Pipeline, Translations)> {
    let tried: Vec<_> = pipelines
        .par_iter()
        .map(|pipeline| (pipeline, pipeline.translated()))
        .collect();
    println!("{} pipelines", pipelines.len());
    let failed = tried.iter().filter_map(|(pipeline, tried)| {
        let e = tried.as_ref().err()?;
        let (kernel, tier) = (pipeline.spec.kernel, pipeline.tier.name());
        Some((format!("{kernel} {tier}: {e}"), &pipeline.spec.variant))
    });
    let failed: Vec<_> = failed.collect();
    // Of each reason the first.
    let reasons: BTreeMap<_, _> = failed.iter().rev().map(|(e, v)| (e, v)).collect();
    for (reason, variant) in &reasons {
        println!("{reason}\n  {variant:?}");
    }
    assert!(
        failed.is_empty(),
        "{} of {} pipelines, for {} reasons",
        failed.len(),
        pipelines.len(),
        reasons.len()
    );
    let done = tried.into_iter();
    done.filter_map(|(pipeline, tried)| Some((pipeline, tried.ok()?)))
        .collect()
}

#[track_caller]
fn has_every_kernel(pipelines: &[Pipeline]) {
    let found: BTreeSet<_> = pipelines.iter().map(|p| p.spec.kernel).collect();
    assert_eq!(found, shader::kernels().collect());
}

#[test]
fn a_sample_of_the_pipelines_is_fit_for_its_devices() {
    has_every_kernel(&SAMPLE);
    translated(&SAMPLE);
}

/// The variable with the beginnings of names of kernels, and of modules that types have, whose pipelines alone are wanted: in the models of
/// the sample, with weights of the types that are named so, or of two others. They are separated by commas.
const OF: &str = "GLIMT_SHADERS_OF";

/// The pipelines of kernels, or with modules, whose names begin with one of these words.
fn pipelines_of(words: &str) -> Vec<Pipeline> {
    let wanted = |name: &str| words.split(',').any(|word| name.starts_with(word));
    let all = GgmlType::ALL.iter().copied();
    let mut types: Vec<_> = all.filter(|ty| wanted(&ty.name().to_lowercase())).collect();
    if types.is_empty() {
        types = vec![GgmlType::Q4_0, GgmlType::Q6_K];
    }
    let mut found = pipelines(&SAMPLED, &types);
    found.retain(|Pipeline { spec, tier, .. }| {
        let expanded = shader::expand(spec.kernel, spec.source, &spec.variant, *tier);
        wanted(spec.kernel) || expanded.is_ok_and(|all| all.modules.iter().any(|m| wanted(m)))
    });
    found
}

/// `GLIMT_SHADERS=FOLDER` keeps the shaders, for other compilers.
#[test]
#[ignore = "all shaders: scripts/portability"]
fn every_pipeline_is_fit_for_its_devices() {
    let some = std::env::var(OF).ok().map(|words| pipelines_of(&words));
    let wanted = some.as_ref().unwrap_or_else(|| {
        has_every_kernel(&ALL);
        &ALL
    });
    let translated = translated(wanted);
    if let Some(path) = std::env::var_os(folder::SHADERS) {
        let path = Path::new(&path);
        folder::write(path, &translated).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// The first shader of each kernel and tier in `language`.
fn first_of_each(language: Language) -> Vec<(String, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for pipeline in SAMPLE.iter() {
        let name = format!("{}-{}", pipeline.spec.kernel, pipeline.tier.name());
        if found.contains_key(&name) {
            continue;
        }
        let translations = pipeline
            .translated()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut shaders = translations.into_iter();
        if let Some((_, Ok(shader))) = shaders.find(|(l, _)| *l == language) {
            found.entry(name).or_insert(shader);
        }
    }
    found.into_iter().collect()
}

#[test]
fn compilers_that_are_installed_read_a_shader_of_each_kernel() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut failed = vec![];
    for language in Language::ALL {
        let Some(program) = compilers::installed(language) else {
            eprintln!("skipped: nothing here compiles {}", language.name());
            continue;
        };
        let shaders = first_of_each(language);
        assert!(
            shaders.len() > 20,
            "{} of {}",
            shaders.len(),
            language.name()
        );
        println!("{program} reads {} of {}", shaders.len(), language.name());
        let files = shaders.par_iter().filter_map(|(name, shader)| {
            let file = folder.path().join(format!("{name}.{}", language.ending()));
            fs::write(&file, shader).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let e = compilers::compile(language, &file).err()?;
            Some(format!("{name} in {}: {e}", language.name()))
        });
        failed.extend(files.collect::<Vec<_>>());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_table_has_every_kernel() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/portability.md");
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = text.lines().filter_map(|line| {
        let name = line.strip_prefix("| `")?;
        Some(name.split_once('`')?.0)
    });
    let rows: BTreeSet<_> = rows.collect();
    assert_eq!(
        rows,
        shader::kernels().collect(),
        "scripts/portability writes the table"
    );
}

/// Subgroups differ in size from device to device, and on AMD's from kernel to kernel: only the device knows which threads share one.
#[test]
fn numbers_of_subgroups_and_lanes_come_from_the_device() {
    let mut counts = [0; 2];
    for Pipeline { spec, tier, .. } in SAMPLE.iter().filter(|p| p.tier != Tier::Plain) {
        let text = shader::expand(spec.kernel, spec.source, &spec.variant, *tier)
            .unwrap_or_else(|e| panic!("{e}"))
            .text;
        let code = text.lines().map(|l| l.split("//").next().unwrap_or(l));
        let code: String = code.flat_map(|line| [line, "\n"]).collect();
        let numbered = code.contains("local_invocation");
        let subgroups = code.contains("subgroup");
        assert!(
            !(numbered && subgroups),
            "{} numbers its threads past their subgroups",
            spec.kernel
        );
        counts[usize::from(subgroups)] += 1;
        let Some(index) = code.find("let t = ") else {
            continue;
        };
        let line = code[index..].lines().next();
        assert_eq!(
            line.map(str::trim),
            Some("let t = subgroup * subgroup_size + lane_id;"),
            "{}",
            spec.kernel
        );
    }
    assert!(counts[1] > counts[0], "{counts:?}");
}
