//! Drafts of the prediction layer without a step behind them.

use super::{BatchFlight, GpuBatch, Prediction, RING};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use wgpu::CommandEncoder;

impl GpuBatch {
    /// The drafts of a prediction, each the one that the layer finds most likely. The history of the sequence has the ids up to its position.
    ///
    /// # Errors
    /// The error that the device reports.
    pub(in crate::engine::gpu) async fn predict(
        &mut self,
        prediction: Prediction,
    ) -> Result<Vec<u32>, GpuError> {
        let predictions = self.prepare_drafts(&[prediction]).await?;
        let number = self.gpu().reserve_numbers(1).number(0);
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % RING;
        let state = State {
            slot,
            ..State::default()
        };
        let replays = self.replays_of_drafts(&predictions, &[], state);
        let replays: Vec<_> = replays
            .iter()
            .map(|(recording, state)| recording.replay(self.gpu(), state))
            .collect();
        let results = self.results_of(0, &predictions);
        let copy = |encoder: &mut CommandEncoder| self.results.copy(encoder, slot, results);
        let all: Vec<_> = replays.iter().collect();
        let submission = self.model.run(&all, number, copy).await?;
        let flight = BatchFlight {
            slot,
            number,
            drawn: 0,
            rows: None,
            position: None,
            layer_rows: false,
            predictions,
            submission,
        };
        Ok(self.land(flight).await?.drafts)
    }
}
