//! Cases of the products of prompts: of one weight, of heads, of pairs and of experts, in f32 or by matrices.

use super::lab::{self, Compared, Lab, state};
use super::{Case, TYPES};
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::{Gpu, GpuError};
use crate::kernels::expert_rows::{expert_rows, tile_count};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile, expert_tiles, tiles};
use crate::kernels::products::{MatvecOptions, Products};
use crate::kernels::rows_f16::rows_f16;
use crate::model::Weight;
use crate::quant::GgmlType::{self, F32, IQ4_NL, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0};

/// The greatest NMSE: f32 sums of up to 11000 products in another order differ, and so do inputs and weights rounded to f16 (2^-12 each).
const fn limit(form: Form) -> f64 {
    match form {
        Form::Float { .. } => 1e-10,
        Form::Matrix(_) => 1e-6,
    }
}

/// `rows` rows of `cols` values, as `form` takes them. The rows behind those of `x` are NaN.
fn input(lab: &Lab<'_>, form: Form, x: &[f32], cols: usize, rows: usize) -> Input {
    match form {
        Form::Float { .. } => Input::Floats(lab.padded(x, cols, rows)),
        Form::Matrix(_) => {
            let (mut halves, scales) = rows_f16(x, cols, None);
            halves.resize(cols * rows, half::f16::NAN);
            Input::Halves([lab.given(&halves), lab.padded(&scales, 1, rows)])
        }
    }
}

/// A product of heads or of one group.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub ty: GgmlType,
    /// Groups, rows and columns.
    pub shape: [usize; 3],
    /// Values from one head's input to the next.
    pub head: usize,
    pub tokens: usize,
    pub residual: bool,
    /// Ranges that the columns are cut into.
    pub split_k: usize,
    pub tile: Option<Tile>,
}

impl Product {
    pub const fn of(ty: GgmlType, rows: usize, cols: usize, tokens: usize) -> Self {
        Self {
            ty,
            shape: [1, rows, cols],
            head: cols,
            tokens,
            residual: false,
            split_k: 1,
            tile: None,
        }
    }

    /// The case of this product in `form`.
    pub fn case(self, form: Form) -> Case {
        let ([groups, rows, cols], tokens) = (self.shape, self.tokens);
        let groups = if groups > 1 {
            format!("{groups}x")
        } else {
            String::new()
        };
        let ranges = match self.split_k {
            1 => String::new(),
            ranges => format!(" in {ranges} ranges"),
        };
        let tile = self
            .tile
            .map_or(String::new(), |tile| format!(", {tile:?}"));
        let shape = format!("{} {groups}{rows}x{cols}{ranges}, {tokens} tokens", self.ty);
        Case::new(shape + &tile + by(form), move |lab| self.compare(lab, form))
    }

    pub fn compare(self, lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
        let ([groups, rows, _], tokens, split_k) = (self.shape, self.tokens, self.split_k);
        let w = lab.weight(self.ty, self.shape);
        let (stride, out) = (groups * self.head, groups * rows);
        let x = lab.normals(tokens * stride);
        let residual = self.residual.then(|| lab.normals(tokens * out));
        let mut options = MatvecOptions::per_group(stride, self.head);
        options.residual = residual.as_deref();
        let mut twin = vec![0.0; tokens * out];
        Products::Exact.matvec(&w, &x, tokens, options, &mut twin);
        let most = tokens + 2;
        let weight = lab.load(&w)?;
        let (x, y) = (
            input(lab, form, &x, stride, most),
            lab.room(split_k * most * out),
        );
        let product = GpuGemm {
            x_stride: stride as u32,
            x_group_stride: if groups == 1 { 0 } else { self.head as u32 },
            residual: residual.map(|residual| lab.padded(&residual, out, most)),
            split_k: split_k as u32,
            tile: self.tile,
            ..GpuGemm::of(form, &weight, x, most as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(tokens, 0))?;
        let sums: Vec<f32> = lab.read(&y, split_k * most * out)?;
        let mut found = vec![0.0; most * out];
        for sums in sums.chunks_exact(most * out) {
            let pairs = found.iter_mut().zip(sums);
            pairs.for_each(|(all, sum)| *all += sum);
        }
        let (found, behind) = found.split_at(tokens * out);
        Ok(vec![
            lab.close(found, &twin, limit(form)),
            lab.holds(behind.iter().all(|v| v.is_nan()), || {
                "padded rows".to_owned()
            }),
        ])
    }
}

/// The end of the name of a case in this form.
const fn by(form: Form) -> &'static str {
    match form {
        Form::Float { .. } => "",
        Form::Matrix(_) => ", matrices",
    }
}

/// Gate and up of a dense block.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub types: [GgmlType; 2],
    /// Rows and columns.
    pub shape: [usize; 2],
    pub tokens: usize,
    pub tile: Option<Tile>,
}

impl Pair {
    pub fn case(self, form: Form) -> Case {
        let ([gate, up], [rows, cols]) = (self.types, self.shape);
        let tile = self
            .tile
            .map_or(String::new(), |tile| format!(", {tile:?}"));
        let name = format!(
            "{gate} and {up} {rows}x{cols}, {} tokens{tile}",
            self.tokens
        );
        Case::new(name + by(form), move |lab| self.compare(lab, form))
    }

    pub fn compare(self, lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
        let ([rows, cols], tokens) = (self.shape, self.tokens);
        let [gate, up] = self.types.map(|ty| lab.weight(ty, [1, rows, cols]));
        let x = lab.normals(tokens * cols);
        let mut twin = vec![0.0; tokens * rows];
        Products::Exact.gate_up([&gate, &up], &x, tokens, None, None, &mut twin);
        let most = tokens + 1;
        let (x, y) = (input(lab, form, &x, cols, most), lab.room(most * rows));
        let weights = lab.load_alike(&[&gate, &up])?;
        let product = GpuGemm {
            up: Some(&weights[1]),
            tile: self.tile,
            ..GpuGemm::of(form, &weights[0], x, most as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(tokens, 0))?;
        Ok(vec![lab.floats(&y, &twin, 10.0 * limit(form))?])
    }
}

/// Gate and up of experts, or down, with their slots in the order of [`expert_rows`].
#[derive(Clone, Copy)]
pub(crate) struct OfExperts {
    /// The types of gate and up, or any. Down has the first one.
    pub types: Option<[GgmlType; 2]>,
    /// The number of experts, the experts of each token, rows and columns.
    pub sizes: [usize; 4],
    pub tokens: usize,
    /// Slots of a tile.
    pub height: u32,
    /// Whether the product is gate and up, which read the rows of tokens and leave those of places, or down, which reads the rows of places
    /// and leaves those of slots.
    pub gather: bool,
}

impl OfExperts {
    pub fn case(self, form: Form) -> Case {
        let [count, used, rows, cols] = self.sizes;
        let ty = self
            .types
            .map_or("any".to_owned(), |[ty, _]| ty.to_string());
        let how = if self.gather { "pair" } else { "down" };
        let (tokens, height) = (self.tokens, self.height);
        let name = format!("{ty} {how} {used} of {count}x{rows}x{cols}, {tokens} by {height}");
        Case::new(name + by(form), move |lab| self.compare(lab, form))
    }

    /// Different experts for the slots of a token, most of them among the first.
    fn ids(self, lab: &Lab<'_>) -> Vec<u32> {
        let [count, used, ..] = self.sizes;
        let of_token = |_| {
            let first = lab.below(count) * lab.below(2);
            (0..used).map(move |k| ((first + k) % count) as u32)
        };
        (0..self.tokens).flat_map(of_token).collect()
    }

    /// The sorted slots on the device, with room for `most` tokens, and in the order of places.
    fn sorted(self, lab: &Lab<'_>, form: Form, ids: &[u32], most: usize) -> (GpuExperts, Vec<u32>) {
        let [count, used, rows, _] = self.sizes.map(|n| n as u32);
        let (slots, mut lists) = expert_rows(ids, count as usize, &[self.height as usize]);
        let mut tiles = lists.remove(0);
        // The workgroups of one of the two products are counted. Anything may stand behind their tiles.
        let mut counts = GpuExperts::workgroups(form, self.height, [rows; 2]);
        counts
            .iter_mut()
            .for_each(|grid| grid[1] = tiles.len() as u32);
        let all = tile_count(most as u32, used, self.height, count);
        tiles.resize(all as usize, [u32::MAX; 4]);
        let mut places = slots.clone();
        places.resize(most * used as usize, u32::MAX);
        let experts = GpuExperts {
            tiles: lab.given(tiles.as_flattened()),
            slots: lab.given(&places),
            used,
            height: self.height,
            gather: self.gather,
            counts: Some(Range::whole(&Buffer::counts("workgroups", &counts))),
            either: false,
        };
        (experts, slots)
    }

    pub fn compare(self, lab: &Lab<'_>, form: Form) -> Result<Vec<Compared>, GpuError> {
        let ([count, used, rows, cols], tokens) = (self.sizes, self.tokens);
        let (ids, most) = (self.ids(lab), tokens + 2);
        let (experts, slots) = self.sorted(lab, form, &ids, most);
        let any = || [lab.one_of(GgmlType::ALL), lab.one_of(GgmlType::ALL)];
        let [ty, of_up] = self.types.unwrap_or_else(any);
        let w = lab.weight(ty, [count, rows, cols]);
        let up = self.gather.then(|| lab.weight(of_up, [count, rows, cols]));
        let (mut twin, inputs, limit) = (vec![0.0; ids.len() * rows], most, limit(form));
        let (x, weights, inputs, limit) = match &up {
            Some(up) => {
                let x = lab.normals(tokens * cols);
                let mut h = twin.clone();
                Products::Exact.gate_up([&w, up], &x, tokens, None, Some(&ids), &mut h);
                for (place, slot) in twin.chunks_exact_mut(rows).zip(&slots) {
                    place.copy_from_slice(&h[*slot as usize * rows..][..rows]);
                }
                (x, lab.load_alike(&[&w, up])?, inputs, 10.0 * limit)
            }
            None => {
                let x = lab.normals(ids.len() * cols);
                for (x, slot) in x.chunks_exact(cols).zip(&slots) {
                    let slot = *slot as usize;
                    let y = of_expert(&w, ids[slot] as usize, x);
                    twin[slot * rows..][..rows].copy_from_slice(&y);
                }
                (x, lab.load_alike(&[&w])?, inputs * used, limit)
            }
        };
        let (x, y) = (
            input(lab, form, &x, cols, inputs),
            lab.room(most * used * rows),
        );
        let product = GpuGemm {
            up: weights.get(1),
            experts: Some(experts),
            ..GpuGemm::of(form, &weights[0], x, most as u32, &y)
        };
        lab.run(product.calls(lab.gpu), state(tokens, 0))?;
        Ok(vec![lab.floats(&y, &twin, limit)?])
    }
}

/// The product of one expert.
fn of_expert(w: &Weight, expert: usize, x: &[f32]) -> Vec<f32> {
    let bytes = (0..w.rows).flat_map(|row| w.row(expert, row)).copied();
    let own = Weight::from_bytes(
        "expert",
        w.ty,
        1,
        w.rows,
        w.cols,
        bytes.collect::<Vec<u8>>(),
    );
    let mut y = vec![0.0; w.rows];
    Products::Exact.matvec(&own, x, 1, MatvecOptions::contiguous(x.len()), &mut y);
    y
}

/// Cases in the forms that a device takes after it has tried them.
pub(super) fn tried(gpu: &Gpu) -> Vec<Case> {
    let mut forms = vec![Form::float(gpu)];
    let mut failed = None;
    match lab::tried(Form::for_prompts(gpu)) {
        Ok(form) => forms.push(form),
        Err(error) => failed = Some(Case::failed("gemm_coop", error)),
    }
    forms.dedup();
    let all = forms
        .into_iter()
        .flat_map(|form| cases(form).into_iter().chain(everywhere(form)));
    all.chain(failed).collect()
}

/// Every type, shapes of the models, and experts in every tile.
pub(crate) fn cases(form: Form) -> Vec<Case> {
    let of_type = |(i, &ty): (usize, &GgmlType)| {
        let product = Product {
            residual: i.is_multiple_of(2),
            ..Product::of(ty, 70 - i, 512, 9 + 2 * i)
        };
        product.case(form).verified_if(TYPES.contains(&ty))
    };
    let mut all: Vec<_> = GgmlType::ALL.iter().enumerate().map(of_type).collect();
    let shapes = [
        (F32, 64, 2048, 33),
        (Q4_0, 576, 2048, 20),
        (Q5_0, 100, 1408, 17),
        (Q4_0, 40, 10_944, 12),
        (Q8_0, 10_944, 64, 9),
        (Q6_K, 15_488, 256, 2),
        (Q8_0, 154_880, 32, 3),
        (Q8_0, 1, 32, 150),
        (IQ4_NL, 129, 96, 257),
    ];
    all.extend(
        shapes.map(|(ty, rows, cols, tokens)| Product::of(ty, rows, cols, tokens).case(form)),
    );
    for tile in expert_tiles(form, true) {
        // Some experts with full tiles, some with less than half, some with less than a quarter of one.
        for tokens in [37, 2 * tile.tokens as usize + 44] {
            all.extend(of_experts(
                form,
                None,
                [5, 2, 256, 256],
                tokens,
                tile.tokens,
            ));
        }
    }
    let others = GgmlType::ALL.iter().cycle().skip(1);
    all.extend(GgmlType::ALL.iter().zip(others).map(|(&ty, &other)| {
        let pair = Pair {
            types: [ty, other],
            shape: [65, 256],
            tokens: 11,
            tile: None,
        };
        pair.case(form).long()
    }));
    all
}

/// Ranges of the columns, heads and experts at shapes of models. A test runs these on each device.
pub(crate) fn everywhere(form: Form) -> Vec<Case> {
    let mut all = vec![];
    let ranges = [
        (F32, 64, 2048, 33, 8),
        (Q4_0, 96, 768, 70, 3),
        (Q6_K, 130, 512, 129, 2),
    ];
    all.extend(ranges.map(|(ty, rows, cols, tokens, split_k)| {
        let product = Product {
            split_k,
            ..Product::of(ty, rows, cols, tokens)
        };
        product.case(form).verified_if(ty == F32)
    }));
    // attn_k_b and attn_v_b of GLM-4.7-Flash, fewer heads; an odd one.
    let heads = [
        (Q8_0, [3, 512, 192], 256),
        (Q4_0, [3, 256, 512], 512),
        (Q5_1, [5, 41, 96], 100),
    ];
    all.extend(heads.map(|(ty, shape, head)| {
        let product = Product {
            shape,
            head,
            ..Product::of(ty, 0, 0, 21)
        };
        product.case(form).verified_if(ty == Q8_0)
    }));
    // DeepSeek-V2-Lite's experts, narrower, and a single one.
    let verified = of_experts(form, Some([Q4_K, Q5_0]), [64, 6, 96, 256], 40, 16);
    all.extend(verified.map(Case::verified));
    let types = Some([Q4_0, Q5_0]);
    all.extend(of_experts(form, types, [64, 6, 352, 96], 40, 16));
    all.extend(of_experts(form, types, [1, 1, 32, 32], 65, 16));
    all.extend(of_experts(form, types, [8, 8, 32, 64], 2, 16));
    let tile =
        |tile: &Tile| [tile.tokens as usize + 1, tile.tokens as usize - 3].map(|n| (*tile, n));
    all.extend(
        tiles(form, false)
            .iter()
            .flat_map(tile)
            .map(|(tile, tokens)| {
                let product = Product {
                    tile: Some(tile),
                    ..Product::of(Q4_0, 150, 96, tokens)
                };
                product.case(form).long()
            }),
    );
    all.extend(
        tiles(form, true)
            .iter()
            .flat_map(tile)
            .map(|(tile, tokens)| {
                let pair = Pair {
                    types: [Q4_0, Q8_0],
                    shape: [90, 96],
                    tokens,
                    tile: Some(tile),
                };
                pair.case(form).long()
            }),
    );
    all
}

/// Gate and up of experts, and down.
fn of_experts(
    form: Form,
    types: Option<[GgmlType; 2]>,
    sizes: [usize; 4],
    tokens: usize,
    height: u32,
) -> [Case; 2] {
    [true, false].map(|gather| {
        let of = OfExperts {
            types,
            sizes,
            tokens,
            height,
            gather,
        };
        of.case(form)
    })
}
