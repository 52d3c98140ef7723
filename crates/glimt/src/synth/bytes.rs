//! The weights of a planned tensor: random, of sane size, the same for the same seed however the work is divided.

use half::f16;
use rayon::prelude::*;

use super::PlannedTensor;
use crate::quant::{GgmlType, set_scales};
use crate::random::{Random, mix};

/// Weights are made in chunks of this many, each from a generator of its own.
pub const CHUNK_WEIGHTS: usize = 1 << 16;
/// Standard deviation of weights that are stored as floats.
const DEVIATION: f32 = 0.02;

/// Bytes of a chunk of type `ty`.
pub fn chunk_bytes(ty: GgmlType) -> usize {
    CHUNK_WEIGHTS / ty.block_len() * ty.block_bytes()
}

/// Fills `out` with the bytes of `tensor` from chunk number `first_chunk` on, on all threads of the rayon pool.
///
/// # Panics
/// If `out` reaches beyond the tensor's end, or holds part of a block.
pub fn fill(tensor: &PlannedTensor, seed: u64, first_chunk: u64, out: &mut [u8]) {
    let chunk = chunk_bytes(tensor.ty);
    let end = first_chunk * chunk as u64 + out.len() as u64;
    assert!(
        end <= tensor.byte_len(),
        "{} has {} bytes, {end} were asked for",
        tensor.name,
        tensor.byte_len()
    );
    assert!(
        out.len().is_multiple_of(tensor.ty.block_bytes()),
        "{} bytes are no whole blocks",
        out.len()
    );
    if tensor.ones {
        assert_eq!(
            tensor.ty,
            GgmlType::F32,
            "only F32 tensors are filled with ones"
        );
        out.chunks_exact_mut(4)
            .for_each(|weight| weight.copy_from_slice(&1f32.to_le_bytes()));
        return;
    }
    // Seeded by name, so that a layer has the same weights however many layers follow.
    let stream = mix(seed ^ fnv1a(&tensor.name));
    out.par_chunks_mut(chunk)
        .enumerate()
        .for_each(|(index, out)| {
            let mut random = Random::new(mix(stream ^ (first_chunk + index as u64)));
            fill_chunk(tensor.ty, &mut random, out);
        });
}

fn fill_chunk(ty: GgmlType, random: &mut Random, out: &mut [u8]) {
    match ty {
        GgmlType::F32 => {
            for weight in out.chunks_exact_mut(4) {
                weight.copy_from_slice(&(random.normal() * DEVIATION).to_le_bytes());
            }
        }
        GgmlType::F16 => {
            for weight in out.chunks_exact_mut(2) {
                weight.copy_from_slice(&f16::from_f32(random.normal() * DEVIATION).to_le_bytes());
            }
        }
        _ => {
            random.fill(out);
            let bytes = |scale: &f32| f16::from_f32_const(*scale).to_le_bytes();
            let scales = block_scales(ty).iter();
            let scales: Vec<_> = scales.map(|(at, scale)| (*at, bytes(scale))).collect();
            for block in out.chunks_exact_mut(ty.block_bytes()) {
                if scales.is_empty() {
                    set_scales(ty, block, || DEVIATION);
                }
                for (at, scale) in &scales {
                    block[*at..at + 2].copy_from_slice(scale);
                }
            }
        }
    }
}

/// The f16 fields of a block of `ty`, by byte offset. Every other bit of a block may be anything; these scales, and
/// minimums that centre the weights, give a standard deviation of 0.02, of K-quants with minimums 0.036. Other types have the usual scales
/// of random blocks.
fn block_scales(ty: GgmlType) -> &'static [(usize, f32)] {
    match ty {
        GgmlType::Q4_0 => &[(0, 0.0043)],
        GgmlType::Q4_1 => &[(0, 0.0043), (2, -0.032)],
        GgmlType::Q5_0 => &[(0, 0.0022)],
        GgmlType::Q5_1 => &[(0, 0.0022), (2, -0.034)],
        GgmlType::Q8_0 => &[(0, 2.7e-4)],
        GgmlType::Q4_K => &[(0, 1.4e-4), (2, 1.05e-3)],
        GgmlType::Q5_K => &[(0, 7e-5), (2, 1.085e-3)],
        GgmlType::Q6_K => &[(208, 1.5e-5)],
        _ => &[],
    }
}

/// A hash of `text` that never changes: FNV-1a.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize_row;

    const TYPES: [GgmlType; 18] = [
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
        GgmlType::IQ1_S,
        GgmlType::IQ1_M,
        GgmlType::IQ2_XXS,
        GgmlType::IQ2_XS,
        GgmlType::IQ2_S,
        GgmlType::IQ3_XXS,
        GgmlType::IQ3_S,
        GgmlType::MXFP4,
    ];

    fn tensor(ty: GgmlType, weights: u64) -> PlannedTensor {
        PlannedTensor {
            name: "blk.0.test.weight".to_owned(),
            ty,
            dims: vec![256, weights / 256],
            ones: false,
        }
    }

    #[test]
    fn weights_of_every_type_are_centred_and_of_one_size() {
        for ty in TYPES {
            let tensor = tensor(ty, 3 << 16);
            let mut bytes = vec![0; tensor.byte_len() as usize];
            fill(&tensor, 7, 0, &mut bytes);
            let mut weights = vec![0.0; tensor.weights() as usize];
            dequantize_row(ty, &bytes, &mut weights);
            let count = weights.len() as f64;
            let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / count;
            let deviation = (weights
                .iter()
                .map(|&w| (f64::from(w) - mean).powi(2))
                .sum::<f64>()
                / count)
                .sqrt();
            // The values of a Q4_0 block reach one step farther down than up: its mean is half a step below zero.
            assert!(mean.abs() < 0.003, "{}: mean {mean}", ty.name());
            assert!(
                (0.015..0.045).contains(&deviation),
                "{}: deviation {deviation}",
                ty.name()
            );
        }
    }

    #[test]
    fn bytes_depend_on_seed_and_name_and_not_on_pieces_or_threads() {
        for ty in TYPES {
            let tensor = tensor(ty, 4 * CHUNK_WEIGHTS as u64 + 512);
            let whole = |seed| {
                let mut bytes = vec![0; tensor.byte_len() as usize];
                fill(&tensor, seed, 0, &mut bytes);
                bytes
            };
            let expected = whole(1);
            assert_ne!(expected, whole(2));
            let mut pieces = vec![0; expected.len()];
            let two_chunks = 2 * chunk_bytes(ty);
            let one_thread = rayon::ThreadPoolBuilder::new()
                .num_threads(1)
                .build()
                .unwrap();
            one_thread.install(|| {
                for (index, piece) in pieces.chunks_mut(two_chunks).enumerate() {
                    fill(&tensor, 1, 2 * index as u64, piece);
                }
            });
            assert!(pieces == expected, "{}", ty.name());
            let other = PlannedTensor {
                name: "blk.1.test.weight".to_owned(),
                ..tensor
            };
            fill(&other, 1, 0, &mut pieces);
            assert_ne!(pieces, expected);
        }
    }

    #[test]
    fn norms_are_ones() {
        let norm = PlannedTensor {
            name: "n".to_owned(),
            ty: GgmlType::F32,
            dims: vec![5],
            ones: true,
        };
        let mut bytes = [0; 20];
        fill(&norm, 1, 0, &mut bytes);
        assert_eq!(bytes, 1f32.to_le_bytes().repeat(5)[..]);
    }
}
