//! The kernels of a device, both of which run in turn over the blocks of a context.

use super::*;
use crate::kernels::cases::lab::{heads, state};
use crate::kernels::cases::places::Pages;
use crate::kernels::cases::prompt_attention::VECTOR_LIMIT;
use crate::kernels::cases::{Case, Compared, Lab};
use crate::kernels::sequences::PAGE;

/// The factor of the limit for two heads of one token: some draws in a hundred exceed the limit by rounding alone.
const ONE_TOKEN: f64 = 3.0;

/// The kernels that expand and attend.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kernels {
    Vector,
    /// Kernels by matrices, in these shapes.
    Matrix(prompt_attention_coop::Shape, expand_kv_coop::Shape),
}

impl Kernels {
    const fn form(self) -> Form {
        match self {
            Self::Vector => Form::Vector,
            Self::Matrix(shape, _) => Form::Matrix(shape.coop),
        }
    }

    /// The expansion and the attention.
    fn tiled(self, dims: KvDims) -> (expand_kv_coop::Tiled, (Call, usize)) {
        match self {
            Self::Vector => (expand_kv::tiled(dims), tiled(dims)),
            Self::Matrix(attention, expansion) => (expansion.tiled(dims), attention.tiled(dims)),
        }
    }

    const fn limit(self, tokens: usize) -> f64 {
        match (self, tokens) {
            (Self::Vector, _) => VECTOR_LIMIT,
            (Self::Matrix(..), 1) => ONE_TOKEN * MATRIX_LIMIT,
            (Self::Matrix(..), _) => MATRIX_LIMIT,
        }
    }
}

/// A context in a test, which knows the whole attention.
impl Context {
    /// The score of row i is `step` times i, so all weight is on the last row seen or on the first.
    pub(super) fn far(lab: &Lab<'_>, dims: KvDims, step: f32) -> Self {
        let (pos, tokens, mla) = (150, 50, dims.mla);
        let mut context = Self::random(lab, dims, pos, tokens);
        context.q.fill(0.0);
        let q_pe = vec![0.0; tokens * mla.heads * mla.rope];
        context.set_rotated(q_pe, step * (mla.head() as f32).sqrt());
        let rows = context.cache.chunks_exact_mut(mla.cache_row()).enumerate();
        rows.for_each(|(i, row)| row[mla.kv_lora] = f16::from_f32(i as f32));
        context
    }

    pub(super) fn twin(&self) -> Vec<f32> {
        self.twin_of(&self.expanded())
    }

    /// Compares both kernels in turn, in blocks of `rows` rows, in a cache of its own or in pages.
    pub(super) fn compare(
        &self,
        lab: &Lab<'_>,
        kernels: Kernels,
        rows: usize,
        paged: bool,
    ) -> Result<Vec<Compared>, GpuError> {
        let (dims, form) = (self.dims, kernels.form());
        let scratch = self.scratch(lab, form, rows);
        let mut attention = self.given(lab, form, &scratch);
        let mut state = state(self.tokens, self.pos);
        if paged {
            let n = self.pos + self.tokens;
            let pages = Pages::new(lab, PAGE as usize, &[3, n, 40]);
            let (sequences, alone) = pages.alone(lab, 1, 16);
            let cache = pages.cache(&[vec![], self.cache.clone()], dims.mla.cache_row());
            attention.cache = lab.cache(&cache);
            attention.sequences = Some(sequences);
            state.first_page = alone.first_page;
        }
        let (expansion, tiled) = kernels.tiled(dims);
        let Scratch {
            weights,
            kv,
            blocks,
            ..
        } = &scratch;
        let cache = (attention.sequences.as_ref(), &attention.cache);
        let matrices = form.is_matrix();
        let expand = expand_kv::call(cache, weights, dims, matrices, expansion, *blocks, &kv[0]);
        let calls = attention.in_turn(expand, attention.attention(tiled));
        lab.run(calls.into(), state)?;
        let limit = kernels.limit(self.tokens);
        Ok(vec![lab.floats(&attention.values, &self.twin(), limit)?])
    }
}

/// The kernels of a device. By matrices there are several shapes.
fn kernels(gpu: &Gpu, dims: KvDims) -> Vec<Kernels> {
    let of_device = |shape: &prompt_attention_coop::Shape| Some(shape.coop) == gpu.coop;
    let suits = |shape: &prompt_attention_coop::Shape| {
        // llvmpipe takes a minute to compile a shape for wide heads: there the one that would be chosen is enough.
        let best = prompt_attention_coop::best(dims, shape.coop);
        let wide = dims.mla.head() > 128 && best != Some(*shape);
        !(wide && shape.coop.lanes == 8) && shape.fits(dims)
    };
    let shapes = prompt_attention_coop::SHAPES.into_iter();
    let shapes = shapes.filter(of_device).filter(suits);
    let by_matrices = shapes.filter_map(|shape| {
        let expansion = expand_kv_coop::shape(dims, shape.coop)?;
        Some(Kernels::Matrix(shape, expansion))
    });
    [Kernels::Vector].into_iter().chain(by_matrices).collect()
}

pub(super) fn case(kernels: Kernels, dims: KvDims, of: [usize; 3], paged: bool) -> Case {
    let [pos, tokens, rows] = of;
    let (heads, pages) = (heads(dims.mla), if paged { ", in pages" } else { "" });
    let by = match kernels {
        Kernels::Vector => String::new(),
        Kernels::Matrix(shape, _) => format!(", {shape:?}"),
    };
    let name = format!("{tokens} tokens after {pos}, blocks of {rows}, {heads}{pages}{by}");
    Case::new(name, move |lab| {
        Context::random(lab, dims, pos, tokens).compare(lab, kernels, rows, paged)
    })
}

/// Chunks of any size anywhere, in every form that a device has.
pub(super) fn cases(gpu: &Gpu) -> Vec<Case> {
    let [glm, deepseek, tales] = SHAPES_OF_MODELS;
    let mut all = vec![];
    for (dims, of) in [
        (glm, [0, 1, 64]),
        (glm, [0, 67, 128]),
        (glm, [1, 9, 64]),
        (glm, [575, 37, 4096]),
        (glm, [575, 37, 192]),
        (deepseek, [0, 130, 2048]),
        (deepseek, [1, 33, 64]),
        (deepseek, [575, 65, 256]),
        (tales, [0, 2, 64]),
        (tales, [575, 100, 640]),
        (tales.with_cache(CacheType::Q8_0), [0, 2, 64]),
        (deepseek.with_cache(CacheType::Q8_0), [575, 65, 256]),
    ] {
        all.extend(
            kernels(gpu, dims)
                .into_iter()
                .map(|k| case(k, dims, of, false)),
        );
    }
    for (dims, of) in [
        // The last page has one row, or all.
        (glm, [155, 38, 128]),
        (glm, [219, 37, 256]),
        (deepseek, [1, 130, 64]),
        (tales, [575, 65, 192]),
        (tales, [150, 33, 64]),
        (tales.with_cache(CacheType::Q8_0), [150, 33, 64]),
    ] {
        all.extend(
            kernels(gpu, dims)
                .into_iter()
                .map(|k| case(k, dims, of, true)),
        );
    }
    let edges = [[31, 33], [32, 32], [33, 31], [63, 65], [64, 64], [127, 1]];
    // Also blocks that no tile divides.
    for ([pos, tokens], rows) in edges.into_iter().flat_map(|of| [64, 100].map(|n| (of, n))) {
        let of = [pos, tokens, rows];
        let kernels = kernels(gpu, deepseek).into_iter();
        all.extend(kernels.map(|k| case(k, deepseek, of, false).long()));
    }
    // A long context in one block and in several.
    for rows in [4160, 1024].into_iter().filter(|_| gpu.metal.is_none()) {
        let kernels = kernels(gpu, glm).into_iter();
        all.extend(kernels.map(|k| case(k, glm, [4096, 19, rows], false).long()));
    }
    all
}

/// Scores far beyond the range of `exp`.
pub(super) fn far(gpu: &Gpu) -> Vec<Case> {
    let [_, dims, _] = SHAPES_OF_MODELS;
    let mut all = vec![];
    // The second kind of query exceeds the range of f16.
    for step in [1000.0, -1e6] {
        all.extend(
            kernels(gpu, dims)
                .into_iter()
                .map(|kernels| far_case(kernels, dims, step)),
        );
    }
    all
}

/// Rows whose scores are so far apart.
pub(super) fn far_case(kernels: Kernels, dims: KvDims, step: f32) -> Case {
    Case::new(
        format!("scores far apart by {step}, {kernels:?}"),
        move |lab| Context::far(lab, dims, step).compare(lab, kernels, 64, false),
    )
}
