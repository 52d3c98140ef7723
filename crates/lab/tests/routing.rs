//! Protects the rule by which slots of experts are forgotten: on the choices of a real router it is as good as is said of it.
//!
//! benches/results has the table. `GLIMT_WRITE=1` writes it anew.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use glimt::kernels::expert_places::expert_places;
use glimt::kernels::expert_slots::{expert_slots, first_words};
use glimt_lab::tables::compare;
use glimt_measure::bench::Routing;
use rayon::prelude::*;

/// The file with the choices for texts of three kinds, among the fixtures: arrays (tokens, layers, used) of bytes.
const TRACE: &str = "tales64/trace.npz";
const KINDS: [&str; 3] = ["tales", "classics", "code"];
/// Experts of a layer, and of a token.
const EXPERTS: usize = 64;
const USED: usize = 4;
/// Tokens of each kind, and of a piece where two kinds take turns.
const TOKENS: usize = 6000;
const TURN: usize = 1500;

const SLOTS: [usize; 6] = [8, 16, 24, 32, 40, 48];
const DOCUMENT: &str = "benches/results/trace-2026-11-27-slots.md";
const HEAD: &str = "\
| slots of 64 | stories | classics | code | stories and code in turns | a user of each at once |
|---|---|---|---|---|---|
";

/// How far the rule of glimt may be below the best possible one, and below that which forgets what was chosen longest ago.
const BELOW_BEST: f64 = 0.23;
const BELOW_RECENT: f64 = 0.005;

/// The choices of one layer: the ids of each step, which has one token or more.
type Steps = Vec<Vec<u32>>;

/// The steps of each layer for each column of the table; nothing where there are no fixtures.
fn columns() -> Option<[Vec<Steps>; 5]> {
    let Some(root) = std::env::var_os("GLIMT_FIXTURES") else {
        eprintln!("skipped: {TRACE} (GLIMT_FIXTURES not set)");
        return None;
    };
    let path = Path::new(&root).join(TRACE);
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = zip::ZipArchive::new(file).expect("it is an archive");
    let [stories, classics, code] = KINDS.map(|kind| {
        let mut bytes = vec![];
        let mut array = archive
            .by_name(&format!("{kind}.npy"))
            .expect("it is there");
        array.read_to_end(&mut bytes).expect("it is whole");
        let routing = Routing::from_npy(&bytes).expect("it is a trace");
        let layer = |i| {
            let ids = routing.of_layer(i, routing.layers());
            let tokens = ids.chunks(USED).take(TOKENS);
            tokens.map(<[u32]>::to_vec).collect::<Steps>()
        };
        (0..routing.layers()).map(layer).collect::<Vec<_>>()
    });
    let of_both = |join: &dyn Fn(&Steps, &Steps) -> Steps| {
        let both = stories.iter().zip(&code);
        both.map(|(a, b)| join(a, b)).collect::<Vec<_>>()
    };
    let in_turns = of_both(&|a, b| {
        let turns = a.chunks(TURN).zip(b.chunks(TURN));
        let turns = turns.flat_map(|(a, b)| [a, b]).flatten().cloned();
        turns.take(TOKENS).collect()
    });
    let at_once = of_both(&|a, b| {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| [&a[..], b].concat()).collect()
    });
    Some([stories, classics, code, in_turns, at_once])
}

/// Hits, and experts of all steps. One that several tokens of a step chose counts once.
type Share = [usize; 2];

/// The hits of slots that in the beginning have the first experts. Of those that the step does not need, the one with the highest
/// `forgotten(step, expert)` makes room for a missing one.
fn hits(steps: &Steps, slots: usize, mut forgotten: impl FnMut(usize, usize) -> usize) -> Share {
    let mut held: Vec<usize> = (0..slots).collect();
    let mut found = [0; 2];
    for (i, ids) in steps.iter().enumerate() {
        let mut needed: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
        needed.sort_unstable();
        needed.dedup();
        found[1] += needed.len();
        for &expert in &needed {
            if held.contains(&expert) {
                found[0] += 1;
                continue;
            }
            let free = (0..slots).filter(|slot| !needed.contains(&held[*slot]));
            let slot = free.max_by_key(|slot| forgotten(i, held[*slot]));
            held[slot.expect("a slot for each")] = expert;
        }
    }
    found
}

/// The steps in which an expert is chosen, in order.
fn uses(steps: &Steps) -> Vec<Vec<usize>> {
    let mut uses = vec![vec![]; EXPERTS];
    for (i, ids) in steps.iter().enumerate() {
        for &id in ids {
            uses[id as usize].push(i);
        }
    }
    uses
}

/// The hits if the expert is forgotten that was chosen longest ago.
fn recent(steps: &Steps, slots: usize) -> Share {
    let uses = uses(steps);
    hits(steps, slots, |now, expert| {
        let before = uses[expert].partition_point(|step| *step < now);
        before
            .checked_sub(1)
            .map_or(usize::MAX, |last| now - uses[expert][last])
    })
}

/// The hits if the expert is forgotten that was chosen least often.
fn frequent(steps: &Steps, slots: usize) -> Share {
    let uses = uses(steps);
    hits(steps, slots, |now, expert| {
        usize::MAX - uses[expert].partition_point(|step| *step < now)
    })
}

/// The hits if the expert is forgotten that is not chosen for longest: no rule has more (Belady).
fn best(steps: &Steps, slots: usize) -> Share {
    let uses = uses(steps);
    hits(steps, slots, |now, expert| {
        let next = uses[expert].partition_point(|step| *step <= now);
        uses[expert].get(next).map_or(usize::MAX, |next| next - now)
    })
}

/// The hits of the rule that glimt has.
fn kept(steps: &Steps, slots: usize) -> Share {
    let mut words = first_words(EXPERTS as u32, slots as u32);
    for ids in steps {
        match ids.len() {
            USED => drop(expert_slots(&mut words, ids, EXPERTS, None)),
            _ => drop(expert_places(&mut words, ids, [EXPERTS, USED])),
        }
    }
    [words[1], words[1] + words[2]].map(|n| n as usize)
}

/// The share of hits in all layers by each rule.
fn shares(layers: &[Steps], slots: usize) -> [f64; 4] {
    [recent, frequent, kept, best].map(|rule| {
        let of_layers = layers.iter().map(|steps| rule(steps, slots));
        let [hits, all] = of_layers.fold([0; 2], |sum, found| [0, 1].map(|i| sum[i] + found[i]));
        hits as f64 / all as f64
    })
}

#[test]
fn slots_keep_what_a_real_router_chooses_again() {
    let Some(columns) = columns() else {
        return;
    };
    let cells: Vec<_> = SLOTS
        .iter()
        .flat_map(|slots| columns.iter().map(move |layers| (*slots, layers)))
        .collect();
    let found: Vec<_> = cells
        .par_iter()
        .map(|(slots, layers)| shares(layers, *slots))
        .collect();
    let mut table = HEAD.to_owned();
    for (slots, row) in SLOTS.iter().zip(found.chunks(columns.len())) {
        let cell = |shares: &[f64; 4]| shares.map(|share| format!("{share:.3}")).join(", ");
        let cells: Vec<_> = row.iter().map(cell).collect();
        table += &format!("| {slots} | {} |\n", cells.join(" | "));
    }
    for ((slots, _), [recent, _, kept, best]) in cells.iter().zip(&found) {
        assert!(*kept >= recent - BELOW_RECENT, "{slots} slots: {table}");
        assert!(
            *kept >= best - BELOW_BEST && kept <= best,
            "{slots} slots: {table}"
        );
    }
    compare(DOCUMENT, HEAD, &table);
}
