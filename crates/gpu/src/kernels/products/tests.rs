//! Protects the products of the CPU: they are those of f64 where they are exact, and near these where they are quick.

use super::*;
use crate::kernels::linear::rms_norm;
use crate::kernels::testing::{Rng, assert_close, exact_rows, exact_silu, random_weight};
use crate::quant::activation::quantize_activation;
use crate::quant::repack::HALF;
use crate::quant::{GgmlType, dequantize_row};

#[test]
fn plain_product_with_norm_and_residual() {
    let mut rng = Rng::fresh();
    for (ty, rows, cols, n_tokens) in [
        (GgmlType::Q4_K, 301, 512, 3),
        (GgmlType::Q8_0, 5, 96, 1),
        (GgmlType::F32, 64, 32, 17),
    ] {
        let w = random_weight(&mut rng, ty, 1, rows, cols);
        let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
        let residual = rng.normals(n_tokens * rows);
        let mut out = vec![f32::NAN; n_tokens * rows];
        let options = MatvecOptions::contiguous(cols)
            .with_norm(&norm, 1e-6)
            .with_residual(&residual);
        Products::Exact.matvec(&w, &x, n_tokens, options, &mut out);
        for t in 0..n_tokens {
            let input = rms_norm(&x[t * cols..][..cols], &norm, 1e-6);
            let exact: Vec<f64> = exact_rows(&w, 0, &input)
                .iter()
                .zip(&residual[t * rows..])
                .map(|(y, r)| y + f64::from(*r))
                .collect();
            assert_close(&out[t * rows..][..rows], &exact, 1e-12, "token");
        }
    }
}

#[test]
fn each_head_reads_its_own_slice() {
    let mut rng = Rng::fresh();
    // Heads of nope 64 + rope 32: only the first 64 of each 96 are multiplied.
    let (heads, rows, cols, head, n_tokens) = (3, 80, 64, 96, 4);
    let w = random_weight(&mut rng, GgmlType::Q5_0, heads, rows, cols);
    let x = rng.normals(n_tokens * heads * head);
    let mut out = vec![f32::NAN; n_tokens * heads * rows];
    Products::Exact.matvec(
        &w,
        &x,
        n_tokens,
        MatvecOptions::per_group(heads * head, head),
        &mut out,
    );
    for t in 0..n_tokens {
        for h in 0..heads {
            let exact = exact_rows(&w, h, &x[(t * heads + h) * head..][..cols]);
            assert_close(
                &out[(t * heads + h) * rows..][..rows],
                &exact,
                1e-12,
                "head",
            );
        }
    }
}

#[test]
fn a_batch_has_the_bits_of_single_tokens() {
    let mut rng = Rng::fresh();
    let w = random_weight(&mut rng, GgmlType::Q4_0, 1, 130, 288);
    let x = rng.normals(6 * 288);
    let mut batch = vec![0.0; 6 * 130];
    Products::Exact.matvec(&w, &x, 6, MatvecOptions::contiguous(288), &mut batch);
    for t in 0..6 {
        let mut one = vec![0.0; 130];
        Products::Exact.matvec(
            &w,
            &x[t * 288..][..288],
            1,
            MatvecOptions::contiguous(288),
            &mut one,
        );
        assert_eq!(one, batch[t * 130..][..130]);
    }
}

fn exact(gate: &Weight, up: &Weight, expert: usize, x: &[f32]) -> Vec<f64> {
    let gates = exact_rows(gate, expert, x);
    gates
        .iter()
        .zip(exact_rows(up, expert, x))
        .map(|(g, u)| exact_silu(*g) * u)
        .collect()
}

#[test]
fn dense_with_norm() {
    let mut rng = Rng::fresh();
    let (rows, cols, n_tokens) = (150, 256, 3);
    let gate = random_weight(&mut rng, GgmlType::Q4_K, 1, rows, cols);
    let up = random_weight(&mut rng, GgmlType::Q6_K, 1, rows, cols);
    let (x, norm) = (rng.normals(n_tokens * cols), rng.normals(cols));
    let mut out = vec![f32::NAN; n_tokens * rows];
    Products::Exact.gate_up(
        [&gate, &up],
        &x,
        n_tokens,
        Some((&norm, 1e-5)),
        None,
        &mut out,
    );
    for t in 0..n_tokens {
        let input = rms_norm(&x[t * cols..][..cols], &norm, 1e-5);
        assert_close(
            &out[t * rows..][..rows],
            &exact(&gate, &up, 0, &input),
            1e-12,
            "token",
        );
    }
}

#[test]
fn each_slot_uses_its_expert() {
    let mut rng = Rng::fresh();
    let (experts, used, rows, cols, n_tokens) = (8, 3, 70, 96, 5);
    let gate = random_weight(&mut rng, GgmlType::Q4_0, experts, rows, cols);
    let up = random_weight(&mut rng, GgmlType::Q4_0, experts, rows, cols);
    let x = rng.normals(n_tokens * cols);
    let ids: Vec<u32> = (0..n_tokens * used)
        .map(|_| rng.below(experts) as u32)
        .collect();
    let mut out = vec![f32::NAN; n_tokens * used * rows];
    Products::Exact.gate_up([&gate, &up], &x, n_tokens, None, Some(&ids), &mut out);
    for (slot, &id) in ids.iter().enumerate() {
        let expected = exact(&gate, &up, id as usize, &x[slot / used * cols..][..cols]);
        assert_close(&out[slot * rows..][..rows], &expected, 1e-12, "slot");
    }
}

#[test]
fn silu_is_finite_at_the_ends() {
    assert_eq!(silu(-200.0), 0.0);
    assert_eq!(silu(200.0), 200.0);
}

#[test]
fn weighted_sum_of_the_chosen_experts() {
    let mut rng = Rng::fresh();
    for (ty, cols) in [(GgmlType::Q6_K, 256), (GgmlType::Q5_0, 352)] {
        let (experts, used, rows, n_tokens) = (8, 3, 90, 4);
        let down = random_weight(&mut rng, ty, experts, rows, cols);
        let h = rng.normals(n_tokens * used * cols);
        let ids: Vec<u32> = (0..n_tokens * used)
            .map(|_| rng.below(experts) as u32)
            .collect();
        let weights: Vec<f32> = (0..n_tokens * used).map(|_| rng.uniform()).collect();
        let residual = rng.normals(n_tokens * rows);
        let mut out = vec![f32::NAN; n_tokens * rows];
        Products::Exact.moe_down(&down, &h, (&ids, &weights), n_tokens, &residual, &mut out);

        let mut exact: Vec<f64> = residual.iter().map(|r| f64::from(*r)).collect();
        for (slot, (&id, &weight)) in ids.iter().zip(&weights).enumerate() {
            let y = exact_rows(&down, id as usize, &h[slot * cols..][..cols]);
            let sums = &mut exact[slot / used * rows..][..rows];
            sums.iter_mut()
                .zip(y)
                .for_each(|(sum, y)| *sum += f64::from(weight) * y);
        }
        assert_close(&out, &exact, 1e-12, ty.name());
    }
}

/// Deviations that a sum of many rounded values strays by at most: more is less likely than 1 in 10^11.
const DEVIATIONS: f64 = 7.0;
/// The steepest slope of SiLU.
const SLOPE: f64 = 1.1;

/// The exact product of each row of a group with `x`, and how far it strays at most if `x` is rounded to bytes: each value strays evenly by up to
/// half the scale of its 16.
fn rounded(w: &Weight, group: usize, x: &[f32]) -> Vec<[f64; 2]> {
    let scales: Vec<f64> = quantize_activation(x)
        .iter()
        .flat_map(|unit| unit.scales.map(f64::from))
        .collect();
    let mut values = vec![0.0f32; w.cols];
    let row = |row| {
        dequantize_row(w.ty, w.row(group, row), &mut values);
        let (mut product, mut variance) = (0.0, 0.0);
        for (i, (w, x)) in values.iter().zip(x).enumerate() {
            product += f64::from(*w) * f64::from(*x);
            variance += (f64::from(*w) * scales[i / HALF]).powi(2) / 12.0;
        }
        [product, DEVIATIONS * variance.sqrt()]
    };
    (0..w.rows).map(row).collect()
}

/// Fails unless each value is as near to the exact one as it may stray.
#[track_caller]
fn assert_near(found: &[f32], exact: impl IntoIterator<Item = [f64; 2]>, what: &str) {
    let mut count = 0;
    for (found, [exact, strays]) in found.iter().zip(exact) {
        let error = (f64::from(*found) - exact).abs();
        // Beside rounding to bytes the sums are those of f32.
        assert!(
            error <= strays + 1e-5 * exact.abs() + 1e-30,
            "{what}: {found} for {exact}, {strays} at most"
        );
        count += 1;
    }
    assert_eq!(count, found.len(), "{what}");
}

#[test]
fn quick_products_round_activations_alone() {
    let mut rng = Rng::fresh();
    for &ty in GgmlType::ALL {
        // Sums over 2 blocks of 256, over one, and, where blocks are small, over a part of one.
        let cols = ty.block_len().max(32) * [2, 1][rng.below(2)];
        let (experts, used, n_tokens) = (5, 2, 1 + rng.below(20));
        let [gate, up] = [(); 2].map(|()| random_weight(&mut rng, ty, experts, 40, cols));
        let x = rng.normals(n_tokens * cols);
        let ids: Vec<u32> = (0..n_tokens * used)
            .map(|_| rng.below(experts) as u32)
            .collect();
        let norm = vec![1.0; cols];
        let gated = |products: Products| {
            let mut h = vec![f32::NAN; ids.len() * 40];
            let norm = Some((&norm[..], 1e-5));
            products.gate_up([&gate, &up], &x, n_tokens, norm, Some(&ids), &mut h);
            h
        };
        let multiplied = |products: Products| {
            let mut y = vec![f32::NAN; n_tokens * experts * 40];
            let options = MatvecOptions::contiguous(cols);
            products.matvec(&gate, &x, n_tokens, options, &mut y);
            y
        };
        if !takes_bytes(ty) {
            for made in [&gated as &dyn Fn(Products) -> Vec<f32>, &multiplied] {
                let exact = made(Products::Exact).into_iter().map(f64::from);
                let exact: Vec<f64> = exact.collect();
                assert_close(&made(Products::Quick), &exact, 1e-11, ty.name());
            }
            continue;
        }
        // The relative error has no limit: it is that of a small sum of large products. So it is compared with these.
        let tokens = || x.chunks(cols);
        let exact = tokens().flat_map(|x| (0..experts).flat_map(|e| rounded(&gate, e, x)));
        assert_near(&multiplied(Products::Quick), exact, ty.name());
        let chosen = tokens().zip(ids.chunks(used));
        let exact = chosen.flat_map(|(x, ids)| {
            let x = rms_norm(x, &norm, 1e-5);
            let of_one = |id: &u32| {
                let [gates, ups] = [&gate, &up].map(|w| rounded(w, *id as usize, &x));
                let both = gates.into_iter().zip(ups);
                both.map(|([g, off_g], [u, off_u])| {
                    let (silu, off_silu) = (exact_silu(g), SLOPE * off_g);
                    let off = off_silu * u.abs() + off_u * silu.abs() + off_silu * off_u;
                    [silu * u, off]
                })
            };
            ids.iter().flat_map(of_one).collect::<Vec<_>>()
        });
        assert_near(&gated(Products::Quick), exact, ty.name());
    }
}

#[test]
fn projections_and_a_shared_expert_are_the_products_one_by_one() {
    let mut rng = Rng::fresh();
    let (cols, n_tokens) = (288, 1 + rng.below(20));
    let mut weight = |rows| random_weight(&mut rng, GgmlType::Q4_0, 1, rows, cols);
    let (plain, gate, up, down) = (weight(24), weight(40), weight(40), weight(24));
    let down_experts = random_weight(&mut rng, GgmlType::Q4_0, 3, 24, cols);
    let x = rng.normals(n_tokens * cols);
    let norm = vec![0.5; cols];
    let norm = Some((&norm[..], 1e-5));
    let ids: Vec<u32> = (0..n_tokens).map(|_| rng.below(3) as u32).collect();
    let (weights, residual) = (rng.normals(n_tokens), rng.normals(n_tokens * 24));
    for products in [Products::Exact, Products::Quick] {
        let of = [Projection::Plain(&plain), Projection::Gated([&gate, &up])];
        let [y, h] = products.project(of, &x, n_tokens, norm);
        let mut alone = vec![f32::NAN; n_tokens * 24];
        let options = MatvecOptions {
            norm,
            ..MatvecOptions::contiguous(cols)
        };
        products.matvec(&plain, &x, n_tokens, options, &mut alone);
        assert_eq!(y, alone);
        let mut alone = vec![f32::NAN; n_tokens * 40];
        products.gate_up([&gate, &up], &x, n_tokens, norm, None, &mut alone);
        assert_eq!(h, alone);

        let chosen = (&ids[..], &weights[..]);
        let summed = |shared, residual: &[f32]| {
            let mut out = vec![f32::NAN; n_tokens * 24];
            products.moe_down_beside(
                &down_experts,
                shared,
                &x,
                chosen,
                n_tokens,
                residual,
                &mut out,
            );
            out
        };
        let mut added = vec![f32::NAN; n_tokens * 24];
        let options = MatvecOptions::contiguous(cols).with_residual(&residual);
        products.matvec(&down, &x, n_tokens, options, &mut added);
        assert_eq!(summed(Some((&down, &x)), &residual), summed(None, &added));
    }
}

#[test]
fn quick_products_of_a_batch_have_the_bits_of_single_tokens() {
    let mut rng = Rng::fresh();
    let cols = 288;
    let down = random_weight(&mut rng, GgmlType::Q5_0, 4, 70, cols);
    let (h, residual) = (rng.normals(30 * 2 * cols), rng.normals(30 * 70));
    let ids: Vec<u32> = (0..60).map(|_| rng.below(4) as u32).collect();
    let weights: Vec<f32> = (0..60).map(|_| rng.uniform()).collect();
    let summed = |first: usize, tokens: usize| {
        let slots = 2 * first..2 * (first + tokens);
        let chosen = (&ids[slots.clone()], &weights[slots.clone()]);
        let h = &h[slots.start * cols..slots.end * cols];
        let residual = &residual[first * 70..][..tokens * 70];
        let mut out = vec![f32::NAN; tokens * 70];
        Products::Quick.moe_down(&down, h, chosen, tokens, residual, &mut out);
        out
    };
    let all = summed(0, 30);
    for t in 0..30 {
        assert_eq!(summed(t, 1), all[t * 70..][..70]);
    }
}

#[test]
fn integers_are_multiplied_only_where_the_processor_has_code_for_them() {
    let all = Instructions::all();
    assert_eq!(Products::faster_by(all[0]), Products::Exact);
    for instructions in &all[1..] {
        assert_eq!(Products::faster_by(*instructions), Products::Quick);
    }
}
