//! The mutants of kernels that matter: they change what a model's session compiles. `glimt-lab mutants` lists them for `scripts/mutants`: a
//! line for each mutant with its name, the kernels that it changes, why no test is needed to refuse it (empty where one is), the line as it
//! is and the line as it becomes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use rayon::prelude::*;

use super::{Kind, Mutant, code};
use glimt::engine::gpu::plan::Plan;
use glimt::gpu::pipeline::Spec;
use glimt::gpu::shader::{self, Expanded, templates};
use glimt::gpu::target::profiles;
use glimt::gpu::testing::mutants::with;
use glimt::gpu::{GpuError, Target, Tier};
use glimt::models::{self, Model};
use glimt::recipes::Residence;
use glimt::synth::{ModelName, Recipe, SynthOptions, without_matrices};

/// Rows of a context that every form of the attention has a dispatch for.
const N_CTX: usize = 40_000;

/// Mixes that have all types below 4 bits and MXFP4 together.
const OF_SMALL_FILES: [Recipe; 6] = [
    Recipe::Iq3Xxs,
    Recipe::Iq2M,
    Recipe::Iq2Xs,
    Recipe::Iq1S,
    Recipe::Iq1M,
    Recipe::Mxfp4Moe,
];
/// The beginnings of the names of templates that only these mixes and [`SLOTS`] have. Those of all others stay the mutants of the model in
/// Q4_K_M with its experts on the device.
const FURTHER: [&str; 12] = [
    "expert_fill",
    "expert_part",
    "expert_places",
    "expert_slots",
    "expert_sources",
    "shared/expert_copy",
    "shared/slots",
    "shared/step_experts",
    "shared/iq1",
    "shared/iq2",
    "shared/iq3",
    "shared/mxfp4",
];
/// Slots of a layer whose experts lie in host memory: too few for those that 8 tokens choose, and enough.
const SLOTS: [u32; 2] = [20, 32];

fn is_further(file: &str) -> bool {
    FURTHER.iter().any(|begin| file.starts_with(begin))
}

/// The pipelines of a session of GLM-4.7-Flash in Q4_K_M in tier `subgroup`, for one token, few tokens and whole chunks, on the GPU that
/// the kernels were measured on and on a Mac, with halves multiplied one by one and in pairs. Behind them are those of the same model with slots, and in
/// the mixes of small files.
fn specs() -> [BTreeSet<Spec>; 2] {
    let of = |recipe, layers| {
        let options = SynthOptions {
            layers,
            ..SynthOptions::default()
        };
        let gguf = without_matrices(ModelName::Glm47Flash, recipe, &options);
        models::load(Arc::new(gguf.expect("a plan"))).expect("it is supported")
    };
    let model = of(Recipe::Q4KM, None);
    let targets = profiles().into_iter();
    let targets = targets.filter(|target| {
        let measured = ["NVIDIA", "Apple"]
            .into_iter()
            .any(|maker| target.name.starts_with(maker));
        target.tier == Tier::Subgroup && measured
    });
    let [mut found, mut further] = [(); 2].map(|()| BTreeSet::new());
    let take = |found: &mut BTreeSet<Spec>, target: &Target, model: &dyn Model, residence| {
        let plan = Plan::of_one(target, model, residence, N_CTX, None).expect("it fits");
        for (_, step) in &plan.steps {
            let calls = step.resolve().expect("they suit their kernels");
            found.extend(calls.into_iter().map(|call| call.spec));
        }
    };
    let small = OF_SMALL_FILES.map(|recipe| of(recipe, Some(2)));
    for target in targets {
        for packed_halves in [false, true] {
            let target = Target {
                packed_halves,
                ..target.clone()
            };
            take(&mut found, &target, &*model, Residence::Whole);
            if !target.reads_host {
                continue;
            }
            let further = &mut further;
            for slots in SLOTS {
                take(further, &target, &*model, Residence::Slots(slots));
            }
            for model in &small {
                take(further, &target, &**model, Residence::Whole);
            }
        }
    }
    further.retain(|spec| !found.contains(spec));
    [found, further]
}

/// A pipeline's shader and what is known of it.
fn expanded(spec: &Spec) -> Result<Expanded, GpuError> {
    shader::expand(spec.kernel, spec.source, &spec.variant, Tier::Subgroup)
}

/// A pipeline as it should be: its shader, what that does, and the files that it is made of.
struct Compiled {
    spec: Spec,
    text: String,
    code: String,
    files: BTreeSet<String>,
    /// Whether only slots or small files have it.
    further: bool,
}

impl Compiled {
    fn of(spec: Spec, further: bool) -> Self {
        let expanded = expanded(&spec).unwrap_or_else(|e| panic!("{e}"));
        let modules = expanded.modules.iter();
        let mut files: BTreeSet<_> = modules.map(|m| format!("shared/{m}.wgsl")).collect();
        files.insert(format!("{}.wgsl", spec.kernel));
        let code = code::of(&expanded.text);
        Self {
            text: expanded.text,
            code: code.unwrap_or_else(|e| panic!("{}: {e}", spec.kernel)),
            files,
            spec,
            further,
        }
    }
}

/// The line of the list for a mutant, if it changes one of `among`.
fn listed(
    template: &str,
    among: &[&Compiled],
    (mutant, line, mutated): &(Mutant, String, String),
) -> Option<Listed> {
    // The first pipeline of each kernel that changes tells of the others. Where only those are refused, the tests find it out.
    let template = mutant.made(template);
    let mut changed: Vec<(&str, Option<String>)> = vec![];
    for compiled in among {
        let kernel = compiled.spec.kernel;
        if changed.iter().any(|(known, _)| *known == kernel) {
            continue;
        }
        let text = match with(&mutant.file, template.clone(), || expanded(&compiled.spec)) {
            Ok(now) if now.text == compiled.text => continue,
            Ok(now) => now.text,
            Err(e) => {
                changed.push((kernel, Some(e.to_string())));
                continue;
            }
        };
        match code::of(&text) {
            Ok(code) if code == compiled.code => {}
            code => changed.push((kernel, code.err())),
        }
    }
    (!changed.is_empty()).then(|| Listed {
        mutant: mutant.clone(),
        kernels: changed.iter().map(|(kernel, _)| *kernel).collect(),
        refused: changed.iter().find_map(|(_, refused)| refused.clone()),
        line: line.trim().to_owned(),
        mutated: mutated.trim().to_owned(),
    })
}

/// A mutant that changes something.
struct Listed {
    mutant: Mutant,
    kernels: Vec<&'static str>,
    refused: Option<String>,
    line: String,
    mutated: String,
}

/// The mutants of a template. A neighbour's index stands in where the next one is refused.
fn of_template(name: &str, text: &str, all: &[Compiled]) -> Vec<Listed> {
    let is_of = |c: &&Compiled| c.files.contains(name) && (!c.further || is_further(name));
    let among: Vec<_> = all.iter().filter(is_of).collect();
    let mutants = Mutant::all(name, text);
    let listed: Vec<_> = mutants
        .par_iter()
        .filter_map(|mutant| listed(text, &among, mutant))
        .collect();
    let refused: BTreeSet<_> = listed
        .iter()
        .filter(|listed| listed.mutant.kind == Kind::Index && listed.refused.is_some())
        .map(|listed| (listed.mutant.line, listed.mutant.place))
        .collect();
    let needed = |listed: &Listed| {
        let place = (listed.mutant.line, listed.mutant.place);
        match listed.mutant.kind {
            Kind::Index => !refused.contains(&place),
            Kind::Neighbour => refused.contains(&place),
            _ => true,
        }
    };
    listed.into_iter().filter(needed).collect()
}

/// The list, of those templates whose names `wanted` takes, and its length.
pub fn list(wanted: impl Fn(&str) -> bool) -> (String, usize) {
    let [found, further] = specs();
    let found = found.into_par_iter().map(|spec| Compiled::of(spec, false));
    let further = further.into_par_iter().map(|spec| Compiled::of(spec, true));
    let all: Vec<_> = found.chain(further).collect();
    let mut text = String::new();
    let mut count = 0;
    for (name, template) in templates().filter(|(name, _)| wanted(name)) {
        for listed in of_template(&name, template, &all) {
            let Listed {
                mutant,
                kernels,
                refused,
                line,
                mutated,
            } = listed;
            let (kernels, refused) = (kernels.join(","), refused.unwrap_or_default());
            writeln!(text, "{mutant}\t{kernels}\t{refused}\t{line}\t{mutated}").expect("it grows");
            count += 1;
        }
    }
    (text, count)
}

#[test]
fn mutants_are_listed() {
    let (text, count) = list(|name| name == "token_router.wgsl");
    assert!(count > 10, "{text}");
    for (mutated, kind) in [
        ("sums[(subgroup) + 1] = sum", "index"),
        ("i += (subgroup_size * 2);", "lanes"),
        ("let at$i = ($iu * WG + t);", "clamp"),
    ] {
        let found = |line: &str| line.contains(mutated) && line.contains(kind);
        assert!(text.lines().any(found), "{mutated} is not in:\n{text}");
    }
    // The kernel has one barrier, with a line of its own.
    let barriers = text.lines().filter(|line| line.contains(":barrier\t"));
    assert_eq!(barriers.count(), 1, "{text}");
    // Kernels for slots, and types of small files, have theirs.
    let (text, count) = list(|name| ["expert_sources.wgsl", "shared/iq1_s.wgsl"].contains(&name));
    assert!(count > 10 && text.contains("shared/iq1_s.wgsl:"), "{text}");
}
