//! Products as the CPU computes them, for any type of weights and any number of tokens: the twins of the kernels that multiply are made of
//! these, and so is the reference.

use std::ops::Range;
use std::str::FromStr;

use super::expert_rows::slots_by_expert;
use super::linear::{Batch, Share, in_tasks, normed, rows_dot};
use super::moe_combine::moe_combine;
use crate::model::Weight;
use crate::quant::dot::{Abreast, ByteBlock, Input, Instructions, Rows, byte_blocks, takes_bytes};
use crate::team::Team;

named! {
    /// How the CPU multiplies weights and activations. Everything else of a forward pass is the same either way, but for exponentials.
    pub enum Products {
        /// By f32, of exactly dequantised weights: the twins of the kernels, to which everything else is compared.
        Exact = "exact",
        /// By integers: activations are rounded to bytes, as in the tier [`Int8`](crate::gpu::Tier::Int8). The result depends on the
        /// instructions that the processor has ([`Instructions`]), but not on the number of threads.
        Quick = "quick",
    }
}

impl Default for Products {
    /// The faster ones on this processor.
    fn default() -> Self {
        Self::faster_by(Instructions::best())
    }
}

impl Products {
    /// The faster ones by these instructions. Plain code takes longer for integers than for floats.
    fn faster_by(instructions: Instructions) -> Self {
        match instructions.are_plain() {
            true => Self::Exact,
            false => Self::Quick,
        }
    }

    /// The name of the CPU as a device.
    pub fn device(self) -> String {
        match self {
            Self::Exact => "CPU reference".to_owned(),
            Self::Quick => format!("CPU with {}", Instructions::best().name()),
        }
    }
}

impl FromStr for Products {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::named(name).ok_or_else(|| format!("{name:?} is neither exact nor quick"))
    }
}

/// The surroundings of a product: how the input lies, what happens to it first, what is added last.
#[derive(Debug, Clone, Copy)]
pub struct MatvecOptions<'a> {
    /// RMS norm of each input row first: its weight (cols) and epsilon. Only for weights of one group.
    pub norm: Option<(&'a [f32], f32)>,
    /// Added to the output, (T, groups * rows).
    pub residual: Option<&'a [f32]>,
    /// Floats from one token's input to the next.
    pub x_stride: usize,
    /// Floats from one group's input to the next: 0 where all groups read the same.
    pub x_group_stride: usize,
}

impl<'a> MatvecOptions<'a> {
    /// The input is (T, cols), nothing before, nothing after.
    pub fn contiguous(cols: usize) -> Self {
        Self::per_group(cols, 0)
    }

    /// The input is (T, stride), and group g (a head) reads `cols` values from `g * group_stride` on.
    pub fn per_group(stride: usize, group_stride: usize) -> Self {
        MatvecOptions {
            norm: None,
            residual: None,
            x_stride: stride,
            x_group_stride: group_stride,
        }
    }

    /// The options of `self` with an RMS norm of the input.
    pub fn with_norm(self, weight: &'a [f32], eps: f32) -> Self {
        MatvecOptions {
            norm: Some((weight, eps)),
            ..self
        }
    }

    /// The options of `self` with `residual` (T, groups * rows) added.
    pub fn with_residual(self, residual: &'a [f32]) -> Self {
        MatvecOptions {
            residual: Some(residual),
            ..self
        }
    }
}

/// What is made of an input, by weights of one group.
#[derive(Debug, Clone, Copy)]
pub enum Projection<'a> {
    /// The product.
    Plain(&'a Weight),
    /// The products with gate and up, as [`Products::gate_up`] has them.
    Gated([&'a Weight; 2]),
}

impl<'a> Projection<'a> {
    fn weights(&self) -> &[&'a Weight] {
        match self {
            Self::Plain(w) => std::slice::from_ref(w),
            Self::Gated(pair) => pair,
        }
    }

    /// Rows and columns of a group.
    fn shape(&self) -> [usize; 2] {
        let of = self.weights().iter().map(|w| (w.groups, [w.rows, w.cols]));
        let mut shapes = of.clone().map(|(_, shape)| shape);
        let alike = of.clone().all(|shape| Some(shape) == of.clone().next());
        let names = || self.weights().iter().map(|w| &*w.name).collect::<Vec<_>>();
        assert!(alike, "shapes of {}", names().join(" and "));
        shapes.next().unwrap_or_default()
    }
}

/// Values that one thread rounds to bytes sooner than several.
const ALONE: usize = 16 * 1024;

/// The inputs of a product, as weights are multiplied by them.
struct Inputs<'a> {
    rows: Vec<&'a [f32]>,
    /// The blocks of each row; none where nothing is multiplied by bytes.
    bytes: Vec<ByteBlock>,
    products: Products,
}

impl<'a> Inputs<'a> {
    /// Rows for `weights`, rounded to bytes where one of these is multiplied by such.
    fn new(products: Products, rows: Vec<&'a [f32]>, weights: &[&Weight]) -> Self {
        let by_bytes = products == Products::Quick && weights.iter().any(|w| takes_bytes(w.ty));
        let blocks = rows.first().map_or(1, |row| byte_blocks(row.len()));
        let mut bytes = vec![];
        if by_bytes {
            bytes.resize(rows.len() * blocks, ByteBlock::ZERO);
            let items = rows.iter().zip(bytes.chunks_mut(blocks));
            let quantize = |(row, to): (&&[f32], _)| Instructions::best().quantize(row, to);
            match rows.len() * rows[0].len() <= ALONE {
                true => items.for_each(quantize),
                false => Team::all().each(items.collect(), quantize),
            }
        }
        Self {
            rows,
            bytes,
            products,
        }
    }

    /// The blocks of input `i`.
    fn blocks(&self, i: usize) -> &[ByteBlock] {
        let blocks = self.bytes.len() / self.rows.len();
        &self.bytes[i * blocks..][..blocks]
    }

    /// Puts inputs of batches with many side by side. Where the last are few, they are multiplied one by one.
    fn put_abreast(&self, batches: &mut [Batch]) {
        if self.bytes.is_empty() {
            return;
        }
        let (many, cols) = (Instructions::best().many(), self.rows[0].len());
        let mut items = vec![];
        for batch in batches {
            let chunks = batch.inputs.chunks(Abreast::WIDTH);
            let chunks: Vec<_> = chunks.filter(|chunk| chunk.len() >= many).collect();
            batch.abreast.resize_with(chunks.len(), Abreast::default);
            items.extend(chunks.into_iter().zip(&mut batch.abreast));
        }
        Team::all().each(items, |(inputs, to)| {
            let blocks: Vec<_> = inputs.iter().map(|&i| self.blocks(i)).collect();
            *to = Abreast::new(cols, &blocks);
        });
    }

    /// Some rows of `w` times the inputs of a batch.
    fn multiply(&self, w: &Weight, batch: &Batch, rows: Range<usize>, out: &mut [&mut [f32]]) {
        if self.products == Products::Exact {
            let inputs: Vec<&[f32]> = batch.inputs.iter().map(|&i| self.rows[i]).collect();
            let made = rows_dot(w, batch.group, rows, &inputs);
            for (r, row) in made.chunks_exact(inputs.len()).enumerate() {
                out.iter_mut().zip(row).for_each(|(out, y)| out[r] = *y);
            }
            return;
        }
        let rows = Rows {
            ty: w.ty,
            cols: w.cols,
            bytes: w.rows_bytes(batch.group, rows),
        };
        let instructions = Instructions::best();
        let abreast = match takes_bytes(w.ty) {
            true => &batch.abreast[..],
            false => &[],
        };
        let (many, rest) = out.split_at_mut(abreast.iter().map(Abreast::count).sum());
        if !abreast.is_empty() {
            instructions.multiply_abreast(rows, abreast, many);
        }
        let input = |&i: &usize| Input {
            floats: self.rows[i],
            bytes: self.blocks(i),
        };
        let inputs: Vec<Input<'_>> = batch.inputs[many.len()..].iter().map(input).collect();
        instructions.multiply(rows, &inputs, rest);
    }

    /// Some rows of a projection of the inputs of a batch.
    fn project(
        &self,
        of: Projection<'_>,
        batch: &Batch,
        rows: Range<usize>,
        out: &mut [&mut [f32]],
    ) {
        let [gate, up] = match of {
            Projection::Plain(w) => return self.multiply(w, batch, rows, out),
            Projection::Gated(pair) => pair,
        };
        self.multiply(gate, batch, rows.clone(), out);
        let mut ups = vec![0.0; out.len() * rows.len()];
        let mut of_inputs: Vec<&mut [f32]> = ups.chunks_exact_mut(rows.len()).collect();
        self.multiply(up, batch, rows, &mut of_inputs);
        for (gates, ups) in out.iter_mut().zip(of_inputs) {
            match self.products {
                Products::Exact => {
                    let pairs = gates.iter_mut().zip(ups);
                    pairs.for_each(|(g, u)| *g = silu(*g) * *u);
                }
                Products::Quick => Instructions::best().silu_times(gates, ups),
            }
        }
    }
}

/// The products of a batch by expert, so that an expert's rows are read once: slot (token * used + rank) of the (T, used) choices reads
/// the input of number `input(slot)`.
fn by_expert(slots: Vec<Vec<usize>>, input: impl Fn(usize) -> usize) -> Vec<Batch> {
    let chosen = slots
        .into_iter()
        .enumerate()
        .filter(|(_, slots)| !slots.is_empty());
    let batch = |(group, slots): (usize, Vec<usize>)| Batch {
        group,
        inputs: slots.iter().map(|slot| input(*slot)).collect(),
        abreast: vec![],
        places: slots,
    };
    chosen.map(batch).collect()
}

/// `x * sigmoid(x)`, finite for any finite x.
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

impl Products {
    /// `out` (T, groups * rows): out\[t\]\[g\]\[r\] = w\[g\]\[r\] . norm(x\[t * x_stride + g * x_group_stride ..\]\[..cols\]) + residual.
    ///
    /// # Panics
    /// If a size does not fit the others: sizes come from a checked `Model`, never from input.
    pub fn matvec(
        self,
        w: &Weight,
        x: &[f32],
        n_tokens: usize,
        options: MatvecOptions<'_>,
        out: &mut [f32],
    ) {
        let rows = w.groups * w.rows;
        assert_eq!(
            out.len(),
            n_tokens * rows,
            "output of {} for {n_tokens} tokens",
            w.name
        );
        if n_tokens == 0 {
            return;
        }
        let (stride, group_stride) = (options.x_stride, options.x_group_stride);
        let x = match options.norm {
            None => x,
            Some(_) => {
                let one = (w.groups, stride) == (1, w.cols);
                assert!(one, "norm before {}: one contiguous input", w.name);
                &x[..n_tokens * w.cols]
            }
        };
        let x = normed(x, options.norm);
        // Inputs of a token that are the same for all groups are one.
        let distinct = if group_stride == 0 { 1 } else { w.groups };
        let input = |i: usize| &x[i / distinct * stride + i % distinct * group_stride..][..w.cols];
        let inputs = (0..n_tokens * distinct).map(input).collect();
        let inputs = Inputs::new(self, inputs, &[w]);
        let batch = |group: usize| Batch {
            group,
            inputs: (0..n_tokens)
                .map(|t| t * distinct + group % distinct)
                .collect(),
            abreast: vec![],
            places: (0..n_tokens).map(|t| t * w.groups + group).collect(),
        };
        let mut batches: Vec<_> = (0..w.groups).map(batch).collect();
        inputs.put_abreast(&mut batches);
        let share = Share {
            job: (),
            batches: &batches,
            shape: [w.rows, w.cols],
            out: &mut *out,
        };
        in_tasks(vec![share], |(), batch, rows, out| {
            inputs.multiply(w, batch, rows, out);
        });
        if let Some(residual) = options.residual {
            assert_eq!(residual.len(), out.len(), "residual of {}", w.name);
            out.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
        }
    }

    /// `out` (T, used, ff) = silu(gate\[e\] norm(x\[t\])) * (up\[e\] norm(x\[t\])), with e = ids\[t\]\[s\].
    ///
    /// `x` is (T, cols), `norm` the weight and epsilon of the RMS norm before. `ids` (T, used) names the expert of each slot;
    /// without it there is one group and used is 1.
    ///
    /// # Panics
    /// If a size does not fit the others or an id is not below the number of experts.
    pub fn gate_up(
        self,
        [gate, up]: [&Weight; 2],
        x: &[f32],
        n_tokens: usize,
        norm: Option<(&[f32], f32)>,
        ids: Option<&[u32]>,
        out: &mut [f32],
    ) {
        let of = Projection::Gated([gate, up]);
        let [rows, cols] = of.shape();
        if n_tokens == 0 {
            return;
        }
        let fits = norm.is_none_or(|(weight, _)| weight.len() == cols);
        assert!(fits, "norm before {}", gate.name);
        let x = normed(&x[..n_tokens * cols], norm);
        let slots = match ids {
            Some(ids) => slots_by_expert(ids, gate.groups),
            None => vec![(0..n_tokens).collect()],
        };
        let used = ids.map_or(1, |ids| ids.len() / n_tokens);
        assert_eq!(
            out.len(),
            n_tokens * used * rows,
            "output of {} for {n_tokens} tokens",
            gate.name
        );

        let inputs = Inputs::new(self, x.chunks_exact(cols).collect(), &[gate, up]);
        let mut batches = by_expert(slots, |slot| slot / used);
        inputs.put_abreast(&mut batches);
        let share = Share {
            job: (),
            batches: &batches,
            shape: [rows, cols],
            out,
        };
        in_tasks(vec![share], |(), batch, rows, out| {
            inputs.project(of, batch, rows, out);
        });
    }

    /// The projections of norm(x), each (T, rows): they share the norm, its rounding, and the threads' meeting at the end.
    ///
    /// # Panics
    /// If a size does not fit the others.
    pub fn project<const N: usize>(
        self,
        of: [Projection<'_>; N],
        x: &[f32],
        n_tokens: usize,
        norm: Option<(&[f32], f32)>,
    ) -> [Vec<f32>; N] {
        let mut out = of.map(|of| vec![0.0; n_tokens * of.shape()[0]]);
        let cols = of.first().map_or(0, |of| of.shape()[1]);
        if x.is_empty() || cols == 0 {
            return out;
        }
        let x = normed(&x[..n_tokens * cols], norm);
        let weights: Vec<&Weight> = of.iter().flat_map(|of| of.weights()).copied().collect();
        let inputs = Inputs::new(self, x.chunks_exact(cols).collect(), &weights);
        let mut batches = [Batch {
            group: 0,
            inputs: (0..n_tokens).collect(),
            abreast: vec![],
            places: (0..n_tokens).collect(),
        }];
        inputs.put_abreast(&mut batches);
        let share = |(job, out): (_, _)| {
            let shape = Projection::shape(&job);
            assert_eq!(shape[1], cols, "columns of what is projected");
            Share {
                job,
                batches: &batches,
                shape,
                out: Vec::as_mut_slice(out),
            }
        };
        let shares = of.into_iter().zip(&mut out).map(share).collect();
        in_tasks(shares, |of, batch, rows, out| {
            inputs.project(of, batch, rows, out);
        });
        out
    }

    /// `out` (T, d) = residual (T, d) + sum over s of weights\[t\]\[s\] * down\[ids\[t\]\[s\]\] h\[t\]\[s\].
    ///
    /// `h` is (T, used, ff); `ids` and `weights` are (T, used). The sum runs over the slots in order, then the residual is
    /// added: a fixed order of additions, so a result does not depend on the batch.
    ///
    /// # Panics
    /// If a size does not fit the others or an id is not below the number of experts.
    pub fn moe_down(
        self,
        down: &Weight,
        h: &[f32],
        chosen: (&[u32], &[f32]),
        n_tokens: usize,
        residual: &[f32],
        out: &mut [f32],
    ) {
        self.moe_down_beside(down, None, h, chosen, n_tokens, residual, out);
    }

    /// [`moe_down`](Self::moe_down) beside the product of a shared expert, its weight and its input (T, ff), which is added to `residual`
    /// first.
    ///
    /// # Panics
    /// If a size does not fit the others or an id is not below the number of experts.
    #[expect(clippy::too_many_arguments, reason = "those of two products")]
    pub fn moe_down_beside(
        self,
        down: &Weight,
        shared: Option<(&Weight, &[f32])>,
        h: &[f32],
        (ids, weights): (&[u32], &[f32]),
        n_tokens: usize,
        residual: &[f32],
        out: &mut [f32],
    ) {
        let (rows, cols) = (down.rows, down.cols);
        assert_eq!(
            ids.len(),
            weights.len(),
            "experts and weights of {}",
            down.name
        );
        assert_eq!(h.len(), ids.len() * cols, "input of {}", down.name);
        assert_eq!(
            (out.len(), residual.len()),
            (n_tokens * rows, n_tokens * rows),
            "output and residual of {}",
            down.name
        );
        if n_tokens == 0 {
            return;
        }
        let mut by_slot = vec![0.0f32; ids.len() * rows];
        let inputs = Inputs::new(self, h.chunks_exact(cols).collect(), &[down]);
        let mut batches = by_expert(slots_by_expert(ids, down.groups), |slot| slot);
        inputs.put_abreast(&mut batches);
        let mut shares = vec![Share {
            job: (down, &inputs),
            batches: &batches,
            shape: [rows, cols],
            out: &mut by_slot,
        }];
        let mut with_shared = vec![];
        let of_shared = shared.map(|(w, h)| {
            let rows = h.chunks_exact(w.cols).collect();
            let mut batch = by_expert(vec![(0..n_tokens).collect()], |token| token);
            let inputs = Inputs::new(self, rows, &[w]);
            inputs.put_abreast(&mut batch);
            with_shared.resize(residual.len(), 0.0);
            (w, inputs, batch)
        });
        if let Some((w, inputs, batches)) = &of_shared {
            assert_eq!(w.rows, rows, "rows of {}", w.name);
            shares.push(Share {
                job: (w, inputs),
                batches,
                shape: [w.rows, w.cols],
                out: &mut with_shared,
            });
        }
        in_tasks(shares, |(w, inputs), batch, rows, out| {
            inputs.multiply(w, batch, rows, out);
        });
        let sums = with_shared.iter_mut().zip(residual);
        sums.for_each(|(sum, residual)| *sum += residual);
        let residual = match with_shared.is_empty() {
            true => residual,
            false => &with_shared,
        };
        let used = ids.len() / n_tokens;
        // The host may have taken all of them.
        let of_token = |token: usize| {
            let slots = &by_slot[token * used * rows..][..used * rows];
            (slots, &weights[token * used..][..used])
        };
        let slots = (0..n_tokens).map(of_token);
        let sums = residual.chunks_exact(rows).zip(out.chunks_exact_mut(rows));
        Team::all().each(
            slots.zip(sums).collect(),
            |((slots, weights), (residual, out))| {
                moe_combine(slots, weights, residual, rows, out);
            },
        );
    }
}

#[cfg(test)]
mod tests;
