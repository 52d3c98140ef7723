//! Cache rows of a sequence on their way to the host, from it, and to another batch. The proof of submissions tells that they arrived.

use super::GpuBatch;
use crate::engine::backend::{BackendError, check_written};
use crate::engine::gpu::random;
use crate::gpu::GpuError;
use crate::kernels::sequences::PAGE;
use std::ops::Range;
use std::sync::Arc;
use wgpu::BufferUsages;

impl GpuBatch {
    /// Fills the first `rows` rows of every layer's cache with random values of sane size.
    pub(in crate::engine::gpu) async fn fill_cache(&mut self, rows: usize) -> Result<(), GpuError> {
        self.layer_rows = rows;
        let of = self.sizes.rows() as u64;
        let model = &*self.model.model;
        random::fill_cache(self.gpu(), (model, &self.recipes), of, rows as u64).await
    }

    /// Bytes of a cache row of one layer.
    fn cache_row(&self) -> u64 {
        let cache = self.recipes.cache().first();
        cache.map_or(0, |cache| cache.size / self.sizes.rows() as u64)
    }

    /// The rows of the cache that hold `positions` of a sequence, as ranges of rows that follow each other, in order.
    fn ranges(&self, sequence: u32, positions: Range<usize>) -> Vec<Range<u64>> {
        let (page, first) = (PAGE as usize, self.place(sequence).first_page as usize);
        let mut ranges = vec![];
        if self.sizes.pages == 0 {
            ranges.push(positions.start as u64..positions.end as u64);
            return ranges;
        }
        let mut at = positions.start;
        while at < positions.end {
            let end = (at / page + 1) * page;
            let end = end.min(positions.end);
            let row = self.pages[first + at / page] as usize * page + at % page;
            ranges.push(row as u64..(row + end - at) as u64);
            at = end;
        }
        ranges
    }

    /// The cache rows of positions of a sequence: layer after layer, and of each layer the rows in order.
    ///
    /// # Errors
    /// [`GpuError::WorkLost`], or what the device reports.
    pub(in crate::engine) async fn rows(
        &mut self,
        sequence: u32,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, GpuError> {
        let row = self.cache_row();
        let bytes = row * positions.len() as u64 * self.recipes.cache().len() as u64;
        if bytes == 0 {
            return Ok(vec![]);
        }
        let ranges = self.ranges(sequence, positions);
        let Self {
            model,
            recipes,
            proof,
            ..
        } = self;
        let gpu = &model.gpu;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging = gpu.buffer("cache rows", bytes, usage).await?;
        proof.begin();
        let arrived = proof.prove(gpu, |encoder| {
            let mut to = 0;
            for cache in recipes.cache() {
                for range in &ranges {
                    let (from, at) = (cache.buffer.made(), cache.offset + row * range.start);
                    let bytes = row * (range.end - range.start);
                    encoder.copy_buffer_to_buffer(from, at, &staging, to, bytes);
                    to += bytes;
                }
            }
        });
        let rows = match arrived.await {
            Ok(()) => gpu.map_read(&staging, bytes, None).await,
            Err(error) => Err(error),
        };
        gpu.release_made(&staging);
        rows
    }

    /// The number of positions from `first` on that these rows are for.
    ///
    /// # Errors
    /// [`BackendError::PartOfARow`], [`BackendError::ContextOverflow`].
    pub(in crate::engine) fn check_put(
        &self,
        first: usize,
        rows: &[u8],
    ) -> Result<usize, BackendError> {
        let of_all = self.cache_row() as usize * self.recipes.cache().len();
        check_written(rows.len(), of_all, first, self.sizes.n_ctx)
    }

    /// Writes the cache rows of the positions of a sequence from `first` on, [checked](Self::check_put), as [`rows`](Self::rows) gave them.
    ///
    /// # Errors
    /// The errors of [`rows`](Self::rows).
    pub(in crate::engine) async fn put_rows(
        &mut self,
        sequence: u32,
        first: usize,
        rows: &[u8],
    ) -> Result<(), GpuError> {
        let row = self.cache_row() as usize;
        let count = rows.len() / (row * self.recipes.cache().len()).max(1);
        if count == 0 {
            return Ok(());
        }
        if sequence == 0 && self.layer_rows >= first {
            self.layer_rows = first + count;
        }
        let model = Arc::clone(&self.model);
        let ranges = self.ranges(sequence, first..first + count);
        let layers = rows.chunks_exact(row * count);
        for (cache, mut rows) in self.recipes.cache().iter().zip(layers) {
            for range in &ranges {
                let (part, rest) = rows.split_at(row * (range.end - range.start) as usize);
                let at = cache.offset + row as u64 * range.start;
                model.gpu.queue.write_buffer(cache.buffer.made(), at, part);
                rows = rest;
            }
        }
        self.proof.begin();
        self.proof.prove(&model.gpu, |_| {}).await
    }

    /// Copies the first `rows` rows of every layer's cache to a batch of the same sizes on the same device.
    ///
    /// # Errors
    /// The errors of [`rows`](Self::rows).
    pub(in crate::engine) async fn copy_to(
        &self,
        to: &mut Self,
        rows: usize,
    ) -> Result<(), GpuError> {
        let bytes = self.cache_row() * rows as u64;
        if bytes == 0 {
            return Ok(());
        }
        to.layer_rows = self.layer_rows.min(rows);
        let Self { recipes, proof, .. } = to;
        let pairs = self.recipes.cache().iter().zip(recipes.cache());
        proof.begin();
        let copied = proof.prove(self.gpu(), |encoder| {
            for (from, to) in pairs {
                let (source, target) = (from.buffer.made(), to.buffer.made());
                encoder.copy_buffer_to_buffer(source, from.offset, target, to.offset, bytes);
            }
        });
        copied.await
    }
}
