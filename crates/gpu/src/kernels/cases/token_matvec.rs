//! Cases of the products of a decoded token.

use super::attention_merge::Slices;
use super::lab::{Compared, Lab, state};
use super::places::{Several, standing};
use super::prepared::{EPS, Normed, limit_of_rounded, stand_for, weighted};
use super::{Case, TYPES};
use crate::gpu::GpuError;
use crate::gpu::call::State;
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::products::{MatvecOptions, Products};
use crate::kernels::rope_cache::{Rotation, rotate_rows};
use crate::kernels::token::{Divided, TokenInput};
use crate::kernels::token_matvec::{
    GpuTokenMatvec, Input, PartialLogits, ROUTER_ROWS, leaves_partial_logits, token_matvec,
};
use crate::model::Weight;
use crate::quant::GgmlType::{self, F16, F32, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
use crate::quant::activation::Activation;

/// How a product leaves its output.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Out {
    Plain,
    Prepared,
    Both,
}

/// A product with a norm before it, or of heads, each with an input of its own.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub ty: GgmlType,
    /// Groups, rows and columns.
    pub shape: [usize; 3],
    /// Units from one group's input to the next.
    pub x_units: usize,
    pub residual: bool,
    pub out: Out,
    /// Whether the case is compared in many geometries.
    pub many: bool,
}

impl Product {
    pub fn case(self) -> Case {
        let [groups, rows, cols] = self.shape;
        let groups = if groups > 1 {
            format!("{groups}x")
        } else {
            String::new()
        };
        Case::new(format!("{} {groups}{rows}x{cols}", self.ty), move |lab| {
            self.compare(lab)
        })
    }

    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let [groups, rows, cols] = self.shape;
        let n = groups * rows;
        let w = lab.weight(self.ty, self.shape);
        let x = Normed::new(lab, 1, cols.max(groups * self.x_units * 32));
        let (before, g) = (lab.normals(n), lab.normals(n));
        let rms = (groups == 1).then_some(x.rms(0));
        let residual = self.residual.then_some(&before[..]);
        let twin = token_matvec(&w, &x.values, self.x_units, rms, residual);
        let mut input = x.input(lab);
        if groups > 1 {
            input.rms = None;
        }
        let weight = lab.load(&w)?;
        let input = Input::Prepared(input, self.x_units as u32);
        let product = GpuTokenMatvec::new(&weight, lab.form(), input)
            .bind("residual", residual.map(|r| lab.given(r)).as_ref());
        let with_outputs = || {
            let y = (self.out != Out::Prepared).then(|| lab.room(n));
            let left = (self.out != Out::Plain).then(|| lab.output(n, Some(&g)));
            let product = product.clone().bind("y", y.as_ref()).prepared(left);
            (product, y)
        };
        let mut all = vec![];
        for geometry in lab.geometries(&with_outputs().0.site(), self.many)? {
            let (product, y) = with_outputs();
            lab.run(product.calls_with(lab.gpu, &geometry)?, state(1, 0))?;
            if let Some(y) = &y {
                all.push(lab.floats(y, &twin, lab.limit())?);
            }
            if let Some(left) = &product.prepared {
                all.extend(lab.left(left, Some(&g), &twin)?);
            }
        }
        Ok(all)
    }
}

/// A product of each of several tokens.
#[derive(Clone, Copy)]
pub(crate) struct OfTokens {
    pub product: Product,
    /// Tokens of a workgroup.
    pub columns: u32,
}

impl OfTokens {
    pub fn case(self) -> Case {
        let Product { ty, shape, .. } = self.product;
        let [groups, rows, cols] = shape;
        let name = format!("{ty} {groups}x{rows}x{cols}, tokens by {}", self.columns);
        Case::new(name, move |lab| self.compare(lab))
    }

    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let Product {
            ty,
            shape,
            x_units,
            residual,
            ..
        } = self.product;
        let [groups, rows, cols] = shape;
        let (n, width) = (groups * rows, cols.max(groups * x_units * 32));
        let several = Several::new(lab);
        let Several { here, most } = several;
        let w = lab.weight(ty, shape);
        let x = Normed::new(lab, most, width);
        let (before, g) = (lab.normals(here * n), lab.normals(n));
        let of_token = |t: usize| {
            let (values, rms) = x.token(t);
            let residual = residual.then(|| &before[t * n..][..n]);
            let rms = (groups == 1).then_some(rms);
            token_matvec(&w, values, x_units, rms, residual)
        };
        let twin: Vec<f32> = (0..here).flat_map(of_token).collect();
        let mut input = x.input(lab);
        if groups > 1 {
            input.rms = None;
        }
        let (weight, prepared) = (lab.load(&w)?, n.is_multiple_of(32));
        let input = Input::Prepared(input, x_units as u32);
        let y = lab.room(most * n);
        let left = prepared.then(|| lab.output(most * n, Some(&g)));
        let residual = residual.then(|| lab.padded(&before, n, most));
        let mut product = GpuTokenMatvec::new(&weight, lab.form(), input)
            .bind("residual", residual.as_ref())
            .bind("y", &y)
            .prepared(left.clone())
            .of_tokens(lab.gpu.machine, most as u32, None);
        if let Some(several) = &mut product.several {
            several.columns = self.columns;
        }
        several.run(lab, product.calls(lab.gpu)?, 1)?;
        let mut all = vec![lab.floats(&y, &twin, lab.limit())?];
        if let Some(left) = &left {
            all.extend(lab.left(left, Some(&g), &twin)?);
        }
        Ok(all)
    }
}

/// The heads' values of a token, or of each of several, whose slices are merged before the product.
#[derive(Clone, Copy)]
pub(crate) struct OfSlices {
    pub ty: GgmlType,
    /// Heads, rows and columns.
    pub shape: [usize; 3],
    /// Slices of the one token, if it is one.
    pub slices: Option<usize>,
    /// Whether the case is compared in many geometries.
    pub many: bool,
}

impl OfSlices {
    pub fn case(self) -> Case {
        let [heads, rows, cols] = self.shape;
        let slices = match self.slices {
            Some(slices) => format!("{slices} slices"),
            None => "slices of tokens".to_owned(),
        };
        let name = format!("{} {heads}x{rows}x{cols}, {slices}", self.ty);
        Case::new(name, move |lab| {
            self.compare(lab, &lab.weight(self.ty, self.shape))
        })
    }

    pub fn compare(self, lab: &Lab<'_>, w: &Weight) -> Result<Vec<Compared>, GpuError> {
        let [heads, rows, width] = self.shape;
        let n = heads * rows;
        let several = self.slices.is_none().then(|| Several::new(lab));
        let (here, most) = several.map_or((1, 1), |s| (s.here, s.most));
        // Slices of other tokens, before those of the first one here.
        let preceding = if several.is_some() { 2 } else { 0 };
        let slices = (0..here).map(|_| match self.slices {
            Some(slices) => slices,
            // Few, about as many as threads share a vector, or more.
            None => 1 + lab.below(lab.one_of(&[3, 10, 20])),
        });
        let slices = Slices::new(lab, heads, width, preceding, slices.collect());
        let of_token = |latent: &[f32]| {
            let latent = stand_for(lab.form(), latent);
            token_matvec(w, &latent, width / 32, None, None)
        };
        let tokens = slices.latents.chunks_exact(heads * width);
        let twin: Vec<f32> = tokens.flat_map(of_token).collect();
        let room_for = if several.is_some() {
            MAX_SLICES + most
        } else {
            1
        };
        let partials = slices.given(lab, room_for);
        let weight = lab.load(w)?;
        let input = Input::Slices(partials, slices.dims());
        let mut product = GpuTokenMatvec::new(&weight, lab.form(), input);
        if several.is_some() {
            let mut counts = slices.counts();
            counts.resize(most, 0);
            let sequences = standing(lab, &vec![u32::MAX; most], &counts, preceding as u32);
            product = product.of_tokens(lab.gpu.machine, most as u32, Some(&sequences));
        }
        let with_outputs = || {
            let (y, left) = (lab.room(most * n), lab.output(most * n, None));
            let product = product.clone().bind("y", &y).prepared(left.clone());
            (product, y, left)
        };
        let mut all = vec![];
        for geometry in lab.geometries(&with_outputs().0.site(), self.many)? {
            let (product, y, left) = with_outputs();
            let calls = product.calls_with(lab.gpu, &geometry)?;
            match several {
                Some(several) => several.run(lab, calls, most)?,
                None => {
                    let slices = slices.counts()[0];
                    lab.run(
                        calls,
                        State {
                            slices,
                            ..state(1, 0)
                        },
                    )?;
                }
            }
            all.push(lab.floats(&y, &twin, limit_of_rounded(lab.form()))?);
            let found: Vec<f32> = lab.read(&y, twin.len())?;
            all.extend(lab.left(&left, None, &found)?);
        }
        Ok(all)
    }
}

/// Products of several tokens, each of which a workgroup takes alone, or with others.
fn of_tokens() -> Vec<Case> {
    let of = |ty, shape, x_units, columns| OfTokens {
        product: Product {
            ty,
            shape,
            x_units,
            residual: columns % 2 == 0,
            out: Out::Both,
            many: false,
        },
        columns,
    };
    let mut all = vec![
        of(Q4_K, [1, 256, 2048], 0, 2).case().verified(),
        of(Q6_K, [1, 1003, 2048], 0, 8).case().verified(),
        of(Q4_0, [1, 64, 5120], 0, 1).case(),
        of(Q4_0, [1, 64, 5120], 0, 4).case(),
        // Heads, and units of a token that fill no block of halves.
        of(Q5_0, [20, 64, 192], 8, 1).case(),
        of(Q8_0, [3, 64, 96], 5, 4).case(),
        of(Q8_0, [1, 160, 1120], 0, 1).case(),
    ];
    let types = GgmlType::ALL.iter().zip([1, 2, 4, 8].iter().cycle());
    all.extend(types.map(|(&ty, &columns)| of(ty, [1, 96, 768], 0, columns).case()));
    all
}

/// Rotated rows behind the others, of one token or of several.
fn rotated(
    lab: &Lab<'_>,
    ty: GgmlType,
    rows: [usize; 3],
    cols: usize,
) -> Result<Vec<Compared>, GpuError> {
    let [first_row, rope, rows] = rows;
    let w = lab.weight(ty, [1, rows, cols]);
    let several = Several::or_one(lab);
    let Several { here, most } = several;
    let x = Normed::new(lab, most, cols);
    let n_ctx = 7;
    let positions = lab.ids(most, n_ctx);
    let table = lab.normals(n_ctx * rope);
    let of_token = |t: usize| {
        let (values, rms) = x.token(t);
        let mut twin = token_matvec(&w, values, 0, Some(rms), None);
        let (angles, _) = table[positions[t] as usize * rope..][..rope].as_chunks();
        rotate_rows(&mut twin, first_row, rope, angles);
        twin
    };
    let twin: Vec<Vec<f32>> = (0..here).map(of_token).collect();
    let y = lab.room(most * rows);
    let weight = lab.load(&w)?;
    let rotation = Rotation {
        table: lab.given(&table),
        first_row: first_row as u32,
        rope: rope as u32,
    };
    let mut product =
        GpuTokenMatvec::new(&weight, lab.form(), Input::Prepared(x.input(lab), 0)).bind("y", &y);
    product.rotation = Some(rotation);
    let sequences = standing(lab, &positions, &vec![1; most], 0);
    product = product.of_tokens(lab.gpu.machine, most as u32, Some(&sequences));
    several.run_from(lab, product.calls(lab.gpu)?, n_ctx, positions[0])?;
    let found: Vec<f32> = lab.read(&y, most * rows)?;
    let (plain, turned) = found.split_at(most * first_row);
    let of_token = |(t, twin): (usize, &Vec<f32>)| {
        let width = rows - first_row;
        let own = [
            &plain[t * first_row..][..first_row],
            &turned[t * width..][..width],
        ];
        lab.close(&own.concat(), twin, lab.limit())
    };
    Ok(twin.iter().enumerate().map(of_token).collect())
}

/// The residual stream itself, in f32, of one token or of several.
fn stream(
    lab: &Lab<'_>,
    ty: GgmlType,
    [rows, cols]: [usize; 2],
) -> Result<Vec<Compared>, GpuError> {
    let w = lab.weight(ty, [1, rows, cols]);
    let several = Several::or_one(lab);
    let Several { here, most } = several;
    let Normed {
        x, norm, squares, ..
    } = Normed::new(lab, most, cols);
    let mut twin = vec![0.0; here * rows];
    let options = MatvecOptions::contiguous(cols).with_norm(&norm, EPS);
    Products::Exact.matvec(&w, &x[..here * cols], here, options, &mut twin);
    let y = lab.room(most * rows);
    let [x, norm, squares] = [x, norm, squares].map(|data| lab.given(&data));
    let weight = lab.load(&w)?;
    let input = Input::Stream(x, norm, squares, EPS);
    let product = GpuTokenMatvec::new(&weight, lab.form(), input)
        .bind("y", &y)
        .of_tokens(lab.gpu.machine, most as u32, None);
    several.run(lab, product.calls(lab.gpu)?, 1)?;
    Ok(vec![lab.floats(&y, &twin, 1e-11)?])
}

/// The head of a prompt, which reads floats in every tier.
fn of_floats(lab: &Lab<'_>, ty: GgmlType) -> Result<Vec<Compared>, GpuError> {
    let (rows, cols) = (67, 768);
    let w = lab.weight(ty, [1, rows, cols]);
    let x = lab.normals(cols);
    let twin = token_matvec(&w, &x, 0, None, None);
    let y = lab.room(rows);
    let weight = lab.load(&w)?;
    let input = Input::Prepared(TokenInput::of(lab.given(&x)), 0);
    let product = GpuTokenMatvec::new(&weight, Activation::Floats, input).bind("y", &y);
    lab.run(product.calls(lab.gpu)?, state(1, 0))?;
    Ok(vec![lab.floats(&y, &twin, 1e-11)?])
}

/// [`PartialLogits`] of `x` (rows), which is multiplied by the norm's weight already.
fn logits_of_runs(w: &Weight, x: &[f32]) -> Vec<f32> {
    let rows = ROUTER_ROWS as usize;
    let run = |at: usize| {
        let mut own = vec![0.0; x.len()];
        own[at..at + rows].copy_from_slice(&x[at..at + rows]);
        token_matvec(w, &own, 0, None, None)
    };
    (0..x.len()).step_by(rows).flat_map(run).collect()
}

/// The experts' logits as partial sums beside the output, of one token or of several.
fn partial_logits(
    lab: &Lab<'_>,
    [experts, rows, cols]: [usize; 3],
    many: bool,
) -> Result<Vec<Compared>, GpuError> {
    let w = lab.weight(Q4_0, [1, rows, cols]);
    let router = lab.weight(F32, [1, experts, rows]);
    let several = Several::or_one(lab);
    let Several { here, most } = several;
    let (x, g) = (lab.normals(most * cols), lab.normals(rows));
    let before = lab.normals(most * rows);
    let values = stand_for(lab.form(), &x);
    let of_token = |t: usize| {
        let before = &before[t * rows..][..rows];
        token_matvec(&w, &values[t * cols..][..cols], 0, None, Some(before))
    };
    let twin: Vec<f32> = (0..here).flat_map(of_token).collect();
    let logits = twin.chunks_exact(rows);
    let logits = logits.flat_map(|twin| logits_of_runs(&router, &weighted(twin, &g)));
    let logits: Vec<f32> = logits.collect();
    let (weight, router) = (lab.load(&w)?, lab.load(&router)?);
    let input = Input::Prepared(TokenInput::of(lab.prepared(&x)), 0);
    let mut product = GpuTokenMatvec::new(&weight, lab.form(), input)
        .bind("residual", &lab.given(&before))
        .prepared(lab.output(most * rows, Some(&g)))
        .of_tokens(lab.gpu.machine, most as u32, None);
    // On the CPU, a write behind the last run shows. Elsewhere it shows in the room for one more.
    #[cfg(any(test, feature = "testing"))]
    let more = match lab.gpu.metal.is_some() {
        true => (most - here) * rows / ROUTER_ROWS as usize * experts,
        false => most * rows / ROUTER_ROWS as usize * experts,
    };
    #[cfg(not(any(test, feature = "testing")))]
    let more = most * rows / ROUTER_ROWS as usize * experts;
    let mut all = vec![];
    for geometry in lab.geometries(&product.site(), many)? {
        let left = lab.output(most * rows, Some(&g));
        product.prepared = Some(left.clone());
        let fits = leaves_partial_logits(lab.gpu.machine, &router, geometry.tile);
        product.router = fits.then(|| PartialLogits {
            weight: &router,
            logits: lab.room(logits.len() + more),
        });
        several.run(lab, product.calls_with(lab.gpu, &geometry)?, 1)?;
        all.extend(lab.left(&left, Some(&g), &twin)?);
        if let Some(router) = &product.router {
            all.push(lab.floats(&router.logits, &logits, lab.limit())?);
        }
    }
    Ok(all)
}

pub(crate) fn cases() -> Vec<Case> {
    let product = |ty, shape, x_units, residual, out| Product {
        ty,
        shape,
        x_units,
        residual,
        out,
        many: false,
    };
    let of_type = |&ty: &GgmlType| {
        let product = product(ty, [1, 160, 768], 0, true, Out::Both);
        product.case().verified_if(TYPES.contains(&ty))
    };
    let mut all: Vec<_> = GgmlType::ALL.iter().map(of_type).collect();
    // GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B: q_a, kv_a, q_b, k_b, v_b, output, dense down, head.
    all.extend([
        product(Q4_0, [1, 768, 2048], 0, false, Out::Prepared).case(),
        product(Q4_K, [1, 576, 2048], 0, false, Out::Plain).case(),
        product(Q4_0, [1, 5120, 768], 0, false, Out::Both).case(),
        product(Q5_0, [20, 512, 192], 8, false, Out::Plain)
            .case()
            .verified(),
        product(Q8_0, [16, 512, 128], 6, false, Out::Plain).case(),
        product(Q4_0, [20, 256, 512], 16, false, Out::Prepared).case(),
        product(Q4_0, [1, 64, 5120], 0, true, Out::Both).case(),
        product(Q5_0, [1, 32, 10944], 0, true, Out::Both).case(),
        product(Q6_K, [1, 1003, 2048], 0, false, Out::Plain).case(),
    ]);
    // Units and rows that are no multiples of what a workgroup takes; tiles that reach into a second group; exact multiples.
    let many = [
        product(Q4_0, [1, 160, 1120], 0, true, Out::Both),
        product(Q5_0, [5, 80, 192], 8, false, Out::Plain),
        product(Q8_0, [1, 67, 512], 0, true, Out::Plain),
        product(F16, [4, 48, 96], 3, false, Out::Prepared),
    ];
    all.extend(many.map(|product| {
        Product {
            many: true,
            ..product
        }
        .case()
        .long()
    }));
    all.extend(of_tokens());
    all.extend(GgmlType::ALL.iter().map(|&ty| {
        Case::new(format!("{ty} 67x768, of floats"), move |lab| {
            of_floats(lab, ty)
        })
    }));
    // With 288 rows some geometries have a last tile that is half empty. With 44 experts some threads have none.
    let logits = [
        ([64, 2048, 5120], false),
        ([64, 2048, 2048], false),
        ([44, 1056, 512], true),
        ([8, 288, 512], true),
    ];
    all.extend(logits.map(|(shape, many)| {
        let [experts, rows, cols] = shape;
        let name = format!("q4_0 {rows}x{cols}, logits of {experts} experts");
        Case::new(name, move |lab| partial_logits(lab, shape, many)).verified_if(cols == 2048)
    }));
    all
}

/// Rotated rows, and the residual stream itself. A test runs these on each device.
pub(crate) fn everywhere() -> Vec<Case> {
    let rows = [[3 * 512, 64, 3 * 576], [96, 20, 176]];
    let shapes = [(Q8_0, rows[0], 768), (F16, rows[1], 2048)];
    let rotated = shapes.map(|(ty, rows, cols)| {
        let name = format!("{ty} {}x{cols}, rotated", rows[2]);
        Case::new(name, move |lab| rotated(lab, ty, rows, cols)).verified_if(ty == Q8_0)
    });
    let mut all: Vec<_> = rotated.into();
    all.extend([F32, Q8_0].map(|ty| {
        let shape = [64, 2048];
        let name = format!("{ty} 64x2048, from the stream");
        Case::new(name, move |lab| stream(lab, ty, shape)).verified_if(ty == F32)
    }));
    all
}

/// Cases of heads over slices of their contexts.
pub(crate) fn of_slices() -> Vec<Case> {
    let of = |ty, shape, slices, many| OfSlices {
        ty,
        shape,
        slices,
        many,
    };
    let alone = |ty, shape, all: &[usize]| {
        let case = |slices: &usize| {
            let case = of(ty, shape, Some(*slices), false).case();
            case.verified_if(*slices == 5)
        };
        all.iter().map(case).collect::<Vec<_>>()
    };
    let mut all = alone(Q4_0, [20, 256, 512], &[1, 4, 5, 8, 9, 52]);
    all.extend(alone(Q8_0, [16, 128, 512], &[2, MAX_SLICES]));
    all.extend(alone(F16, [4, 48, 96], &[1, 9]));
    all.push(of(Q4_0, [2, 128, 288], Some(7), true).case());
    all.extend([
        of(Q4_0, [20, 256, 512], None, false).case().verified(),
        of(Q8_0, [16, 128, 512], None, false).case(),
        of(F16, [4, 48, 96], None, false).case(),
        of(Q4_0, [2, 128, 288], None, true).case(),
    ]);
    all
}
