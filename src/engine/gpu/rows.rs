//! Cache rows on their way to the host, from it, and to another session. The proof of submissions tells that they arrived.

use super::GpuBackend;
use crate::engine::backend::{BackendError, check_rows, check_written};
use std::ops::Range;
use std::sync::Arc;
use wgpu::BufferUsages;

impl GpuBackend {
    /// Bytes of a cache row of one layer.
    fn row(&self) -> u64 {
        let cache = self.recipes.cache().first();
        cache.map_or(0, |cache| cache.size / u64::from(self.recipes.n_ctx()))
    }

    /// [`Backend::read_rows_async`](super::Backend::read_rows_async).
    pub(super) async fn rows(&mut self, positions: Range<usize>) -> Result<Vec<u8>, BackendError> {
        check_rows(positions.end, self.n_ctx)?;
        let row = self.row();
        let of_layer = row * positions.len() as u64;
        let bytes = of_layer * self.recipes.cache().len() as u64;
        if bytes == 0 {
            return Ok(vec![]);
        }
        let Self {
            model,
            recipes,
            proof,
            ..
        } = self;
        let gpu = &model.gpu;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let staging = gpu.buffer_async("cache rows", bytes, usage).await?;
        let first = row * positions.start as u64;
        proof.begin();
        let arrived = proof.prove(gpu, |encoder| {
            for (layer, cache) in recipes.cache().iter().enumerate() {
                let (from, at) = (cache.buffer.made(), cache.offset + first);
                let to = layer as u64 * of_layer;
                encoder.copy_buffer_to_buffer(from, at, &staging, to, of_layer);
            }
        });
        let rows = match arrived.await {
            Ok(()) => gpu.map_read_async(&staging, bytes, None).await,
            Err(error) => Err(error),
        };
        gpu.release_made(&staging);
        Ok(rows?)
    }

    /// [`Backend::write_rows_async`](super::Backend::write_rows_async).
    pub(super) async fn put_rows(&mut self, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        let row = self.row();
        let of_all = row as usize * self.recipes.cache().len();
        let count = check_written(rows.len(), of_all, first, self.n_ctx)?;
        (self.next, self.unknown_history) = (0, true);
        if count == 0 {
            return Ok(());
        }
        let model = Arc::clone(&self.model);
        let of_layer = row as usize * count;
        for (cache, rows) in self.recipes.cache().iter().zip(rows.chunks_exact(of_layer)) {
            let at = cache.offset + row * first as u64;
            model.gpu.queue.write_buffer(cache.buffer.made(), at, rows);
        }
        self.proof.begin();
        Ok(self.proof.prove(&model.gpu, |_| {}).await?)
    }

    /// A session that begins with copies of the first `rows` rows of this one.
    pub(super) async fn branch(&self, rows: usize) -> Result<Self, BackendError> {
        check_rows(rows, self.n_ctx)?;
        let mut branch = Self::new_async(Arc::clone(&self.model), self.n_ctx, self.asked).await?;
        branch.unknown_history = true;
        let bytes = self.row() * rows as u64;
        if bytes == 0 {
            return Ok(branch);
        }
        let Self { recipes, proof, .. } = &mut branch;
        let pairs = self.recipes.cache().iter().zip(recipes.cache());
        proof.begin();
        let copied = proof.prove(self.gpu(), |encoder| {
            for (from, to) in pairs {
                let (source, target) = (from.buffer.made(), to.buffer.made());
                encoder.copy_buffer_to_buffer(source, from.offset, target, to.offset, bytes);
            }
        });
        copied.await?;
        Ok(branch)
    }
}
