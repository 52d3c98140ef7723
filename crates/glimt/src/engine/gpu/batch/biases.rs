//! The biases of a step's logits, as the device has them.

use crate::gpu::Gpu;
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::kernels::logit_bias::{self, Biases, NONE, Row};

/// A row for each choice of a step.
pub(super) struct BiasRows {
    /// The biases, (choices, [`MOST`](logit_bias::MOST)) pairs.
    pub(super) range: Range,
    /// The rows that the device has, so that only new ones are written.
    known: Vec<Row>,
}

impl BiasRows {
    /// The rows of `rows` choices, without biases.
    pub(super) async fn new(gpu: &Gpu, rows: u32) -> Result<Self, GpuError> {
        let range = Range::whole(&logit_bias::buffer(rows));
        gpu.realise(&range.buffer).await?;
        Ok(Self {
            range,
            known: vec![NONE; rows as usize],
        })
    }

    /// Writes those of the first `drawn` choices, of which those behind the end of `biases` have none, for the next step. Whether there are any.
    pub(super) fn write(&mut self, gpu: &Gpu, drawn: usize, biases: &[Biases]) -> bool {
        if biases.iter().all(Biases::is_empty) {
            return false;
        }
        let mut news = 0..0;
        for (i, known) in self.known[..drawn].iter_mut().enumerate() {
            let row = biases.get(i).map_or(NONE, Biases::row);
            if *known != row {
                *known = row;
                let first = if news.is_empty() { i } else { news.start };
                news = first..i + 1;
            }
        }
        if !news.is_empty() {
            let offset = self.range.offset + (news.start * size_of::<Row>()) as u64;
            let bytes = bytemuck::cast_slice(self.known[news].as_flattened().as_flattened());
            let buffer = self.range.buffer.made();
            gpu.queue.write_buffer(buffer, offset, bytes);
        }
        true
    }
}
