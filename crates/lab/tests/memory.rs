//! Protects what is said of machines that people have: which models fit their memory, which partly, and which not.
//!
//! docs/memory.md has the table. `GLIMT_WRITE=1` writes it anew.

use std::sync::Arc;

use rayon::prelude::*;

use glimt::engine::{Disk, Host, Memory, Partly, Place, Processor, Site, Way};
use glimt::gpu::Target;
use glimt::gpu::behind::{Behind, ExpertsFrom};
use glimt::gpu::bus::Bus;
use glimt::models::{self, Model};
use glimt::synth::{ModelName, Recipe, SynthOptions, without_matrices};
use glimt_formats::testing::some;
use glimt_lab::ROOT;
use glimt_lab::tables::compare;

/// The context that they are planned with.
const N_CTX: usize = 4096;
const GIB: u64 = 1 << 30;
/// GiB of memory that a machine with a card may have.
const HOSTS: [u64; 3] = [16, 32, 64];
/// GiB of cards, a card that has so many, and its bus.
const CARDS: [(u64, &str, &str); 5] = [
    (6, "RTX 4060", "4x8"),
    (8, "RTX 4060", "4x8"),
    (12, "RTX 4070", "4x16"),
    (16, "RTX 4070 Ti SUPER", "4x16"),
    (24, "RTX 4090", "4x16"),
];
/// GiB of cards on slow buses, and such a card and bus.
const SLOW: [(u64, &str, &str); 4] = [
    (8, "RTX 4060", "4x8"),
    (12, "RTX 4070", "3x16"),
    (16, "RTX 4070 Ti SUPER", "3x16"),
    (24, "RTX 4090", "3x16"),
];
/// GiB of Macs, the chip of one that has so many, and the share that its GPU gets.
const MACS: [(u64, &str, f64); 4] = [
    (16, "Apple M2", 2.0 / 3.0),
    (24, "Apple M4 Pro", 2.0 / 3.0),
    (32, "Apple M2 Max", 2.0 / 3.0),
    (64, "Apple M4 Max", 0.75),
];

const MODELS: [ModelName; 3] = [
    ModelName::Glm47Flash,
    ModelName::DeepseekV2Lite,
    ModelName::YoutuLlm2b,
];
/// Those of them with experts.
const WITH_EXPERTS: [ModelName; 2] = [ModelName::Glm47Flash, ModelName::DeepseekV2Lite];
const RECIPES: [Recipe; 4] = [Recipe::Q4_0, Recipe::Q4KM, Recipe::Q6K, Recipe::Q8_0];

/// The outcome on one machine.
enum Found {
    /// All of the model lies on the GPU, with so many tokens/s.
    Fits(f64),
    /// A share of the experts does.
    Partly(Partly),
    /// Nothing fits.
    Not,
}

/// The outcome on a GPU of this name.
fn found(name: &str, memory: Memory, model: &dyn Model) -> Found {
    let target = Target::named(name).expect("it is known");
    let place = Place {
        site: Site::Gpu(&target, memory),
        model,
        ubatch: None,
        has_flag: true,
    };
    match place.check(N_CTX) {
        Err(_) => Found::Not,
        Ok(Some(partly)) => Found::Partly(partly),
        Ok(None) => {
            let speed = place.computed(N_CTX).expect("it is planned");
            Found::Fits(speed.expect("the speed of its memory is known"))
        }
    }
}

/// A share of the experts with a slot, and tokens per second.
fn share_and_speed(partly: &Partly) -> (f64, String) {
    let share = 100.0 * f64::from(partly.slots) / f64::from(partly.experts);
    let digits = usize::from(partly.tokens_per_s < 10.0);
    (share, format!("{:.digits$}", partly.tokens_per_s))
}

/// The memory of a machine with a card of so many GiB, this bus, and so many GiB beside.
fn with_card(gib: u64, bus: &str, host: u64) -> Memory {
    let bus: Bus = bus.parse().expect("it is a bus");
    Memory {
        device: Some(gib * GIB),
        behind: Behind::Host(bus),
        host: Host::of(host * GIB),
        experts: ExpertsFrom::Auto,
        disk: Some(Disk::ASSUMED),
    }
}

/// The cell of a card on a slow bus, beside as much memory as any experts take: its speed without a share of the CPU, and with the best one.
fn shared((gib, name, bus): (u64, &str, &str), model: &dyn Model) -> String {
    match found(name, with_card(gib, bus, 64), model) {
        Found::Fits(per_s) => format!("**{per_s:.0}**"),
        Found::Not => "no".to_owned(),
        Found::Partly(partly) => {
            let (share, speed) = share_and_speed(&partly);
            let paying = partly.share(Processor::ASSUMED).map(|share| {
                let digits = usize::from(share.tokens_per_s < 10.0);
                format!(", {:.digits$} with {}", share.tokens_per_s, share.experts)
            });
            format!("{share:.0}%: {speed}{}", paying.unwrap_or_default())
        }
    }
}

/// The cell of a card: with the least of the hosts that has room for the experts, and with the smallest one where they come from the file.
fn card((gib, name, bus): (u64, &str, &str), model: &dyn Model) -> String {
    let cell = |host| match found(name, with_card(gib, bus, host), model) {
        Found::Partly(partly) => {
            let (share, speed) = share_and_speed(&partly);
            match partly.way {
                Way::Bus(_) => Ok(format!("{share:.0}%: {speed} ({host} GB)")),
                Way::Disk(_) => Err(format!("{speed} (file)")),
            }
        }
        Found::Not => Err("no".to_owned()),
        Found::Fits(per_s) => Ok(format!("**{per_s:.0}**")),
    };
    let smallest = cell(HOSTS[0]);
    match HOSTS.into_iter().find_map(|host| cell(host).ok()) {
        Some(found) => match smallest {
            Err(from_file) if from_file != "no" => format!("{found}, {from_file}"),
            _ => found,
        },
        None => smallest.unwrap_or_else(|worst| worst),
    }
}

/// The cell of a Mac.
fn mac((gib, name, share): (u64, &str, f64), model: &dyn Model) -> String {
    let host = Host::of(gib * GIB);
    let with = |bytes: u64| {
        let memory = Memory {
            device: Some(bytes),
            behind: Behind::Unified,
            host,
            experts: ExpertsFrom::Auto,
            disk: Some(Disk::ASSUMED),
        };
        found(name, memory, model)
    };
    let usual = with(((gib * GIB) as f64 * share) as u64);
    let most = with(host.for_gpu().expect("it is known"));
    match (usual, most) {
        (Found::Fits(per_s), _) => format!("**{per_s:.0}**"),
        (_, Found::Fits(per_s)) => format!("{per_s:.0}, set"),
        (Found::Partly(partly), _) => {
            let (share, speed) = share_and_speed(&partly);
            format!("{share:.0}%: {speed} (file)")
        }
        (Found::Not, _) => "no".to_owned(),
    }
}

/// The head of the table of docs/memory.md.
fn head() -> String {
    let cards = CARDS.map(|(gib, ..)| format!("{gib} GB"));
    let macs = MACS.map(|(gib, ..)| format!("Mac, {gib} GB"));
    let names = [cards.to_vec(), macs.to_vec()].concat();
    let head = format!("| model | quantisation | {} |\n", names.join(" | "));
    head + &format!("|---|---|{}\n", "---|".repeat(names.len()))
}

/// The head of the table of slow buses.
fn head_of_slow() -> String {
    let cards = SLOW.map(|(gib, _, bus)| {
        let bus: Bus = bus.parse().expect("it is a bus");
        format!("{gib} GB, {bus}")
    });
    let head = format!(
        "| model with experts | quantisation | {} |\n",
        cards.join(" | ")
    );
    head + &format!("|---|---|{}\n", "---|".repeat(cards.len()))
}

/// The row of a model there.
fn row_of_slow(name: ModelName, recipe: Recipe) -> String {
    let model = planned(name, recipe);
    let cells = SLOW.map(|known| shared(known, &*model)).join(" | ");
    format!("| {name} | {} | {cells} |\n", recipe.name().to_uppercase())
}

/// A model without its weights.
fn planned(name: ModelName, recipe: Recipe) -> Arc<dyn Model> {
    let gguf = without_matrices(name, recipe, &SynthOptions::default());
    models::load(Arc::new(gguf.expect("a plan"))).expect("it is supported")
}

/// The row of a model.
fn row(name: ModelName, recipe: Recipe) -> String {
    let model = planned(name, recipe);
    let cards = CARDS.map(|known| card(known, &*model)).to_vec();
    let macs = MACS.map(|known| mac(known, &*model)).to_vec();
    let cells = [cards, macs].concat().join(" | ");
    format!("| {name} | {} | {cells} |\n", recipe.name().to_uppercase())
}

#[test]
fn a_row_of_the_table_is_that_of_the_code() {
    let path = format!("{ROOT}/docs/memory.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    for (name, recipe) in some(&MODELS, 1).into_iter().zip(some(&RECIPES, 1)) {
        let row = row(name, recipe);
        assert!(text.contains(&row), "{row}");
    }
    for (name, recipe) in some(&WITH_EXPERTS, 1).into_iter().zip(some(&RECIPES, 1)) {
        let row = row_of_slow(name, recipe);
        assert!(text.contains(&row), "{row}");
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn machines_that_people_have_are_told_what_fits() {
    let rows = |models: &[ModelName], row: fn(ModelName, Recipe) -> String| {
        let all = models
            .iter()
            .flat_map(|name| RECIPES.map(|recipe| (*name, recipe)));
        let all: Vec<_> = all.collect();
        let rows = all.par_iter().map(|(name, recipe)| row(*name, *recipe));
        rows.collect::<Vec<_>>().concat()
    };
    let table = head() + &rows(&MODELS, row);
    compare("docs/memory.md", "| model |", &table);
    let table = head_of_slow() + &rows(&WITH_EXPERTS, row_of_slow);
    compare("docs/memory.md", "| model with experts |", &table);
}
