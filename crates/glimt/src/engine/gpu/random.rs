//! Weights and cache rows that no file holds: made once on the host in a small pool, copied all over the device.
//!
//! A pool holds whole blocks of one type as planes; a tensor's planes are arrays of such blocks, so filling one is copying the
//! pool end to end. Its length shares no large factor with any row, so no two rows of a matrix are alike before some
//! millions of weights, and each tensor begins at another place of it.

use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::memory::{GpuWeight, Piece, write_head};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::CacheType;
use crate::models::Model;
use crate::quant::GgmlType;
use crate::quant::repack::{Planes, UNIT, head, sub_plane_words};
use crate::recipes::Steps;
use crate::synth::{self, PlannedTensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use wgpu::CommandEncoder;

/// Blocks of a pool of blocks of 32 weights: 16 times a prime, so that every plane is whole words of 16 bytes.
const SMALL_BLOCKS: u64 = 16 * 16381;
/// Blocks of a pool of blocks of 256 weights: 16 times a prime, too.
const LARGE_BLOCKS: u64 = 16 * 4093;
/// Bytes of copies after which the device is waited for.
const AT_ONCE: u64 = 1 << 30;
/// Bytes of the pool of cache values: 4 times a prime.
const CACHE_POOL: u64 = 4 * 1_048_573;

/// Fills all planes of `weights` with random blocks of sane size ([`synth::fill`]); `progress` is told the bytes done.
pub(super) async fn fill_weights(
    gpu: &Gpu,
    weights: &[GpuWeight],
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<(), GpuError> {
    let mut pools: HashMap<GgmlType, Pool> = HashMap::new();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let (mut done, mut pending) = (0, 0);
    for weight in weights {
        let pool = match pools.entry(weight.ty) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => place.insert(Pool::new(gpu, weight.ty).await?),
        };
        for piece in &weight.pieces {
            write_head(gpu, weight.ty, &piece.scales.buffer, piece.scales.offset);
            pool.fill(&mut encoder, &weight.name, piece);
        }
        pending += weight.bytes();
        if pending >= AT_ONCE {
            let full = std::mem::replace(
                &mut encoder,
                gpu.device.create_command_encoder(&Default::default()),
            );
            gpu.queue.submit([full.finish()]);
            gpu.done().await?;
            done += std::mem::take(&mut pending);
            progress(done);
        }
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.done().await?;
    progress(done + pending);
    Ok(())
}

/// Fills the first `rows` rows of every layer's cache, which has `of`.
pub(super) async fn fill_cache(
    gpu: &Gpu,
    (model, recipes): (&dyn Model, &Steps),
    of: u64,
    rows: u64,
) -> Result<(), GpuError> {
    use super::super::random::cache_values;
    let row = recipes.cache().first().map_or(1, |range| range.size / of);
    // Rows with codes must stay whole.
    let (values, step) = match model.cache_type() {
        CacheType::F16 => (cache_values(CACHE_POOL as usize / 2), 4),
        CacheType::Q8_0 => {
            let rows = CACHE_POOL / row;
            (model.cache_rows(rows as usize, cache_values), row)
        }
    };
    let pool_bytes = values.len() as u64 * 2;
    let pool = gpu.storage_with("random cache rows", &values).await?;
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    for (layer, range) in recipes.cache().iter().enumerate() {
        let start = layer as u64 * step * 65_537 % pool_bytes;
        let bytes = row * rows;
        let to = Range {
            size: bytes,
            ..range.clone()
        };
        tile(&mut encoder, &pool, 0..pool_bytes, start, &to);
    }
    gpu.queue.submit([encoder.finish()]);
    gpu.done().await
}

/// Random blocks of one type as planes.
struct Pool {
    blocks: u64,
    quants: Buffer,
    scales: Buffer,
    /// Bytes of the scales before the records.
    head: u64,
    /// Bytes of the scales before the sub-plane.
    records: u64,
}

impl Pool {
    async fn new(gpu: &Gpu, ty: GgmlType) -> Result<Self, GpuError> {
        let block = ty.block_len().max(UNIT);
        let blocks = if block > UNIT {
            LARGE_BLOCKS
        } else {
            SMALL_BLOCKS
        };
        let weights = blocks * block as u64;
        let tensor = PlannedTensor {
            name: "pool".to_owned(),
            ty,
            dims: vec![weights, 1],
            ones: false,
        };
        let mut bytes = vec![0; tensor.byte_len() as usize];
        synth::fill(&tensor, 1, 0, &mut bytes);
        let planes = Planes::new(ty, 1, weights as usize, &bytes);
        Ok(Self {
            blocks,
            quants: gpu.storage_with("random quants", &planes.quants).await?,
            scales: gpu.storage_with("random scales", &planes.scales).await?,
            head: head(ty).len() as u64,
            records: sub_plane_words(ty, 1, weights as usize) as u64 * 4,
        })
    }

    /// Fills the planes of `piece` from a place of the pool that the tensor's name and the piece choose.
    fn fill(&self, encoder: &mut CommandEncoder, name: &str, piece: &Piece) {
        let mut hasher = DefaultHasher::new();
        (name, piece.first_row).hash(&mut hasher);
        // Whole words of every plane.
        let first = hasher.finish() % (self.blocks / 16) * 16;
        let copy = |encoder: &mut _, from: &Buffer, region: std::ops::Range<u64>, to: Range| {
            let block = (region.end - region.start) / self.blocks;
            tile(encoder, from, region, first * block, &to);
        };
        copy(
            encoder,
            &self.quants,
            0..self.quants.size(),
            piece.quants.clone(),
        );
        let scales = &piece.scales;
        let part = |region: std::ops::Range<u64>| Range {
            offset: scales.offset + region.start,
            size: region.end - region.start,
            ..scales.clone()
        };
        let records = u64::from(piece.sub) * 4;
        let from = self.head.max(self.records);
        if records > self.head {
            let to = part(self.head..records);
            copy(encoder, &self.scales, self.head..self.records, to);
        }
        copy(
            encoder,
            &self.scales,
            from..self.scales.size(),
            part(self.head.max(records)..scales.size),
        );
    }
}

/// Copies `region` of `from` into `to`, again and again, beginning `start` bytes into the region.
fn tile(
    encoder: &mut CommandEncoder,
    from: &Buffer,
    region: std::ops::Range<u64>,
    start: u64,
    to: &Range,
) {
    let (mut at, mut done) = (region.start + start, 0);
    while done < to.size {
        let bytes = (region.end - at).min(to.size - done);
        encoder.copy_buffer_to_buffer(from.made(), at, to.buffer.made(), to.offset + done, bytes);
        done += bytes;
        at = region.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::buffer::Role;
    use crate::gpu::memory::Loader;
    use crate::gpu::testing::gpus;
    use crate::gpu::wait::Wait;
    use crate::gpu::wait::complete;
    use crate::models::mla::Model;
    use crate::quant::dequantize_row;
    use crate::quant::repack::unpack;
    use crate::synth::{ModelName, Recipe, SynthOptions};
    use crate::testing::drawn;
    use std::sync::Arc;

    #[test]
    fn planes_hold_weights_of_the_size_that_a_file_has() {
        let gpu = &gpus()[0];
        for &recipe in drawn(&Recipe::ALL, 7) {
            let gguf =
                synth::without_matrices(ModelName::TinyDs2, recipe, &SynthOptions::default())
                    .unwrap();
            let model = Model::load(Arc::new(gguf)).unwrap();
            let crate::model::Ffn::Moe(moe) = &model.layers[1].ffn else {
                panic!("layer 1 has experts");
            };
            let (down_exps, ffn_gate_inp) = (&moe.experts.down, &moe.ffn_gate_inp);
            let attn_k_b = &model.layers[1].attention.attn_k_b;
            let mut loader = Loader::new(gpu);
            for weight in [&model.token_embd, down_exps, ffn_gate_inp, attn_k_b] {
                loader.add(weight).unwrap();
            }
            let weights = loader.load(gpu, &mut |_| {}).wait().unwrap();
            let mut told = 0;
            let progress = &mut |done| told = done;
            complete(fill_weights(gpu, &weights, progress)).unwrap();
            assert_eq!(told, weights.iter().map(GpuWeight::bytes).sum::<u64>());
            for weight in &weights {
                let (rows, cols) = (weight.total_rows() as usize, weight.cols as usize);
                let plane = |r: &Range| gpu.read::<u8>(&r.buffer, r.offset, r.size).wait().unwrap();
                let piece = &weight.pieces[0];
                let bytes = unpack(
                    weight.ty,
                    rows,
                    cols,
                    &plane(&piece.quants),
                    &plane(&piece.scales),
                );
                let mut values = vec![0.0; rows * cols];
                dequantize_row(weight.ty, &bytes, &mut values);
                let deviation =
                    (values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32).sqrt();
                assert!(
                    (0.015..0.045).contains(&deviation),
                    "{}: {deviation}",
                    weight.name
                );
                assert_ne!(values[..cols], values[cols..2 * cols], "{}", weight.name);
            }
        }
    }

    #[test]
    fn a_tile_begins_inside_and_goes_round() {
        let gpu = &gpus()[0];
        let pool: Vec<u32> = (0..8).collect();
        let pool = gpu.storage_with("pool", &pool).wait().unwrap();
        let to = gpu.storage_with("to", &[99u32; 16]).wait().unwrap();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let range = Range {
            buffer: to.clone(),
            offset: 4,
            size: 40,
            role: Role::Words,
        };
        tile(&mut encoder, &pool, 8..24, 8, &range);
        gpu.queue.submit([encoder.finish()]);
        let words: Vec<u32> = gpu.read(&to, 0, 64).wait().unwrap();
        assert_eq!(
            words,
            [99, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5, 99, 99, 99, 99, 99]
        );
    }
}
