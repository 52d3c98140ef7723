//! Random blocks of a given size: of a block almost every pattern of bits is valid, and its scales alone decide how large its weights are.

use half::f16;

use super::iq1::Iq1M;
use super::mxfp4::power;
use super::types::GgmlType;

/// Byte offset of each f16 in a block, and what it is for weights of size 1 (ggml-common.h); none for float types and those whose scale
/// is no f16 of its own.
pub const fn f16_fields(ty: GgmlType) -> &'static [(usize, f32)] {
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => &[],
        GgmlType::Q4_0 => &[(0, 0.2)],
        GgmlType::Q4_1 => &[(0, 0.2), (2, -1.5)],
        GgmlType::Q5_0 => &[(0, 0.1)],
        GgmlType::Q5_1 => &[(0, 0.1), (2, -1.6)],
        GgmlType::Q8_0 => &[(0, 0.013)],
        GgmlType::Q2_K => &[(80, 0.1), (82, 0.15)],
        GgmlType::Q3_K => &[(108, 0.02)],
        GgmlType::Q4_K => &[(0, 0.006), (2, 0.045)],
        GgmlType::Q5_K => &[(0, 0.003), (2, 0.045)],
        GgmlType::Q6_K => &[(208, 7e-4)],
        GgmlType::IQ1_S => &[(0, 0.14)],
        GgmlType::IQ2_XXS => &[(0, 0.019)],
        GgmlType::IQ2_XS | GgmlType::IQ2_S => &[(0, 0.018)],
        GgmlType::IQ3_XXS | GgmlType::IQ3_S => &[(0, 0.007)],
        GgmlType::IQ4_NL => &[(0, 0.015)],
        GgmlType::IQ4_XS => &[(0, 8e-4)],
        GgmlType::IQ1_M | GgmlType::MXFP4 => &[],
    }
}

/// Writes the scales of a block, of which each is a `size` times what it is for weights of size 1.
///
/// # Panics
/// If `block` is no block of this type.
pub fn set_scales(ty: GgmlType, block: &mut [u8], mut size: impl FnMut() -> f32) {
    assert_eq!(block.len(), ty.block_bytes(), "bytes of a block of {ty}");
    for &(offset, step) in f16_fields(ty) {
        block[offset..offset + 2].copy_from_slice(&f16::from_f32(step * size()).to_le_bytes());
    }
    match ty {
        GgmlType::IQ1_M => {
            let block: &mut Iq1M = bytemuck::from_bytes_mut(block);
            block.set_d(f16::from_f32(0.14 * size()).to_le_bytes());
        }
        GgmlType::MXFP4 => {
            let wanted = 0.17 * size();
            let off = |e: &u8| (power(*e).log2() - wanted.log2()).abs();
            // Powers that neither vanish nor overflow.
            block[0] = (2..250)
                .min_by(|a, b| off(a).total_cmp(&off(b)))
                .unwrap_or_default();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantize_row;
    use crate::testing::Rng;

    #[test]
    fn random_blocks_have_the_size_that_is_asked_for() {
        let mut random = Rng::fresh();
        for &ty in GgmlType::ALL.iter().filter(|ty| ty.block_len() > 1) {
            let count = 1 << 14;
            let mut bytes = random.bytes(ty.row_bytes(count).expect("whole blocks"));
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                set_scales(ty, block, || 0.02);
            }
            let mut weights = vec![0.0; count];
            dequantize_row(ty, &bytes, &mut weights);
            let square = weights.iter().map(|w| w * w).sum::<f32>() / count as f32;
            let size = square.sqrt() / 0.02;
            // K-quants with minimums lie to one side of zero.
            assert!((0.8..2.5).contains(&size), "{ty}: {size}");
        }
    }
}
