//! Steps of one sequence or of several on their way to the device, part by part where the host answers them.

use super::answered::Asked;
use super::model::GpuModel;
use crate::gpu::GpuError;
use crate::gpu::record::{Replay, encode_all};
use wgpu::{CommandEncoder, SubmissionIndex};

impl GpuModel {
    /// Runs `replays` one behind the other, with the last of them what `copy` encodes, in a submission of this `number`. Parts before it are
    /// submitted and answered.
    ///
    /// # Errors
    /// The errors of [`Asked::go_on`].
    pub(super) async fn run(
        &self,
        replays: &[&Replay<'_>],
        number: u32,
        copy: impl FnOnce(&mut CommandEncoder),
    ) -> Result<SubmissionIndex, GpuError> {
        let gpu = &self.gpu;
        let all = replays.iter().map(|replay| replay.len()).sum();
        let mut asked = Asked::begin(gpu, self.answering.as_deref(), replays).await?;
        let mut begin = 0;
        loop {
            let end = asked.end_of(begin, all);
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            encode_all(replays, begin..end, &mut encoder, None);
            if end == all {
                copy(&mut encoder);
                return Ok(gpu.submit_numbered(encoder.finish(), number));
            }
            let telling = asked.tell(end).await?;
            telling.copy(&mut encoder);
            let commands = encoder.finish();
            let submitted = match telling.number {
                Some(number) => gpu.submit_numbered(commands, number),
                None => gpu.queue.submit([commands]),
            };
            asked.go_on(end, submitted).await?;
            begin = end;
        }
    }
}
