//! Protects steps that the host answers on a Mac: their kernels run as Metal's source on the CPU, part by part, and the host reads experts from the
//! file between two parts.

use super::answered::way;
use super::*;
use crate::engine::gpu::answered::Answers;
use crate::engine::gpu::from_file::FromFile;
use crate::gguf::Gguf;
use crate::gpu::buffer::Range;
use crate::gpu::testing::metal::{Math, pretending};
use crate::gpu::testing::{Recorded, laboratory};
use crate::gpu::{Gpu, Step};
use crate::models;
use crate::recipes::{BatchSizes, FEW, Residence, Steps};

/// A model with one residence, its steps and who answers them.
struct OfMac {
    gpu: Arc<Gpu>,
    steps: Steps,
    answers: Option<FromFile>,
    logits: Range,
}

impl OfMac {
    fn new(gpu: &Arc<Gpu>, gguf: Gguf, residence: Residence) -> Self {
        let model = models::load(Arc::new(gguf)).expect("it is supported");
        let vocab = model.config().vocab_size as u64;
        let mut ignore = |_, _| {};
        let loaded = GpuModel::load_for(Arc::clone(gpu), model, residence, 1, &mut ignore);
        let loaded = loaded.wait().expect("it fits");
        let rooms = &loaded.weights.body.rooms;
        let answers = FromFile::begin(gpu, rooms, &mut |_| {}).wait();
        let sizes = BatchSizes::of_one(64, 16);
        let steps = loaded.weights.untried(gpu).steps(gpu, sizes);
        Self {
            gpu: Arc::clone(gpu),
            steps: steps.expect("they suit"),
            answers: answers.expect("it reads"),
            logits: Range::floats("logits", vocab),
        }
    }

    /// Replays a step for `tokens` tokens from `pos` on. Returned is the number of its questions.
    fn run(&mut self, step: &Step, pos: usize, tokens: usize) -> usize {
        let gpu = Arc::clone(&self.gpu);
        let state = self.steps.state(gpu.machine, pos, tokens);
        let submit =
            |calls: &[_]| Recorded::new(&gpu, calls, step.most, &state).submit(&gpu, &state);
        let mut done = 0;
        for question in &step.questions {
            submit(&step.calls[done..question.due]);
            done = question.due;
            let told = question.tells.iter().map(|range| {
                let read = gpu.read::<u32>(&range.buffer, range.offset, range.size);
                read.wait().expect("it is told")
            });
            let told: Vec<Vec<u32>> = told.collect();
            let words: Vec<&[u32]> = told.iter().map(Vec::as_slice).collect();
            let answers = self.answers.as_mut().expect("somebody answers");
            let answered = answers.answer(&gpu, question, &words).wait();
            answered.expect("the file has them");
        }
        submit(&step.calls[done..]);
        step.questions.len()
    }

    /// The bits of the logits of a prompt in a chunk and in a step of few tokens, and of tokens behind it; and the number of questions.
    fn logits(&mut self) -> (Vec<u32>, usize) {
        let gpu = Arc::clone(&self.gpu);
        let history = self.steps.history().clone();
        gpu.realise(&history.buffer).wait().expect("it fits");
        let ids: Vec<u32> = (0..64).map(|i| (i * 37 + 11) % 500).collect();
        let bytes = bytemuck::cast_slice(&ids);
        gpu.queue
            .write_buffer(history.buffer.made(), history.offset, bytes);
        let of = |step: Result<Step, GpuError>| step.expect("its sizes suit");
        let chunk = of(self.steps.prompt(&gpu, FEW + 1, 16));
        let few = of(self.steps.prompt(&gpu, 2, FEW));
        let token = of(self.steps.token(&gpu, &self.logits));
        let mut asked = self.run(&chunk, 0, 14) + self.run(&few, 14, 3);
        let mut all = vec![];
        for pos in 17..20 {
            asked += self.run(&token, pos, 1);
            let Range {
                buffer,
                offset,
                size,
                ..
            } = &self.logits;
            all.extend(
                gpu.read::<u32>(buffer, *offset, *size)
                    .wait()
                    .expect("it is there"),
            );
        }
        (all, asked)
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn a_mac_gets_the_bits_of_experts_on_the_device() {
    if !laboratory::is_there("kernels as Metal's source") {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("there is room");
    std::fs::write(file.path(), way().bytes()).expect("there is room");
    let options = GpuOptions {
        tier: Some(Tier::Subgroup),
        ..GpuOptions::default()
    };
    let gpu = match Gpu::open(&options).wait() {
        Ok(gpu) => Arc::new(pretending(gpu, Math::Precise)),
        Err(GpuError::TierUnsupported { .. }) => return,
        Err(e) => panic!("these tests need a GPU adapter: {e}"),
    };
    let [whole, from_file] = [Residence::Whole, Residence::File(3)].map(|residence| {
        let gguf = Gguf::open(file.path()).expect("it is whole");
        OfMac::new(&gpu, gguf, residence).logits()
    });
    // Three layers with experts ask in each of five steps.
    assert_eq!((whole.1, from_file.1), (0, 15));
    assert!(whole.0.iter().any(|bits| f32::from_bits(*bits) != 0.0));
    assert!(whole.0 == from_file.0);
}
