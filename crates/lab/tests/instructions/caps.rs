//! Protects the speed of kernels on Macs: none costs clearly more than the document says, which tells how fast an Apple GPU can go through
//! weights.

use super::kernels::{PRODUCTS, table};
use super::others::{Other, others};
use super::{Cost, Steps, sum};
use glimt::quant::GgmlType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Threads whose operations a cost is for.
const LANES: f64 = 128.0;

/// A chip in its widest form.
struct Chip {
    name: &'static str,
    /// Cores of the GPU.
    cores: u32,
    /// The highest clock of the GPU, in MHz.
    mhz: u32,
    /// Rated, of the memory.
    gb_per_s: f64,
}

const fn chip(name: &'static str, cores: u32, mhz: u32, gb_per_s: f64) -> Chip {
    Chip {
        name,
        cores,
        mhz,
        gb_per_s,
    }
}

/// Cores and bandwidths are Apple's figures. Clocks of M1 and M2 are those of philipturner/metal-benchmarks ("Overview"), of M3 those
/// of the comparison tables of hmc-tech.com, of M4 what powermetrics shows under load (hoakley, "M4 Pro full on", 22 January 2025;
/// the same state is the highest of M4 and M4 Max). For M5 nothing measured was found: that of M4 stands there.
const CHIPS: [Chip; 15] = [
    chip("M1", 8, 1278, 68.0),
    chip("M1 Pro", 16, 1296, 200.0),
    chip("M1 Max", 32, 1296, 400.0),
    chip("M2", 10, 1398, 100.0),
    chip("M2 Pro", 19, 1398, 200.0),
    chip("M2 Max", 38, 1398, 400.0),
    chip("M3", 10, 1398, 100.0),
    chip("M3 Pro", 18, 1398, 150.0),
    chip("M3 Max", 40, 1398, 400.0),
    chip("M4", 10, 1578, 120.0),
    chip("M4 Pro", 20, 1578, 273.0),
    chip("M4 Max", 40, 1578, 546.0),
    chip("M5", 10, 1578, 153.0),
    chip("M5 Pro", 20, 1578, 307.0),
    chip("M5 Max", 40, 1578, 614.0),
];

/// The types whose caps are shown.
const SHOWN: [GgmlType; 6] = [
    GgmlType::Q4_0,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::Q8_0,
    GgmlType::IQ4_XS,
];

impl Chip {
    /// GB/s of weights of this type at which arithmetic alone takes all the time.
    fn cap(&self, ty: GgmlType, cost: Cost) -> f64 {
        let bytes = ty.block_bytes() as f64 / ty.block_len() as f64;
        let cycles_per_s = f64::from(self.cores) * LANES * f64::from(self.mhz) * 1e6;
        cycles_per_s / cost.cycles() * bytes / 1e9
    }
}

/// The product of a type that costs most.
fn dearest(products: &[Steps]) -> Cost {
    let by_cycles = |a: &Cost, b: &Cost| a.cycles().total_cmp(&b.cycles());
    let costs = products.iter().map(sum);
    costs.max_by(by_cycles).expect("products")
}

fn document() -> String {
    let table = table();
    let (cycles, others, caps) = (cycles(&table), cycles_of_others(), caps(&table));
    format!(
        "# What arithmetic allows on Apple GPUs, computed

Nobody has run this on a Mac. The figures are counted in the shaders as naga takes them, with the costs of operations that were
measured on M1 and M2 (philipturner/metal-benchmarks): `crates/lab/tests/instructions/main.rs` says what is counted and what is assumed.
A test fails where a kernel costs clearly more than here (`GLIMT_WRITE=1 cargo test -p glimt-lab --test instructions` writes this page anew).

## Cycles per weight

Of the inner loops of the products of a decoded token in tier `subgroup`, in the sizes of GLM-4.7-Flash, in cycles of a core for 128
threads: on the pipe of conversions, shifts, bit extraction and integer multiplication / on that of everything else.

{cycles}
What else is counted, in the same sizes: the router's products in f32, that of `attn_output` with as many experts as leave no thread idle,
and the attention where there are no matrices, with the weights of the softmax, over tiles of the cache and over the slices that leave it.

| kernel | per | cycles |
|---|---|---|
{others}
## GB/s of weights that arithmetic allows

Cores x 128 x clock / cycles per weight x bytes per weight, for the product that costs most, in all cores at the highest clock;
in brackets as a multiple of the rated bandwidth. An instruction of either pipe takes one of the slots in which a core begins one
instruction for 128 threads a cycle, so cycles are those of the slow pipe, or of the fast one and a quarter of the slow one's, whichever
are more. Below about 1 a kernel cannot reach the rated bandwidth; the more above, the more it may wait.

{caps}
Each chip in its widest form. Cores and bandwidths are Apple's figures; clocks of M1 and M2 are from philipturner/metal-benchmarks, of
M3 from the tables of hmc-tech.com, of M4 from powermetrics under load (hoakley on the M4 Pro, 22 January 2025). No measured clock of
M5 was found: that of M4 stands there. Costs of operations are those of M1 and M2 for all; what later ones do faster is not in it.
"
    )
}

/// A table of what a weight of each type costs in each product.
fn cycles(table: &[(GgmlType, [Steps; 7])]) -> String {
    let columns = PRODUCTS.join(" | ");
    let rule = "---|".repeat(PRODUCTS.len() + 1);
    let mut text = format!("| type | {columns} |\n|{rule}\n");
    for (ty, costs) in table {
        let cell = |c: Cost| format!("{:.2} / {:.2}", c.slow, c.fast);
        let cells: Vec<_> = costs.iter().map(|steps| cell(sum(steps))).collect();
        writeln!(text, "| {ty} | {} |", cells.join(" | ")).expect("a string grows");
    }
    text
}

/// The lines of what else is counted.
fn cycles_of_others() -> String {
    let line = |other: Other| {
        let Cost { slow, fast } = sum(&other.steps);
        let (name, of) = (other.name, other.of);
        format!("| {name} | {of} | {slow:.2} / {fast:.2} |\n")
    };
    others().into_iter().map(line).collect()
}

/// A table of what each chip can go through of each type.
fn caps(table: &[(GgmlType, [Steps; 7])]) -> String {
    let names = SHOWN.map(|ty| ty.name()).join(" | ");
    let rule = "---|".repeat(SHOWN.len() + 4);
    let mut text = format!("| chip | GPU cores | MHz | rated GB/s | {names} |\n|{rule}\n");
    for chip in &CHIPS {
        let cells = SHOWN.map(|ty| {
            let (_, costs) = table.iter().find(|(t, _)| *t == ty).expect("every type");
            let cap = chip.cap(ty, dearest(costs));
            format!("{cap:.0} ({:.1})", cap / chip.gb_per_s)
        });
        let Chip {
            name,
            cores,
            mhz,
            gb_per_s,
        } = chip;
        let cells = cells.join(" | ");
        writeln!(
            text,
            "| {name} | {cores} | {mhz} | {gb_per_s:.0} | {cells} |"
        )
        .expect("a string grows");
    }
    text
}

/// The costs in the tables of a document, slow and fast, by the first cell of their row and the number of their column.
fn costs(text: &str) -> BTreeMap<(String, usize), [f64; 2]> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        for (column, cell) in cells.iter().enumerate() {
            let parts = cell.split_once(" / ");
            let numbers = parts.and_then(|(a, b)| Some([a.parse().ok()?, b.parse().ok()?]));
            found.extend(numbers.map(|numbers| ((cells[1].to_owned(), column), numbers)));
        }
    }
    found
}

/// The most that a kernel may cost before somebody is told, if the document has `cost`.
fn allowed(cost: f64) -> f64 {
    cost * 1.05 + 0.05
}

#[test]
fn no_kernel_costs_more_than_the_document_says() {
    let path = format!("{}/benches/apple-caps.md", glimt_lab::ROOT);
    let text = document();
    println!("{text}");
    if std::env::var_os("GLIMT_WRITE").is_some() {
        return std::fs::write(&path, &text).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (written, mut dearer) = (costs(&written), vec![]);
    for (place, now) in costs(&text) {
        match written.get(&place) {
            // A type or a kernel that is new.
            None => println!("{place:?} is not in {path}: GLIMT_WRITE=1 writes it"),
            Some(then) if (0..2).any(|i| now[i] > allowed(then[i])) => {
                dearer.push(format!("{place:?}: {now:?}, not {then:?}"));
            }
            Some(_) => {}
        }
    }
    assert!(written.len() > 100, "{path} has {} costs", written.len());
    assert!(
        dearer.is_empty(),
        "if that is worth it, GLIMT_WRITE=1 writes {path} anew:\n{}",
        dearer.join("\n")
    );
}

#[test]
fn costs_are_read_from_tables() {
    let text = "| type | a | b |\n|---|---|---|\n| Q4_0 | 0.88 / 2.58 | 12 (1.5) |\n0.1 / 0.2";
    let expected = BTreeMap::from([(("Q4_0".to_owned(), 2), [0.88, 2.58])]);
    assert_eq!(costs(text), expected);
}

#[test]
fn a_cap_is_cores_times_lanes_times_clock_over_cycles() {
    let m1 = chip("M1", 8, 1000, 100.0);
    // 8 x 128 x 1e9 / 4 weights of 18 / 32 bytes.
    let cap = m1.cap(GgmlType::Q4_0, Cost::new(4.0, 2.0));
    assert!((cap - 144.0).abs() < 1e-9, "{cap}");
    // Each instruction needs a slot: 4 of the fast pipe and one of the slow one.
    let cap = m1.cap(GgmlType::Q4_0, Cost::new(4.0, 4.0));
    assert!((cap - 115.2).abs() < 1e-9, "{cap}");
}
