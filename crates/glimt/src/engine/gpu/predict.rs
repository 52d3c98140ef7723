//! Drafts of the prediction layer for tokens that the host chooses: in a submission of their own, since the host sees them before their step.

use super::GpuBackend;
use crate::engine::backend::BackendError;

impl GpuBackend {
    /// [`Backend::predict`](crate::engine::backend::Backend::predict).
    pub(super) async fn predict_behind(
        &mut self,
        context: &[u32],
        number: usize,
    ) -> Result<Vec<u32>, BackendError> {
        let number = number.min(self.batch.recipes.predicts());
        let Some(last) = context.len().checked_sub(1).filter(|_| number > 0) else {
            return Ok(vec![]);
        };
        // Steps go on from the last token, whose id nobody has told the device of yet.
        let known = match std::mem::take(&mut self.unknown_history) {
            true => 0,
            false => last,
        };
        self.batch.write_ids(0, known, &context[known..]);
        let prediction = self.prediction(last, number);
        let drafts = self.batch.predict(prediction).await?;
        self.batch.layer_rows = last + 1;
        Ok(drafts)
    }
}
