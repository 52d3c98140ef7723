//! Cases of the products of a few tokens, which read a weight once for several of them.

use super::lab::{Compared, Lab, state};
use super::prepared::{EPS, Normed, limit};
use super::{Case, TYPES};
use crate::gpu::GpuError;
use crate::gpu::geometry::Geometry;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_experts::{TILE_WORDS, tiles_of};
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input, Tiles, batch_matvec};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::token::{Divided, TokenInput};
use crate::model::Weight;
use crate::quant::GgmlType::{self, F32, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0};
use crate::quant::activation::Activation;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    Dense,
    /// Heads whose inputs are this number of units apart.
    Heads(usize),
    /// The number of experts of a token, whose slots share a row of the input or have a row each.
    ByToken(usize),
    BySlot(usize),
    /// f32 times the norm's weight.
    Stream,
}

/// How the work is divided.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Division {
    /// The division that the device takes.
    Default,
    /// Some of the geometries that the device allows.
    Some,
    /// This geometry, with this number of tokens at once.
    This(Geometry, u32),
}

#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub ty: GgmlType,
    pub kind: Kind,
    /// Groups, rows and columns.
    pub shape: [usize; 3],
    /// Whether there are two weights.
    pub pair: bool,
    /// The tokens, or any number of them.
    pub tokens: Option<usize>,
    pub division: Division,
}

/// A product with random values.
struct Problem {
    of: Product,
    tokens: usize,
    /// The expert of each slot.
    ids: Vec<u32>,
    places: u32,
    weights: Vec<Weight>,
    x: Normed,
    before: Vec<f32>,
    /// The weight of the norm behind it.
    g: Vec<f32>,
}

impl Product {
    /// Experts of a token, 1 where groups are none.
    const fn used(self) -> usize {
        match self.kind {
            Kind::ByToken(used) | Kind::BySlot(used) => used,
            _ => 1,
        }
    }

    const fn has_experts(self) -> bool {
        matches!(self.kind, Kind::ByToken(_) | Kind::BySlot(_))
    }

    const fn is_normed(self) -> bool {
        matches!(self.kind, Kind::Dense | Kind::ByToken(_) | Kind::Stream)
    }

    /// Units from one head's input to the next.
    const fn x_units(self) -> usize {
        match self.kind {
            Kind::Heads(units) => units,
            _ => 0,
        }
    }

    fn has_residual(self) -> bool {
        self.kind == Kind::Dense && !self.pair
    }

    /// Values of a row of the output.
    fn width(self) -> usize {
        let [groups, rows, _] = self.shape;
        if self.has_experts() {
            rows
        } else {
            groups * rows
        }
    }

    fn weights(self, lab: &Lab<'_>) -> Vec<Weight> {
        let weight = |_| lab.weight(self.ty, self.shape);
        (0..1 + usize::from(self.pair)).map(weight).collect()
    }

    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let problem = Problem::new(lab, self);
        let twin = problem.twin(lab);
        let on_gpu = lab.load_alike(&problem.weights.iter().collect::<Vec<_>>())?;
        let site = problem.product(lab, &on_gpu).site();
        let geometries = match self.division {
            Division::This(geometry, _) => vec![geometry],
            division => lab.geometries(&site, division == Division::Some)?,
        };
        let mut all = vec![];
        for geometry in geometries {
            let mut product = problem.product(lab, &on_gpu);
            if let Division::This(_, columns) = self.division {
                product.columns = columns;
            }
            let calls = match product.calls_with(lab.gpu, &geometry) {
                Err(GpuError::TierUnsupported { .. }) if self.division == Division::Some => {
                    continue;
                }
                calls => calls?,
            };
            lab.run(calls, state(problem.tokens, 0))?;
            let mut found = twin.clone();
            if let Some(y) = &product.y {
                let form = match self.kind {
                    Kind::Stream => Activation::Floats,
                    _ => lab.form(),
                };
                all.push(lab.floats(y, &twin, limit(form))?);
                found = lab.read(y, twin.len())?;
            }
            if let Some(left) = &product.prepared {
                let g = left.norm.is_some().then_some(&problem.g[..]);
                all.extend(lab.left(left, g, &found)?);
            }
        }
        Ok(all)
    }

    fn case(self) -> Case {
        let [groups, rows, cols] = self.shape;
        let pair = if self.pair { " pair" } else { "" };
        let groups = if groups > 1 {
            format!("{groups}x")
        } else {
            String::new()
        };
        let shape = format!("{}{pair} {groups}{rows}x{cols}", self.ty);
        let name = match self.tokens {
            Some(tokens) => format!("{shape}, {:?}, {tokens} tokens", self.kind),
            None => format!("{shape}, {:?}", self.kind),
        };
        Case::new(name, move |lab| self.compare(lab))
    }
}

impl Problem {
    fn new(lab: &Lab<'_>, of: Product) -> Self {
        let (count, used) = (of.shape[0], of.used());
        // Numbers that fill workgroups and that do not.
        let tokens = of.tokens.unwrap_or_else(|| lab.one_of(&[1, 2, 5, 8, 19]));
        let first = lab.below(count);
        let of_token = |t| (0..used).map(move |k| ((first + t / 3 + k) % count) as u32);
        let inputs = match of.kind {
            Kind::BySlot(_) => tokens * used,
            _ => tokens,
        };
        let width = match of.kind {
            Kind::Heads(units) => count * units * 32,
            _ => of.shape[2],
        };
        Self {
            of,
            tokens,
            ids: (0..tokens).flat_map(of_token).collect(),
            places: lab.one_of(&[2, 4]),
            weights: of.weights(lab),
            x: Normed::new(lab, inputs, width),
            before: lab.normals(tokens * used * of.width()),
            g: lab.normals(of.width()),
        }
    }

    fn twin(&self, lab: &Lab<'_>) -> Vec<f32> {
        let (of, n) = (self.of, self.of.width());
        let values = match (of.kind, lab.form()) {
            (Kind::Stream, _) | (_, Activation::Floats) => &self.x.weighted,
            _ => &self.x.values,
        };
        let width = self.x.norm.len();
        let own = |out: usize| {
            let (row, group) = match of.kind {
                Kind::ByToken(used) => (out / used, Some(self.ids[out] as usize)),
                Kind::BySlot(_) => (out, Some(self.ids[out] as usize)),
                _ => (out, None),
            };
            let rms = of.is_normed().then(|| self.x.rms(row));
            let before = of.has_residual().then(|| &self.before[out * n..][..n]);
            let x = &values[row * width..][..width];
            batch_matvec(&self.weights, group, x, of.x_units(), rms, before)
        };
        (0..self.tokens * of.used()).flat_map(own).collect()
    }

    /// The product on the device, with places for the output.
    fn product<'w>(&self, lab: &Lab<'_>, weights: &'w [GpuWeight]) -> GpuBatchMatvec<'w> {
        let (of, x) = (self.of, &self.x);
        let n = self.tokens * of.used() * of.width();
        let input = match of.kind {
            Kind::Stream => {
                let [x, norm, squares] = [&x.x, &x.norm, &x.squares].map(|data| lab.given(data));
                Input::Stream(x, norm, squares, EPS)
            }
            _ if of.is_normed() => Input::Prepared(x.input(lab)),
            _ => Input::Prepared(TokenInput::of(lab.prepared(&x.weighted))),
        };
        let is_prepared = of.shape[1].is_multiple_of(32);
        // Tier `plain` has no buffers for all of these.
        let many = is_prepared
            && of.is_normed()
            && (of.has_residual() || of.pair || of.kind == Kind::Stream);
        let g = (!of.has_experts() && !of.pair).then_some(&self.g[..]);
        GpuBatchMatvec {
            up: weights.get(1),
            x_stride: (x.norm.len() / 32) as u32,
            x_group: of.x_units() as u32,
            experts: of.has_experts().then(|| self.tiles(lab)),
            residual: of.has_residual().then(|| lab.given(&self.before)),
            y: (lab.gpu.tier.has_subgroups() || !many).then(|| lab.room(n)),
            prepared: is_prepared.then(|| lab.output(n, g)),
            ..GpuBatchMatvec::new(lab.gpu, &weights[0], self.tokens as u32, input)
        }
    }

    fn tiles(&self, lab: &Lab<'_>) -> Tiles {
        let [most, used, count] = [self.tokens, self.of.used(), self.of.shape[0]].map(|n| n as u32);
        let mut tiles = tiles_of(&self.ids, count as usize, self.places);
        let all = tile_count(most, used, self.places, count);
        tiles.resize(all as usize, [0; TILE_WORDS as usize]);
        Tiles {
            list: lab.given(&tiles),
            places: self.places,
            experts: count,
            used,
            most,
            by_token: matches!(self.of.kind, Kind::ByToken(_)),
            counts: None,
        }
    }
}

/// Logits of any number of experts leave in rows of whole vec4.
fn strided_logits(lab: &Lab<'_>, of: Product) -> Result<Vec<Compared>, GpuError> {
    let problem = Problem::new(lab, of);
    let twin = problem.twin(lab);
    let on_gpu = [lab.load(&problem.weights[0])?];
    let (rows, stride) = (of.shape[1], of.shape[1].next_multiple_of(4));
    let y = lab.room(problem.tokens * stride);
    let product = GpuBatchMatvec {
        y: Some(y.clone()),
        prepared: None,
        ..problem.product(lab, &on_gpu)
    };
    lab.run(product.calls(lab.gpu)?, state(problem.tokens, 0))?;
    let found: Vec<f32> = lab.read(&y, problem.tokens * stride)?;
    let tokens = found.chunks(stride).zip(twin.chunks(rows));
    let tokens = tokens.map(|(found, twin)| lab.close(&found[..rows], twin, 1e-11));
    Ok(tokens.collect())
}

pub(crate) fn cases() -> Vec<Case> {
    let of = |ty, kind, shape, pair| Product {
        ty,
        kind,
        shape,
        pair,
        tokens: None,
        division: Division::Default,
    };
    let of_type = |&ty: &GgmlType| {
        let case = of(ty, Kind::Dense, [1, 160, 768], false).case();
        case.verified_if(TYPES.contains(&ty))
    };
    let mut all: Vec<_> = GgmlType::ALL.iter().map(of_type).collect();
    // q_a, kv_a, k_b, v_b, the router, a dense pair; of GLM-4.7-Flash and DeepSeek-V2-Lite.
    all.extend([
        of(Q4_0, Kind::Dense, [1, 768, 2048], false).case().long(),
        of(Q4_K, Kind::Dense, [1, 576, 2048], false).case().long(),
        of(Q5_0, Kind::Heads(8), [20, 512, 192], false)
            .case()
            .verified(),
        of(Q8_0, Kind::Heads(6), [16, 512, 128], false)
            .case()
            .long(),
        of(Q4_0, Kind::Heads(16), [20, 256, 512], false)
            .case()
            .long(),
        of(F32, Kind::Stream, [1, 64, 2048], false)
            .case()
            .verified(),
        of(Q4_0, Kind::Dense, [1, 320, 2048], true).case().long(),
        of(Q5_0, Kind::Dense, [1, 32, 10944], false).case().long(),
        of(Q6_K, Kind::Dense, [1, 1004, 2048], false).case().long(),
    ]);
    let experts = [
        of(Q4_0, Kind::ByToken(4), [9, 96, 512], true),
        of(Q5_1, Kind::BySlot(4), [9, 64, 352], false),
        of(Q4_K, Kind::ByToken(2), [3, 32, 256], true),
        of(Q6_K, Kind::BySlot(1), [2, 68, 256], false),
    ];
    for (i, product) in experts.into_iter().enumerate() {
        for tokens in [2, 19] {
            let case = Product {
                tokens: Some(tokens),
                ..product
            }
            .case();
            all.push(case.verified_if(i < 2 && tokens == 19));
        }
    }
    all.push(ragged());
    let many = [
        of(Q4_0, Kind::Dense, [1, 160, 1120], false),
        of(Q5_0, Kind::Heads(8), [5, 96, 192], false),
        of(Q8_0, Kind::ByToken(2), [3, 96, 256], true),
        of(F32, Kind::Stream, [1, 64, 512], false),
    ];
    all.extend(many.map(|product| {
        let (tokens, division) = (Some(7), Division::Some);
        Product {
            tokens,
            division,
            ..product
        }
        .case()
        .long()
    }));
    all.extend([5, 13, 62].map(|rows| {
        let product = Product {
            tokens: Some(7),
            ..of(F32, Kind::Stream, [1, rows, 512], false)
        };
        let name = format!("f32 {rows}x512, logits in whole vec4");
        Case::new(name, move |lab| strided_logits(lab, product))
    }));
    all
}

/// Threads behind the ends of rows and tiles, which add nothing. A test runs it on each device.
pub(crate) fn ragged() -> Case {
    // 8 threads share a row of 27 units and take 2 each at a time. The last tile of 16 rows has only 4. Of 8 places for tokens one is empty.
    let geometry = Geometry {
        lanes: 8,
        tile: 16,
        at_once: 1,
        unroll: 2,
    };
    let ragged = Product {
        tokens: Some(7),
        division: Division::This(geometry, 8),
        ty: Q4_0,
        kind: Kind::Dense,
        shape: [1, 68, 864],
        pair: false,
    };
    ragged.case()
}
