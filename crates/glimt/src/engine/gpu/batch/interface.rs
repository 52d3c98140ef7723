//! A batch on a GPU behind the interface that all devices have.

use std::ops::Range;
use web_time::Duration;

use super::{BATCHES_IN_FLIGHT, GpuBatch};
use crate::engine::backend::{Answer, OnPrompt, Touch};
use crate::engine::batch::{Batch, BatchLanding, BatchStep, BatchToken};
use crate::recipes::BatchSizes;

impl Batch for GpuBatch {
    fn sizes(&self) -> BatchSizes {
        GpuBatch::sizes(self)
    }

    fn in_flight(&self) -> usize {
        BATCHES_IN_FLIGHT
    }

    fn predicts(&self) -> usize {
        self.recipes.predicts()
    }

    fn as_one(&self) -> usize {
        let most = match self.recipes.several_equal_one(self.gpu()) {
            true => self.recipes.as_one(),
            false => 1,
        };
        // A step is compiled for more tokens than it may have.
        let fits = |tokens: &u32| self.sizes.class(*tokens) <= most;
        (1..=most).rev().find(fits).unwrap_or(1) as usize
    }

    fn longest_run(&self) -> Option<usize> {
        GpuBatch::longest_run(self)
    }

    fn write_ids(&mut self, sequence: u32, position: usize, ids: &[u32]) {
        GpuBatch::write_ids(self, sequence, position, ids);
    }

    fn write_pages(&mut self, sequence: u32, first: usize, pages: &[u32]) {
        GpuBatch::write_pages(self, sequence, first, pages);
    }

    fn copy_rows(&mut self, from: u32, to: u32, rows: u32) {
        GpuBatch::copy_rows(self, from, to, rows);
    }

    fn prepare_all(&mut self) -> Answer<'_, ()> {
        Box::pin(async move { Ok(GpuBatch::prepare_all(self).await?) })
    }

    fn warm_up<'a>(
        &'a mut self,
        most: Duration,
        told: &'a mut (dyn FnMut(usize, usize) + Send),
    ) -> Answer<'a, ()> {
        Box::pin(async move { Ok(GpuBatch::warm_up(self, most, told).await?) })
    }

    fn warm(&self) -> Option<Touch> {
        GpuBatch::warm(self)
    }

    fn submit<'a>(&'a mut self, step: BatchStep<'a>) -> Answer<'a, ()> {
        Box::pin(async move {
            let flight = GpuBatch::submit(self, step).await?;
            self.flights.push_back(flight);
            Ok(())
        })
    }

    fn encode_ahead(&mut self, tokens: &[BatchToken], drafts: usize, biased: bool) {
        GpuBatch::encode_ahead(self, tokens, drafts, biased);
    }

    fn land<'a>(&'a mut self, _: &'a mut OnPrompt<'_>) -> Answer<'a, Option<BatchLanding>> {
        Box::pin(async move {
            // It stays the oldest one where this future is dropped.
            let Some(flight) = self.flights.front().cloned() else {
                return Ok(Some(BatchLanding::default()));
            };
            let landing = GpuBatch::land(self, flight).await;
            self.flights.pop_front();
            Ok(Some(landing?))
        })
    }

    fn take_back(&mut self, logits: Vec<f32>) {
        GpuBatch::take_back(self, logits);
    }

    fn rows(&mut self, sequence: u32, positions: Range<usize>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move { Ok(GpuBatch::rows(self, sequence, positions).await?) })
    }

    fn put_rows<'a>(&'a mut self, sequence: u32, first: usize, rows: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move {
            self.check_put(first, rows)?;
            Ok(GpuBatch::put_rows(self, sequence, first, rows).await?)
        })
    }
}
