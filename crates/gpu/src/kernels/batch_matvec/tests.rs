//! Protects the products of a batch: every type and shape agrees with the twin, for one weight, heads and experts, in every geometry.

use super::*;
use crate::gpu::buffer::{Buffer, Role};
use crate::gpu::call::State;
use crate::gpu::testing::{
    all_gpus, download, gpu_weights, output, run, token_gpus_with_binding, upload,
};
use crate::gpu::{Gpu, Most};
use crate::kernels::batch_experts::{MOST_PLACES, TILE_WORDS, Tile, tiles_of};
use crate::kernels::expert_rows::tile_count;
use crate::kernels::testing::bounds::needs_every_byte;
use crate::kernels::testing::{Rng, assert_close, drawn, drawn_pairs, random_weight};
use crate::kernels::token::testing::{
    activation, assert_prepared, some_of, stand_for, sums_nmse, upload_values,
};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::squares;

const EPS: f32 = 1e-5;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Dense,
    /// Heads whose inputs are so many units apart.
    Heads(usize),
    /// With so many experts a token, whose slots share a row of the input or have a row each.
    ByToken(usize),
    BySlot(usize),
    /// f32 times the norm's weight.
    Stream,
}

struct Case {
    ty: GgmlType,
    kind: Kind,
    groups: usize,
    rows: usize,
    cols: usize,
    pair: bool,
    tokens: usize,
}

/// Type, kind, groups, rows, columns, and whether there are two weights.
type Product = (GgmlType, Kind, usize, usize, usize, bool);

impl Case {
    fn of((ty, kind, groups, rows, cols, pair): Product, tokens: usize) -> Self {
        Self {
            ty,
            kind,
            groups,
            rows,
            cols,
            pair,
            tokens,
        }
    }

    /// Experts of a token, 1 where groups are none.
    fn used(&self) -> usize {
        match self.kind {
            Kind::ByToken(used) | Kind::BySlot(used) => used,
            _ => 1,
        }
    }

    fn has_experts(&self) -> bool {
        matches!(self.kind, Kind::ByToken(_) | Kind::BySlot(_))
    }

    /// Rows of the input and of the output.
    fn in_and_out(&self) -> [usize; 2] {
        let out = self.tokens * self.used();
        match self.kind {
            Kind::BySlot(_) => [out, out],
            _ => [self.tokens, out],
        }
    }

    /// Values of a row of the input, and of the output.
    fn widths(&self) -> [usize; 2] {
        match self.kind {
            Kind::Heads(x_units) => [self.groups * x_units * 32, self.groups * self.rows],
            _ if self.has_experts() => [self.cols, self.rows],
            _ => [self.cols, self.groups * self.rows],
        }
    }

    fn is_normed(&self) -> bool {
        matches!(self.kind, Kind::Dense | Kind::ByToken(_) | Kind::Stream)
    }

    fn has_residual(&self) -> bool {
        self.kind == Kind::Dense && !self.pair
    }

    /// The form in which the input is multiplied.
    fn form(&self, gpu: &Gpu) -> Activation {
        match self.kind {
            Kind::Stream => Activation::Floats,
            _ => activation(gpu),
        }
    }
}

/// A case with random values.
struct Problem<'a> {
    case: &'a Case,
    weights: Vec<Weight>,
    /// The expert of each slot, and the tiles of each expert's slots.
    ids: Vec<u32>,
    places: u32,
    tiles: Vec<Tile>,
    x: Vec<f32>,
    norm: Vec<f32>,
    before: Vec<f32>,
    /// The weight of the norm behind it.
    g: Vec<f32>,
}

impl<'a> Problem<'a> {
    fn new(rng: &mut Rng, case: &'a Case) -> Self {
        let weight = |rng: &mut Rng| random_weight(rng, case.ty, case.groups, case.rows, case.cols);
        let weights = (0..1 + usize::from(case.pair))
            .map(|_| weight(rng))
            .collect();
        let first = rng.below(case.groups);
        let of_token =
            |t| (0..case.used()).map(move |k| ((first + t / 3 + k) % case.groups) as u32);
        let ids: Vec<u32> = (0..case.tokens).flat_map(of_token).collect();
        let places = 2 + 2 * rng.below(2) as u32;
        let tiles = match case.has_experts() {
            true => tiles_of(&ids, case.groups, places),
            false => vec![],
        };
        let ([inputs, outputs], [width, n]) = (case.in_and_out(), case.widths());
        Self {
            case,
            weights,
            ids,
            places,
            tiles,
            x: rng.normals(inputs * width),
            norm: rng.normals(width),
            before: rng.normals(outputs * n),
            g: rng.normals(n),
        }
    }

    /// The input times the weight of its norm.
    fn weighted(&self) -> Vec<f32> {
        let pairs = self.x.iter().zip(self.norm.iter().cycle());
        pairs.map(|(x, g)| x * g).collect()
    }

    fn twin(&self, gpu: &Gpu) -> Vec<f32> {
        let Self { case, ids, .. } = self;
        let [_, outputs] = case.in_and_out();
        let [width, n] = case.widths();
        let stands = match case.form(gpu) {
            Activation::Floats => self.weighted(),
            form => stand_for(form, &self.weighted()),
        };
        let squares = squares(&self.x);
        let x_units = match case.kind {
            Kind::Heads(x_units) => x_units,
            _ => 0,
        };
        let mut twin = vec![f32::NAN; outputs * n];
        let mut own = |out: usize, row: usize, group: Option<usize>| {
            let rms = case
                .is_normed()
                .then(|| (&squares[row * width / 16..][..width / 16], EPS));
            let before = case.has_residual().then(|| &self.before[out * n..][..n]);
            let x = &stands[row * width..][..width];
            let y = batch_matvec(&self.weights, group, x, x_units, rms, before);
            twin[out * n..][..n].copy_from_slice(&y);
        };
        for out in 0..outputs {
            let expert = ids.get(out).map(|id| *id as usize);
            match case.kind {
                Kind::ByToken(used) => own(out, out / used, expert),
                Kind::BySlot(_) => own(out, out, expert),
                _ => own(out, out, None),
            }
        }
        twin
    }

    /// On the device, with places for the output.
    fn product<'w>(&self, gpu: &Gpu, weights: &'w [GpuWeight]) -> GpuBatchMatvec<'w> {
        let case = self.case;
        let ([_, outputs], [width, n]) = (case.in_and_out(), case.widths());
        let range = |data: &[f32]| Range::whole(&upload(gpu, data));
        let sums = || range(&squares(&self.x));
        let input = match case.kind {
            Kind::Stream => Input::Stream(range(&self.x), range(&self.norm), sums(), EPS),
            _ => Input::Prepared(TokenInput {
                values: upload_values(gpu, &self.weighted()),
                rms: case.is_normed().then(|| (sums(), EPS)),
            }),
        };
        let words = activation(gpu).bytes((outputs * n).div_ceil(32) as u64) as usize / 4;
        let prepared = TokenOutput {
            values: Range::whole(&output(gpu, words)).holding(Role::prepared(activation(gpu))),
            norm: (!case.has_experts() && !case.pair)
                .then(|| (range(&self.g), Range::whole(&output(gpu, outputs * n / 16)))),
        };
        let most = case.tokens as u32;
        let is_prepared = case.rows.is_multiple_of(32);
        // Tier `plain` has no buffers for all of these.
        let many = is_prepared
            && case.is_normed()
            && (case.has_residual() || case.pair || case.kind == Kind::Stream);
        let has_y = gpu.tier.has_subgroups() || !many;
        GpuBatchMatvec {
            up: weights.get(1),
            x_stride: (width / 32) as u32,
            x_group: match case.kind {
                Kind::Heads(x_units) => x_units as u32,
                _ => 0,
            },
            experts: case.has_experts().then(|| self.experts(gpu)),
            residual: case.has_residual().then(|| range(&self.before)),
            y: has_y.then(|| Range::whole(&output(gpu, outputs * n))),
            prepared: is_prepared.then_some(prepared),
            ..GpuBatchMatvec::new(gpu, &weights[0], most, input)
        }
    }

    fn experts(&self, gpu: &Gpu) -> Tiles {
        let case = self.case;
        let [most, used, groups] = [case.tokens, case.used(), case.groups].map(|n| n as u32);
        let mut tiles = self.tiles.clone();
        let count = tile_count(most, used, self.places, groups);
        tiles.resize(count as usize, [0; TILE_WORDS as usize]);
        Tiles {
            list: Range::whole(&upload(gpu, &tiles)),
            places: self.places,
            used,
            most,
            by_token: matches!(case.kind, Kind::ByToken(_)),
            counts: None,
        }
    }
}

/// How the work is divided.
#[derive(Clone, Copy, PartialEq)]
enum Division {
    /// The division that the device takes.
    Default,
    /// In some of the geometries that the device allows.
    Some,
    /// In this geometry, with so many tokens at once.
    This(Geometry, u32),
}

/// Compares the kernel with its twin; the pieces of the weight.
fn check(gpu: &Gpu, rng: &mut Rng, case: &Case, division: Division) -> usize {
    let problem = Problem::new(rng, case);
    let twin = problem.twin(gpu);
    let refs: Vec<&Weight> = problem.weights.iter().collect();
    let on_gpu = gpu_weights(gpu, &refs);
    let site = problem.product(gpu, &on_gpu).site();
    let geometries = match division {
        Division::Some => some_of(site.candidates(gpu.machine)),
        Division::Default => vec![gpu.geometry(&site).expect("the device allows one")],
        Division::This(geometry, _) => vec![geometry],
    };
    for geometry in geometries {
        let mut product = problem.product(gpu, &on_gpu);
        if let Division::This(_, columns) = division {
            product.columns = columns;
        }
        let calls = match product.calls_with(gpu, &geometry) {
            Ok(calls) => calls,
            Err(GpuError::TierUnsupported { .. }) if division == Division::Some => continue,
            Err(e) => panic!("{e}"),
        };
        let state = State {
            tokens: case.tokens as u32,
            ..State::default()
        };
        run(gpu, &calls, &state);
        let Case {
            ty,
            groups,
            rows,
            cols,
            tokens,
            ..
        } = case;
        let what = format!(
            "{} {groups} x {rows} x {cols}, {tokens} tokens, {geometry:?}",
            ty.name()
        );
        let exact: Vec<f64> = twin.iter().map(|v| f64::from(*v)).collect();
        let mut found = twin.clone();
        if let Some(y) = &product.y {
            found = download(gpu, &y.buffer, twin.len());
            assert_close(&found, &exact, sums_nmse(case.form(gpu)), &what);
        }
        if let Some(prepared) = &product.prepared {
            let g: Vec<f32> = problem.g.iter().cycle().take(twin.len()).copied().collect();
            let g = prepared.norm.is_some().then_some(&g[..]);
            assert_prepared(gpu, prepared, g, &found, &what);
        }
    }
    on_gpu[0].pieces.len()
}

#[test]
fn logits_of_any_number_of_experts_leave_in_rows_of_whole_vec4() {
    let (mut rng, tokens) = (Rng::fresh(), 7);
    for (gpu, rows) in drawn_pairs(&all_gpus(), &[5, 13, 62]) {
        let case = Case::of((GgmlType::F32, Kind::Stream, 1, *rows, 512, false), tokens);
        let problem = Problem::new(&mut rng, &case);
        let exact: Vec<f64> = problem.twin(gpu).iter().map(|v| f64::from(*v)).collect();
        let on_gpu = gpu_weights(gpu, &[&problem.weights[0]]);
        let stride = rows.next_multiple_of(4);
        let y = output(gpu, tokens * stride);
        let product = GpuBatchMatvec {
            y: Some(Range::whole(&y)),
            prepared: None,
            ..problem.product(gpu, &on_gpu)
        };
        let state = State {
            tokens: tokens as u32,
            ..State::default()
        };
        run(gpu, &product.calls(gpu).expect("rows may be any"), &state);
        let found: Vec<f32> = download(gpu, &y, tokens * stride);
        for (found, exact) in found.chunks(stride).zip(exact.chunks(*rows)) {
            assert_close(&found[..*rows], exact, sums_nmse(case.form(gpu)), "logits");
        }
    }
}

/// Numbers of tokens that fill workgroups and that do not.
const TOKENS: [usize; 5] = [1, 2, 5, 8, 19];

#[test]
fn the_gpu_agrees_for_every_type() {
    let mut rng = Rng::fresh();
    for (gpu, &ty) in drawn_pairs(&all_gpus(), GgmlType::ALL) {
        let case = Case {
            ty,
            kind: Kind::Dense,
            groups: 1,
            rows: 160,
            cols: 768,
            pair: false,
            tokens: 1 + rng.below(9),
        };
        check(gpu, &mut rng, &case, Division::Default);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn the_gpu_agrees_at_the_shapes_of_the_models() {
    let mut rng = Rng::fresh();
    // q_a, kv_a, k_b, v_b, the router, a dense pair; of GLM-4.7-Flash and DeepSeek-V2-Lite.
    let shapes = [
        (GgmlType::Q4_0, Kind::Dense, 1, 768, 2048, false),
        (GgmlType::Q4_K, Kind::Dense, 1, 576, 2048, false),
        (GgmlType::Q5_0, Kind::Heads(8), 20, 512, 192, false),
        (GgmlType::Q8_0, Kind::Heads(6), 16, 512, 128, false),
        (GgmlType::Q4_0, Kind::Heads(16), 20, 256, 512, false),
        (GgmlType::F32, Kind::Stream, 1, 64, 2048, false),
        (GgmlType::Q4_0, Kind::Dense, 1, 320, 2048, true),
        (GgmlType::Q5_0, Kind::Dense, 1, 32, 10944, false),
        (GgmlType::Q6_K, Kind::Dense, 1, 1004, 2048, false),
    ];
    for (gpu, &product) in drawn_pairs(&all_gpus(), &shapes) {
        let tokens = TOKENS[rng.below(TOKENS.len())];
        let case = Case::of(product, tokens);
        check(gpu, &mut rng, &case, Division::Default);
    }
}

#[test]
fn experts_take_their_own_tokens() {
    let mut rng = Rng::fresh();
    let cases = [
        (GgmlType::Q4_0, Kind::ByToken(4), 9, 96, 512, true),
        (GgmlType::Q5_1, Kind::BySlot(4), 9, 64, 352, false),
        (GgmlType::Q4_K, Kind::ByToken(2), 3, 32, 256, true),
        (GgmlType::Q6_K, Kind::BySlot(1), 2, 68, 256, false),
    ];
    for tokens in [2, 19] {
        for (gpu, &product) in drawn_pairs(&all_gpus(), &cases) {
            let case = Case::of(product, tokens);
            check(gpu, &mut rng, &case, Division::Default);
        }
    }
}

#[test]
fn experts_lie_in_any_piece() {
    for gpu in token_gpus_with_binding(40_000) {
        let mut rng = Rng::fresh();
        let case = Case {
            ty: GgmlType::Q4_0,
            kind: Kind::ByToken(2),
            groups: 8,
            rows: 96,
            cols: 256,
            pair: true,
            tokens: 19,
        };
        let pieces = check(&gpu, &mut rng, &case, Division::Default);
        assert!(pieces > 1, "{pieces} pieces");
    }
}

#[test]
fn threads_behind_the_ends_of_rows_and_tiles_add_nothing() {
    // 8 threads share a row of 27 units and take 2 each at a time. The last tile of 16 rows has only 4. Of 8 places for tokens one is empty.
    let geometry = Geometry {
        lanes: 8,
        tile: 16,
        at_once: 1,
        unroll: 2,
    };
    for gpu in all_gpus() {
        let mut rng = Rng::fresh();
        let case = Case {
            ty: GgmlType::Q4_0,
            kind: Kind::Dense,
            groups: 1,
            rows: 68,
            cols: 864,
            pair: false,
            tokens: 7,
        };
        check(gpu, &mut rng, &case, Division::This(geometry, 8));
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn other_geometries_give_the_same() {
    let mut rng = Rng::fresh();
    // Two of them in each run.
    let cases = [
        (GgmlType::Q4_0, Kind::Dense, 1, 160, 1120, false),
        (GgmlType::Q5_0, Kind::Heads(8), 5, 96, 192, false),
        (GgmlType::Q8_0, Kind::ByToken(2), 3, 96, 256, true),
        (GgmlType::F32, Kind::Stream, 1, 64, 512, false),
    ];
    for &(gpu, &product) in drawn(&drawn_pairs(&all_gpus(), &cases), 2) {
        let case = Case::of(product, 7);
        check(gpu, &mut rng, &case, Division::Some);
    }
}

#[test]
fn every_index_lies_in_its_buffer() {
    let target = Target::h200();
    let form = target.activation();
    let (groups, rows, cols, tokens, used) = (3, 64, 256, 9, 2);
    let w = crate::gpu::testing::unmade_weight(GgmlType::Q4_0, groups, rows, cols);
    let most = Most { tokens, context: 9 };
    let values = |rows: u32, n: u32| Range::prepared("values", form, rows * n);
    for by_token in [true, false] {
        let outputs = tokens * used;
        let inputs = if by_token { tokens } else { outputs };
        let tiles = u64::from(tile_count(tokens, used, MOST_PLACES, groups));
        let product = GpuBatchMatvec {
            experts: Some(Tiles {
                list: Range::words("tiles", u64::from(TILE_WORDS) * tiles),
                places: MOST_PLACES,
                used,
                most: tokens,
                by_token,
                counts: None,
            }),
            y: Some(Range::whole(&Buffer::new(
                "y",
                u64::from(outputs * rows) * 4,
                Role::Floats,
            ))),
            ..GpuBatchMatvec::new(
                &target,
                &w,
                tokens,
                Input::Prepared(TokenInput::of(values(inputs, cols))),
            )
        };
        for call in product.calls(&target).expect("it is allowed") {
            needs_every_byte(&call, most);
        }
    }
}
