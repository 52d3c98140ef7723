//! Protects the quick products: every type, by all instruction sets that this processor has.

use super::*;
use crate::quant::{dequantize_row, quantize_row};
use crate::testing::{Rng, rounds};

/// Rows of random weights of a type, and their values.
fn weights(random: &mut Rng, ty: GgmlType, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let values = random.normals(rows * cols);
    let mut bytes = vec![];
    for row in values.chunks(cols) {
        let mut quantised = vec![0; ty.row_bytes(cols).expect("whole blocks")];
        quantize_row(ty, row, &mut quantised);
        bytes.extend(quantised);
    }
    // Codes that quantising seldom gives, such as -128 of Q8_0. The scales stay: others may be no numbers.
    if ty == GgmlType::Q8_0 {
        for block in bytes.chunks_mut(34) {
            block[2..].fill_with(|| random.below(256) as u8);
        }
    }
    // Its two smallest powers are below the normal floats. Beside other blocks their products are nothing.
    if ty == GgmlType::MXFP4 {
        for row in bytes.chunks_mut(ty.row_bytes(cols).expect("whole blocks")) {
            for block in row[17..].chunks_mut(17) {
                if random.below(4) == 0 {
                    block[0] = random.below(2) as u8;
                }
            }
        }
    }
    let mut exact = vec![0.0; rows * cols];
    for (row, out) in bytes.chunks(bytes.len() / rows).zip(exact.chunks_mut(cols)) {
        dequantize_row(ty, row, out);
    }
    (bytes, exact)
}

/// Rows of activations with a few large values, as bytes.
fn activations(
    random: &mut Rng,
    set: Instructions,
    count: usize,
    cols: usize,
) -> (Vec<f32>, Vec<ByteBlock>) {
    let mut x = random.normals(count * cols);
    for _ in 0..count * cols / 40 {
        let place = random.below(x.len());
        x[place] *= 30.0;
    }
    let mut bytes = vec![ByteBlock::ZERO; count * byte_blocks(cols)];
    for (x, to) in x.chunks(cols).zip(bytes.chunks_mut(byte_blocks(cols))) {
        set.quantize(x, to);
    }
    (x, bytes)
}

fn inputs<'a>(x: &'a [f32], bytes: &'a [ByteBlock], cols: usize) -> Vec<Input<'a>> {
    let bytes = bytes.chunks(byte_blocks(cols));
    let rows = x.chunks(cols).zip(bytes);
    rows.map(|(floats, bytes)| Input { floats, bytes })
        .collect()
}

/// (inputs, rows) products.
fn multiplied(set: Instructions, rows: Rows<'_>, inputs: &[Input<'_>]) -> Vec<f32> {
    let count = rows.bytes.len() / rows.ty.row_bytes(rows.cols).expect("whole blocks");
    let mut out = vec![f32::NAN; inputs.len() * count];
    let mut parts: Vec<&mut [f32]> = out.chunks_mut(count).collect();
    set.multiply(rows, inputs, &mut parts);
    out
}

/// (inputs, rows) products of inputs side by side.
fn multiplied_abreast(
    random: &mut Rng,
    set: Instructions,
    rows: Rows<'_>,
    inputs: &[Input<'_>],
) -> Vec<f32> {
    let count = rows.bytes.len() / rows.ty.row_bytes(rows.cols).expect("whole blocks");
    let mut out = vec![f32::NAN; inputs.len() * count];
    let mut parts: Vec<&mut [f32]> = out.chunks_mut(count).collect();
    let blocks: Vec<&[ByteBlock]> = inputs.iter().map(|input| input.bytes).collect();
    let abreast = blocks.chunks(1 + random.below(Abreast::WIDTH));
    let abreast: Vec<Abreast> = abreast.map(|some| Abreast::new(rows.cols, some)).collect();
    set.multiply_abreast(rows, &abreast, &mut parts);
    out
}

/// The variable that names the fastest set of a processor that is known, such as an emulated one.
const EXPECTED: &str = "GLIMT_TEST_INSTRUCTIONS";

#[test]
fn the_fastest_set_is_that_of_a_processor_that_is_known() {
    let best = Instructions::best().name();
    match std::env::var(EXPECTED) {
        Ok(expected) => assert_eq!(best, expected),
        Err(_) => eprintln!("not compared: {EXPECTED} is not set, and this processor has {best}"),
    }
}

#[test]
fn all_sets_multiply_what_the_bytes_stand_for() {
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        for &ty in GgmlType::ALL {
            for _ in 0..rounds(1) {
                let block = ty.block_len().max(32);
                let cols = block * (1 + random.below(2048 / block));
                let (count, rows) = (1 + random.below(2 * 8), 1 + random.below(5));
                let (bytes, exact) = weights(&mut random, ty, rows, cols);
                let (x, quantised) = activations(&mut random, set, count, cols);
                let inputs = inputs(&x, &quantised, cols);
                let found = multiplied(
                    set,
                    Rows {
                        ty,
                        cols,
                        bytes: &bytes,
                    },
                    &inputs,
                );
                for (i, input) in inputs.iter().enumerate() {
                    let bytes: Vec<f32> = input.bytes.iter().flat_map(ByteBlock::values).collect();
                    let stands_for = if takes_bytes(ty) {
                        &bytes
                    } else {
                        input.floats
                    };
                    for r in 0..rows {
                        let row = &exact[r * cols..][..cols];
                        let (mut sum, mut size) = (0.0, 0.0);
                        for (w, x) in row.chunks(16).zip(stands_for.chunks(16)) {
                            // Scale times code, and the offset, are as large as the largest of 16 weights is.
                            let largest = w.iter().fold(0.0f32, |max, w| max.max(w.abs()));
                            for (w, x) in w.iter().zip(x) {
                                sum += f64::from(*w) * f64::from(*x);
                                size += f64::from(largest) * f64::from(x.abs());
                            }
                        }
                        // A few roundings of 2^-24 of terms of this size.
                        let found = f64::from(found[i * rows + r]);
                        let error = (found - sum).abs();
                        assert!(
                            error <= 1e-6 * size,
                            "{} {ty} {cols}: {found} for {sum} of {size}",
                            set.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_have_the_same_bits_among_others() {
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        for &ty in GgmlType::ALL {
            let block = ty.block_len().max(32);
            let cols = block * (1 + random.below(768 / block));
            let (bytes, _) = weights(&mut random, ty, 9, cols);
            let (x, quantised) = activations(&mut random, set, 11, cols);
            let inputs = inputs(&x, &quantised, cols);
            let all = multiplied(
                set,
                Rows {
                    ty,
                    cols,
                    bytes: &bytes,
                },
                &inputs,
            );
            if takes_bytes(ty) {
                let rows = Rows {
                    ty,
                    cols,
                    bytes: &bytes,
                };
                let abreast = multiplied_abreast(&mut random, set, rows, &inputs);
                assert_eq!(abreast, all, "{} {ty} {cols} abreast", set.name());
            }
            let (row, input) = (random.below(9), random.below(11));
            let row_bytes = bytes.len() / 9;
            let one = Rows {
                ty,
                cols,
                bytes: &bytes[row * row_bytes..][..row_bytes],
            };
            let one = multiplied(set, one, &inputs[input..input + 1]);
            assert_eq!(
                one[0].to_bits(),
                all[input * 9 + row].to_bits(),
                "{} {ty}",
                set.name()
            );
        }
    }
}

#[test]
fn rows_in_planes_have_the_products_of_their_blocks() {
    use crate::quant::repack::{Planes, sections};
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        for &ty in GgmlType::ALL {
            // Several runs of blocks, and a row in the middle to begin with.
            let (rows, cols) = (37, ty.block_len().max(32) * (1 + random.below(9)));
            let (bytes, _) = weights(&mut random, ty, rows, cols);
            let (x, quantised) = activations(&mut random, set, 1, cols);
            let inputs = inputs(&x, &quantised, cols);
            let whole = Rows {
                ty,
                cols,
                bytes: &bytes,
            };
            let expected = multiplied(set, whole, &inputs);
            let planes = Planes::new(ty, rows, cols, &bytes);
            let at = sections(ty, rows, cols, 16..rows);
            let mut found = vec![f32::NAN; rows - 16];
            let rows = PlaneRows {
                ty,
                cols,
                planes: [
                    &planes.quants[at.quants],
                    &planes.scales[at.records],
                    &planes.scales[at.subs],
                ],
            };
            set.multiply_planes(rows, inputs[0], &mut found);
            for (found, expected) in found.iter().zip(&expected[16..]) {
                let (found, expected) = (found.to_bits(), expected.to_bits());
                assert_eq!(found, expected, "{} {ty} {cols}", set.name());
            }
        }
    }
}

#[test]
fn all_sets_round_activations_alike_to_half_a_scale() {
    let mut random = Rng::fresh();
    let mut first: Option<Vec<f32>> = None;
    let x = random.normals(288);
    for set in Instructions::all() {
        let mut blocks = [ByteBlock::ZERO; 2];
        set.quantize(&x, &mut blocks);
        let values: Vec<f32> = blocks.iter().flat_map(ByteBlock::values).collect();
        for (i, (x, found)) in x.iter().zip(&values).enumerate() {
            let scale = blocks[i / 256].scales[i % 256 / 16];
            assert!((x - found).abs() <= 0.501 * scale, "{i}");
        }
        assert!(values[288..].iter().all(|v| *v == 0.0));
        assert_eq!(
            first.get_or_insert(values.clone()),
            &values,
            "{}",
            set.name()
        );
    }
}

#[test]
fn a_value_that_is_no_number_makes_all_products_none() {
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        for fault in [f32::NAN, f32::INFINITY] {
            let (bytes, _) = weights(&mut random, GgmlType::Q4_0, 2, 64);
            let mut x = random.normals(64);
            x[random.below(64)] = fault;
            let mut blocks = [ByteBlock::ZERO];
            set.quantize(&x, &mut blocks);
            let input = Input {
                floats: &x,
                bytes: &blocks,
            };
            let rows = Rows {
                ty: GgmlType::Q4_0,
                cols: 64,
                bytes: &bytes,
            };
            let found = multiplied(set, rows, &[input]);
            assert!(found.iter().all(|y| !y.is_finite()), "{}", set.name());
        }
    }
}

#[test]
fn rows_that_lie_apart_are_multiplied_and_added_by_their_weights() {
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        let (stride, len) = (100, 32 * (1 + random.below(3)));
        let (count, outputs) = (1 + random.below(30), 1 + random.below(9));
        let rows = random.normals((count - 1) * stride + len);
        let rows: Vec<half::f16> = rows.into_iter().map(half::f16::from_f32).collect();
        let apart = Apart {
            values: &rows,
            stride,
        };

        let weights: Vec<Vec<f32>> = (0..outputs).map(|_| random.normals(count)).collect();
        let weights: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        let mut sums = vec![f32::NAN; outputs * len];
        let mut parts: Vec<&mut [f32]> = sums.chunks_mut(len).collect();
        set.add_rows(apart, &weights, &mut parts);
        for (i, found) in sums.iter().enumerate() {
            let terms = (0..count)
                .map(|r| f64::from(weights[i / len][r]) * rows[r * stride + i % len].to_f64());
            let sum: f64 = terms.sum();
            assert!(
                (f64::from(*found) - sum).abs() < 1e-4,
                "{}: {found} for {sum}",
                set.name()
            );
        }

        let x = random.normals(outputs * len);
        let inputs = x.chunks(len).map(|floats| Input { floats, bytes: &[] });
        let inputs: Vec<Input<'_>> = inputs.collect();
        let beside: Vec<half::f16> = (rows.chunks(stride).flat_map(|row| &row[..len]))
            .copied()
            .collect();
        let beside = Rows {
            ty: GgmlType::F16,
            cols: len,
            bytes: bytemuck::cast_slice(&beside),
        };
        let expected = multiplied(set, beside, &inputs);
        let mut out = vec![f32::NAN; outputs * count];
        let mut parts: Vec<&mut [f32]> = out.chunks_mut(count).collect();
        set.multiply_apart(apart, &inputs, &mut parts);
        assert_eq!(out, expected, "{}", set.name());
    }
}

#[test]
fn gates_and_weights_are_those_of_exact_exponentials() {
    let mut random = Rng::fresh();
    for set in Instructions::all() {
        let n = 1 + random.below(70);
        let mut gate: Vec<f32> = random.normals(n).iter().map(|x| 20.0 * x).collect();
        gate[0] = -200.0;
        let (given, up) = (gate.clone(), random.normals(n));
        set.silu_times(&mut gate, &up);
        for ((x, up), found) in given.iter().zip(&up).zip(&gate) {
            let (x, up) = (f64::from(*x), f64::from(*up));
            let expected = x / (1.0 + (-x).exp()) * up;
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error <= 1e-6 * expected.abs() + 1e-30,
                "{}: {found} for {expected}",
                set.name()
            );
        }

        let mut weights = given.clone();
        let [most, sum] = set.exponentials(&mut weights, 0.3);
        let largest = given.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(most, 0.3 * largest, "{}", set.name());
        let exponential = |x: &f32| (0.3 * (f64::from(*x) - f64::from(largest))).exp();
        let all: f64 = given.iter().map(exponential).sum();
        let error = (f64::from(sum) - all).abs();
        assert!(error <= 1e-6 * all, "{}: {sum} for {all}", set.name());
        for (x, found) in given.iter().zip(&weights) {
            let expected = exponential(x);
            assert!(
                (f64::from(*found) - expected).abs() <= 1e-5 * expected + 1e-30,
                "{}: {found} for {expected}",
                set.name()
            );
        }
        let mut none = vec![1.0, f32::NAN, 2.0];
        let [_, sum] = set.exponentials(&mut none, 1.0);
        assert!(sum.is_nan(), "{}: {none:?}", set.name());
        assert_eq!(set.exponentials(&mut [], 1.0), [f32::NEG_INFINITY, 0.0]);
    }
}

#[test]
#[should_panic(expected = "outputs of 2 rows")]
fn an_output_of_another_length_is_noticed() {
    let x = [0.0; 32];
    let input = Input {
        floats: &x,
        bytes: &[],
    };
    let rows = Rows {
        ty: GgmlType::F16,
        cols: 32,
        bytes: &[0; 128],
    };
    let out: &mut [f32] = &mut [0.0; 3];
    Instructions::best().multiply(rows, &[input], &mut [out]);
}
