//! Experts that the processor multiplies: those of a decoded token that lie in host memory alone, from the very bytes that shaders read.

use super::answered::{Answers, failed};
use crate::engine::backend::BoxedFuture;
use crate::engine::share::HostWork;
use crate::gpu::buffer::Range;
use crate::gpu::on_host::OnHost;
use crate::gpu::question::Question;
use crate::gpu::{Gpu, GpuError};
use crate::kernels::expert_slots::NONE;
use crate::model::{Ffn, Mlp};
use crate::quant::dot::{ByteBlock, Input, Instructions, byte_blocks};
use crate::recipes::Weights;
use crate::team::Team;
use web_time::Instant;

/// Runs of rows that each thread gets of a product, so that none waits long for the others.
const RUNS: usize = 3;

/// A layer with experts.
struct Layer {
    /// The weight of the norm before them.
    norm: Vec<f32>,
    experts: Mlp<OnHost>,
    /// Bytes of one of them.
    bytes: u64,
}

/// The experts of a model, and room for the values of a layer.
pub(super) struct ByHost {
    layers: Vec<Option<Layer>>,
    eps: f32,
    /// Where the sum of a layer goes.
    sum: Range,
    /// Whether it is zero.
    is_zero: bool,
    instructions: Instructions,
    /// What was multiplied for tokens.
    work: HostWork,
    x: Values,
    /// The hidden values of the chosen experts, one after another, and those of `up` before they are multiplied.
    h: Values,
    up: Vec<f32>,
    /// The sum of the experts, and room for an expert's values.
    y: Vec<f32>,
    of_one: Vec<f32>,
}

/// Values, and the bytes that stand for them.
#[derive(Default)]
struct Values {
    floats: Vec<f32>,
    bytes: Vec<ByteBlock>,
}

impl Values {
    /// Row `i` of `cols` values.
    fn row(&self, i: usize, cols: usize) -> Input<'_> {
        let blocks = byte_blocks(cols);
        Input {
            floats: &self.floats[i * cols..(i + 1) * cols],
            bytes: &self.bytes[i * blocks..(i + 1) * blocks],
        }
    }

    /// Has the bytes stand for all rows of `cols` values.
    fn quantize(&mut self, instructions: Instructions, cols: usize) {
        let blocks = byte_blocks(cols);
        let rows = self.floats.len() / cols;
        self.bytes.resize(rows * blocks, ByteBlock::ZERO);
        let bytes = self.bytes.chunks_mut(blocks);
        for (floats, to) in self.floats.chunks(cols).zip(bytes) {
            instructions.quantize(floats, to);
        }
    }
}

/// The runs of `rows` rows of each of `count` experts.
fn rows_at_once(rows: usize, count: usize) -> usize {
    (rows * count).div_ceil(RUNS * Team::all().threads()).max(8)
}

impl ByHost {
    /// The experts of a model whose `weights` lie in host memory, and whose sums go to `sum`. `None` if the processor does not reach that memory.
    ///
    /// # Errors
    /// The error that the device reports.
    pub(super) async fn new(
        gpu: &Gpu,
        weights: &Weights,
        sum: Range,
    ) -> Result<Option<Self>, GpuError> {
        let mut layers = vec![];
        for layer in &weights.body.layers {
            let Ffn::Moe(moe) = &layer.ffn else {
                layers.push(None);
                continue;
            };
            let of_one = moe.experts.weights().into_iter();
            let of_one = of_one.map(|w| w.bytes_of_rows(w.rows.into()));
            let Mlp { gate, up, down } = &moe.experts;
            let [Some(gate), Some(up), Some(down)] = [gate, up, down].map(OnHost::of) else {
                return Ok(None);
            };
            let norm = &layer.ffn_norm;
            let bytes = 4 * gate.cols as u64;
            layers.push(Some(Layer {
                norm: gpu.read(&norm.buffer, norm.offset, bytes).await?,
                bytes: of_one.sum(),
                experts: Mlp { gate, up, down },
            }));
        }
        gpu.realise(&sum.buffer).await?;
        Ok(Some(Self {
            layers,
            eps: weights.body.config.rms_eps,
            sum,
            is_zero: true,
            instructions: Instructions::best(),
            work: HostWork::default(),
            x: Values::default(),
            h: Values::default(),
            up: vec![],
            y: vec![],
            of_one: vec![],
        }))
    }

    /// The name of the instructions.
    pub(super) fn instructions(&self) -> &'static str {
        self.instructions.name()
    }

    /// The layers with experts, and how many of these there are in one.
    pub(super) fn layers(&self) -> impl Iterator<Item = (usize, usize)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(i, layer)| Some((i, layer.as_ref()?.experts.gate.groups)))
    }

    /// The sum of experts of layer `i`, which are `chosen` with their weights, for a token's stream `x` before the norm.
    ///
    /// # Errors
    /// [`GpuError::Runtime`] for a layer or an expert that is none.
    pub(super) fn multiply(
        &mut self,
        i: usize,
        x: &[f32],
        chosen: &[(usize, f32)],
    ) -> Result<&[f32], GpuError> {
        let Some(Some(Layer { norm, experts, .. })) = self.layers.get(i) else {
            return Err(failed(format!("layer {i} has no experts in host memory")));
        };
        let groups = experts.gate.groups;
        if let Some((wrong, _)) = chosen.iter().find(|(expert, _)| *expert >= groups) {
            return Err(failed(format!(
                "layer {i} asked for expert {wrong} of {groups}"
            )));
        }
        if x.len() != norm.len() {
            return Err(failed(format!(
                "layer {i} told {} values of {}",
                x.len(),
                norm.len()
            )));
        }
        let squares: f32 = x.iter().map(|v| v * v).sum();
        let scale = 1.0 / (squares / x.len() as f32 + self.eps).sqrt();
        self.x.floats.clear();
        self.x
            .floats
            .extend(x.iter().zip(norm).map(|(v, w)| v * scale * w));
        self.x.quantize(self.instructions, x.len());
        let width = experts.gate.rows;
        self.h.floats.resize(chosen.len() * width, 0.0);
        self.up.resize(chosen.len() * width, 0.0);
        hidden(
            experts,
            &self.x,
            chosen,
            [&mut self.h.floats, &mut self.up],
            self.instructions,
        );
        self.h.quantize(self.instructions, width);
        let rows = experts.down.rows;
        self.y.clear();
        self.y.resize(rows, 0.0);
        self.of_one.resize(rows, 0.0);
        sums(
            experts,
            &self.h,
            chosen,
            [&mut self.y, &mut self.of_one],
            self.instructions,
        );
        Ok(&self.y)
    }

    /// The answer for the words that a layer tells: the experts that are asked for, the weights of all that a token uses, and its stream.
    fn answer_now(&mut self, gpu: &Gpu, layer: usize, words: &[&[u32]]) -> Result<(), GpuError> {
        let [asked, weights, x] = words else {
            return Err(failed(format!(
                "layer {layer} told {} ranges of 3",
                words.len()
            )));
        };
        let both = asked.iter().zip(*weights);
        let both = both.filter(|(expert, _)| **expert != NONE);
        let chosen: Vec<_> = both
            .map(|(expert, weight)| (*expert as usize, f32::from_bits(*weight)))
            .collect();
        self.work.answers += 1;
        if chosen.is_empty() && self.is_zero {
            return Ok(());
        }
        self.is_zero = chosen.is_empty();
        if let Some(Some(Layer { bytes, .. })) = self.layers.get(layer) {
            self.work.experts += chosen.len() as u64;
            self.work.bytes += chosen.len() as u64 * bytes;
        }
        let began = Instant::now();
        let Range { buffer, offset, .. } = self.sum.clone();
        let sum = self.multiply(layer, bytemuck::cast_slice(x), &chosen)?;
        let bytes = bytemuck::cast_slice(sum);
        gpu.queue.write_buffer(buffer.made(), offset, bytes);
        self.work.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }
}

/// silu(gate x) * (up x) of the chosen experts, one after another.
fn hidden(
    experts: &Mlp<OnHost>,
    x: &Values,
    chosen: &[(usize, f32)],
    [h, up]: [&mut [f32]; 2],
    instructions: Instructions,
) {
    let Mlp { gate, up: ups, .. } = experts;
    let at_once = rows_at_once(gate.rows, chosen.len());
    let mut items = vec![];
    let parts = h.chunks_mut(gate.rows).zip(up.chunks_mut(gate.rows));
    for ((expert, _), (h, up)) in chosen.iter().zip(parts) {
        let parts = h.chunks_mut(at_once).zip(up.chunks_mut(at_once));
        for (i, (h, up)) in parts.enumerate() {
            items.push((*expert, i * at_once, h, up));
        }
    }
    let input = x.row(0, gate.cols);
    Team::all().each(items, |(expert, first, h, up)| {
        let rows = first..first + h.len();
        // SAFETY: loading alone writes experts to host memory, and it has ended by waiting for its submissions.
        let (gate, ups) = unsafe { (gate.rows(expert, rows.clone()), ups.rows(expert, rows)) };
        instructions.multiply_planes(gate, input, h);
        instructions.multiply_planes(ups, input, up);
        instructions.silu_times(h, up);
    });
}

/// The sum of the chosen experts, times their weights.
fn sums(
    experts: &Mlp<OnHost>,
    h: &Values,
    chosen: &[(usize, f32)],
    [y, of_one]: [&mut [f32]; 2],
    instructions: Instructions,
) {
    let down = &experts.down;
    let at_once = rows_at_once(down.rows, 1);
    let parts = y.chunks_mut(at_once).zip(of_one.chunks_mut(at_once));
    let items: Vec<_> = parts.enumerate().collect();
    Team::all().each(items, |(i, (y, of_one))| {
        let rows = i * at_once..i * at_once + y.len();
        for (k, (expert, weight)) in chosen.iter().enumerate() {
            // SAFETY: as for the other two weights.
            let rows = unsafe { down.rows(*expert, rows.clone()) };
            instructions.multiply_planes(rows, h.row(k, down.cols), of_one);
            for (y, value) in y.iter_mut().zip(&*of_one) {
                *y += weight * value;
            }
        }
    });
}

impl Answers for ByHost {
    fn work(&self) -> HostWork {
        self.work
    }

    fn answer<'a>(
        &'a mut self,
        gpu: &'a Gpu,
        question: &'a Question,
        words: &'a [&'a [u32]],
    ) -> BoxedFuture<'a, Result<(), GpuError>> {
        Box::pin(async move { self.answer_now(gpu, question.layer, words) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gpu::GpuModel;
    use crate::gpu::GpuOptions;
    use crate::gpu::wait::Wait;
    use crate::kernels::testing::{Rng, nmse};
    use crate::models;
    use crate::quant::dequantize_row;
    use crate::quant::repack::unpack_rows;
    use crate::recipes::Residence;
    use crate::synth::{self, ModelName, Recipe, SynthOptions};
    use std::sync::Arc;

    /// The exact products of an expert's rows.
    fn exact(weight: &OnHost, group: usize, x: &[f64]) -> Vec<f64> {
        let row = |r: usize| {
            // SAFETY: nothing writes to the weight.
            let rows = unsafe { weight.rows(group, r..r + 1) };
            let bytes = weight.ty.row_bytes(weight.cols).expect("whole blocks");
            let (mut blocks, mut values) = (vec![0; bytes], vec![0.0; weight.cols]);
            unpack_rows(weight.ty, weight.cols, rows.planes, &mut blocks);
            dequantize_row(weight.ty, &blocks, &mut values);
            values.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
        };
        (0..weight.rows).map(row).collect()
    }

    /// Compares what is counted of two answers, of which one multiplies an expert, with the bytes of that.
    fn check_work(gpu: &Gpu, loaded: &GpuModel, by_host: &mut ByHost, rng: &mut Rng) {
        assert_eq!(by_host.work(), HostWork::default(), "no layer was answered");
        let (layer, groups) = by_host.layers().next().expect("it has one");
        let width = loaded.model.config().embedding_length;
        let x: Vec<u32> = rng.normals(width).into_iter().map(f32::to_bits).collect();
        let (asked, weights) = ([rng.below(groups) as u32, NONE], [1f32.to_bits(); 2]);
        let answered = by_host.answer_now(gpu, layer, &[&asked, &weights, &x]);
        answered.expect("it is multiplied");
        let none = by_host.answer_now(gpu, layer, &[&[NONE; 2], &weights, &x]);
        none.expect("it is zero");
        let Ffn::Moe(moe) = &loaded.weights.body.layers[layer].ffn else {
            panic!("layer {layer} has experts");
        };
        let all: u64 = moe.experts.weights().map(|w| w.bytes()).iter().sum();
        let HostWork {
            answers,
            experts,
            bytes,
            seconds,
        } = by_host.work();
        assert_eq!((answers, experts), (2, 1));
        assert!(seconds > 0.0);
        // A type with a grid has this before all experts.
        let of_one = all / groups as u64;
        assert!(
            bytes <= of_one && of_one < bytes + 8192,
            "{bytes} of {of_one}"
        );
    }

    #[test]
    fn experts_are_multiplied_from_the_bytes_that_shaders_read() {
        let gpu = Arc::new(
            Gpu::open(&GpuOptions::default())
                .wait()
                .expect("there is an adapter"),
        );
        let mut rng = Rng::fresh();
        for recipe in [
            Recipe::Q4_0,
            Recipe::Q4KM,
            Recipe::Q6K,
            Recipe::Q8_0,
            Recipe::Iq2M,
        ] {
            let options = SynthOptions {
                layers: Some(3),
                ..SynthOptions::default()
            };
            let bytes = synth::in_memory(ModelName::Tiny, recipe, &options);
            let bytes = bytes.expect("three layers are fine");
            let gguf = crate::gguf::Gguf::from_bytes(bytes, "a small model").expect("it is whole");
            let model = models::load(Arc::new(gguf)).expect("it is supported");
            let residence = Residence::Slots(0);
            let mut ignore = |_, _| {};
            let loaded = GpuModel::load_for(gpu.clone(), model, residence, 1, &mut ignore);
            let loaded = loaded.wait().expect("it fits");
            let width = loaded.model.config().embedding_length;
            let sum = Range::floats("sum", width as u64);
            let made = ByHost::new(&gpu, &loaded.weights, sum)
                .wait()
                .expect("it reads");
            let mut by_host = made.expect("the processor reaches the memory");
            let layers: Vec<_> = by_host.layers().collect();
            for (i, groups) in layers {
                let x: Vec<f32> = rng.normals(width);
                let chosen = [(rng.below(groups), 0.3), (rng.below(groups), 0.7)];
                let found = by_host
                    .multiply(i, &x, &chosen)
                    .expect("it is there")
                    .to_vec();
                let Some(Layer { norm, experts, .. }) = &by_host.layers[i] else {
                    panic!("layer {i} has experts");
                };
                let squares: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
                let scale = 1.0 / (squares / width as f64 + f64::from(by_host.eps)).sqrt();
                let both = x.iter().zip(norm);
                let x: Vec<f64> = both.map(|(v, w)| f64::from(v * w) * scale).collect();
                let mut expected = vec![0.0; width];
                for (expert, weight) in chosen {
                    let [gate, up] = [&experts.gate, &experts.up].map(|w| exact(w, expert, &x));
                    let h = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
                    let h: Vec<f64> = h.collect();
                    for (y, value) in expected.iter_mut().zip(exact(&experts.down, expert, &h)) {
                        *y += f64::from(weight) * value;
                    }
                }
                let error = nmse(&found, &expected);
                assert!(error < 5e-4, "{recipe:?}, layer {i}: {error}");
                assert!(
                    by_host.multiply(i, &[0.0], &chosen).is_err(),
                    "too few values"
                );
                let missing = by_host.multiply(i, &vec![0.0; width], &[(groups, 1.0)]);
                assert!(missing.is_err(), "no such expert");
            }
            check_work(&gpu, &loaded, &mut by_host, &mut rng);
            assert!(by_host.multiply(99, &[], &[]).is_err(), "no such layer");
        }
    }
}
