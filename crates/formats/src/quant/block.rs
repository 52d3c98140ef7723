//! The common interface of all block formats.

use bytemuck::Pod;
use half::f16;

/// A block of `N` weights as it lies in a GGUF file.
///
/// Implementors are made of bytes only, so that a row can be viewed as blocks at any address.
pub(crate) trait Block<const N: usize>: Pod {
    /// The block's weights in f32, with the operations and the order of operations of ggml-quants.c.
    fn dequantize(&self, out: &mut [f32; N]);
}

/// Dequantises consecutive blocks; the caller has checked the lengths.
pub(crate) fn dequantize_blocks<B: Block<N>, const N: usize>(src: &[u8], dst: &mut [f32]) {
    let blocks: &[B] = bytemuck::cast_slice(src);
    let (rows, _) = dst.as_chunks_mut::<N>();
    for (block, out) in blocks.iter().zip(rows) {
        block.dequantize(out);
    }
}

/// The f16 of two little-endian bytes, widened.
pub(crate) fn widen(half: [u8; 2]) -> f32 {
    f16::from_le_bytes(half).to_f32()
}
