//! How long the products of a prompt take in each tile, at the shapes of GLM-4.7-Flash.

mod common;

use common::Bench;
use common::product::{Product, Sizes};
use glimt::engine::Wait;
use glimt::gpu::GpuError;
use glimt::gpu::buffer::{Range, Role};
use glimt::kernels::expert_rows::{GpuExpertRows, TileList, tile_count};
use glimt::kernels::gemm::{Form, GpuExperts, Tile, expert_tiles, tiles};
use std::process::ExitCode;

/// Experts, and where few and small measurements are wanted.
const EXPERTS: [usize; 2] = [64, 8];
const USED: usize = 4;

/// Name, rows, columns, whether there are two weights, whether they are of experts.
const PRODUCTS: [(&str, usize, usize, bool, bool); 7] = [
    ("gate and up of experts", 1536, 2048, true, true),
    ("down of experts", 2048, 1536, false, true),
    ("gate and up", 1536, 2048, true, false),
    ("attn_output", 2048, 5120, false, false),
    ("attn_q_b", 5120, 768, false, false),
    ("attn_q_a", 768, 2048, false, false),
    ("down", 2048, 1536, false, false),
];

fn main() -> ExitCode {
    common::main(run)
}

fn run(bench: &Bench) -> Result<(), GpuError> {
    let counts: &[usize] = if bench.quick { &[32] } else { &[2048, 512] };
    let count = EXPERTS[usize::from(bench.quick)];
    for &tokens in counts {
        for (name, rows, cols, pair, experts) in PRODUCTS {
            let (groups, used) = if experts { (count, USED) } else { (1, 1) };
            let shape = [groups, rows, cols];
            measure(
                bench,
                name,
                Sizes {
                    tokens,
                    shape,
                    pair,
                    used,
                },
            )?;
        }
    }
    Ok(())
}

/// Tells the times of a product in each tile.
fn measure(bench: &Bench, name: &str, sizes: Sizes) -> Result<(), GpuError> {
    let Sizes {
        tokens,
        shape: [groups, rows, cols],
        pair,
        ..
    } = sizes;
    let form = Form::best(&bench.gpu);
    let kernel = match form {
        Form::Matrix(_) => "gemm_coop",
        Form::Float { .. } => "gemm",
    };
    let shape = match groups {
        1 => format!("{name}, {rows}x{cols}, {tokens} tokens"),
        _ => format!("{name}, {groups}x{rows}x{cols}, {tokens} tokens"),
    };
    if !bench.wants(kernel, &shape) {
        return Ok(());
    }
    let product = Product::new(bench, sizes)?;
    let all = if groups > 1 { expert_tiles } else { tiles };
    for &tile in all(form, pair) {
        let list = match groups {
            1 => None,
            _ => Some(list(bench, &product, sizes, tile)?),
        };
        let experts = list.as_ref().map(|list| GpuExperts {
            tiles: list.lists[0].tiles.clone(),
            slots: list.slots.clone(),
            used: list.used,
            height: tile.tokens,
            gather: pair,
            counts: None,
            either: false,
        });
        let us = product.time(bench, &product.call(&bench.gpu, tile, experts))?;
        bench.tell(kernel, &shape, us, product.work(), &format!("{tile:?}"));
        if let Some(list) = list {
            bench.release([&list.ids, &list.slots, &list.counts, &list.lists[0].tiles]);
        }
    }
    product.release(bench);
    Ok(())
}

/// The slots of tokens by expert, whose choice is spread evenly: each expert has about as many tokens.
fn list(
    bench: &Bench,
    product: &Product,
    sizes: Sizes,
    tile: Tile,
) -> Result<GpuExpertRows, GpuError> {
    let Sizes {
        tokens,
        shape: [experts, ..],
        used,
        ..
    } = sizes;
    let mut state = 1u32;
    let of_token = |_| {
        // The linear congruence of Numerical Recipes.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = (state >> 16) as usize % experts;
        (0..used).map(move |k| ((first + experts / used * k) % experts) as u32)
    };
    let ids: Vec<u32> = (0..tokens).flat_map(of_token).collect();
    let count = tile_count(tokens as u32, used as u32, tile.tokens, experts as u32);
    let words = |n: usize| bench.zeros(n as u64 * 4, Role::Words);
    let list = GpuExpertRows {
        ids: Range::whole(&bench.gpu.storage_with("ids", &ids).wait()?),
        experts: experts as u32,
        used: used as u32,
        slots: words(tokens * used)?,
        lists: vec![TileList {
            height: tile.tokens,
            tiles: words(count as usize * 4)?,
        }],
        counts: words(6)?,
    };
    product.time(bench, &list.call())?;
    Ok(list)
}
