//! [`matvec`](super::matvec) of one token whose activations come and go prepared.

use super::MlaDims;
use super::attention::partial_bytes;
use super::token::{
    TokenInput, TokenOutput, check_geometry, check_rows, divided, geometry, grid, staged, stages,
    unsupported, variant, weight,
};
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Flops, Word, accesses};
use crate::gpu::geometry::{Geometry, MAX_THREADS, Site};
use crate::gpu::memory::GpuWeight;
use crate::gpu::pipeline::Spec;
use crate::gpu::{GpuError, Target};
use crate::kernels::matvec::{MatvecOptions, matvec};
use crate::kernels::rope_cache::{Rotation, RotationShape};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// `y` (groups * rows) = w . x / rms(x) (+ residual) for one token.
///
/// `x` is what the prepared input stands for, group g from unit g * x_units on. `rms` are the sums of squares of 16 values of
/// it before the norm's weight, and the norm's epsilon.
pub fn token_matvec(
    w: &Weight,
    x: &[f32],
    x_units: usize,
    rms: Option<(&[f32], f32)>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let mut y = vec![0.0; w.groups * w.rows];
    let options = MatvecOptions::per_group(x.len(), x_units * 32);
    matvec(w, x, 1, options, &mut y);
    if let Some((squares, eps)) = rms {
        let scale = 1.0 / (squares.iter().sum::<f32>() / w.cols as f32 + eps).sqrt();
        y.iter_mut().for_each(|v| *v *= scale);
    }
    if let Some(residual) = residual {
        y.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
    }
    y
}

/// What a product multiplies.
pub enum Input {
    /// Prepared values; group g reads from unit g * the second field on.
    Prepared(TokenInput, u32),
    /// f32 (cols), the weight of its norm (cols), its sums of squares (cols / 16) and epsilon: where prepared values are
    /// rounded and these should not be.
    Stream(Range, Range, Range, f32),
    /// The slices that [`GpuAttention`](super::attention::GpuAttention) left in the same step, joined as
    /// [`attention_merge`](super::attention_merge) does: W is `attn_v_b`, (heads, rows, kv_lora).
    Slices([Range; 2], MlaDims),
}

/// The product on the device.
pub struct GpuTokenMatvec<'a> {
    /// W, (groups, rows, cols).
    pub weight: &'a GpuWeight,
    /// What prepared values are.
    pub activation: Activation,
    /// The input.
    pub x: Input,
    /// Added to the output, (groups * rows).
    pub residual: Option<Range>,
    /// The output as f32, (groups * rows).
    pub y: Option<Range>,
    /// The output as the next product takes it.
    pub prepared: Option<TokenOutput>,
    /// What the output gives to the experts' logits, where it leaves with a norm.
    pub router: Option<RouterParts<'a>>,
}

/// The experts' logits in parts, one for each [`ROUTER_ROWS`] rows of a product's output: each part is `weight` times those rows with
/// the norm's weight, in f32, and the logits are the sum of all over the root mean square.
pub struct RouterParts<'a> {
    /// `ffn_gate_inp`, (experts, rows) f32.
    pub weight: &'a GpuWeight,
    /// The parts, (rows / 16, experts) f32.
    pub logits: Range,
}

/// Rows that make one part of the logits.
pub const ROUTER_ROWS: u32 = 16;
/// Workgroup memory for the router's weights of a workgroup's rows at most, in bytes.
pub(super) const ROUTER_BYTES: u64 = 8 << 10;

/// [`RouterParts`] of `x` (rows), which has the norm's weight.
pub fn router_parts(w: &Weight, x: &[f32]) -> Vec<f32> {
    let rows = ROUTER_ROWS as usize;
    let part = |at: usize| {
        let mut own = vec![0.0; x.len()];
        own[at..at + rows].copy_from_slice(&x[at..at + rows]);
        token_matvec(w, &own, 0, None, None)
    };
    (0..x.len()).step_by(rows).flat_map(part).collect()
}

/// Whether the parts of such logits can be made by a product in workgroups of `tile` rows, and added up where experts are chosen.
pub fn leaves_router_parts(w: &GpuWeight, tile: u32) -> bool {
    w.ty == GgmlType::F32
        && w.groups == 1
        && w.parts.len() == 1
        && w.rows.is_multiple_of(4)
        && w.cols.is_multiple_of(ROUTER_ROWS)
        && router_bytes(w.rows, tile) <= ROUTER_BYTES
}

/// Workgroup memory of a workgroup's part of the router.
pub(super) fn router_bytes(experts: u32, tile: u32) -> u64 {
    u64::from(experts) * u64::from(tile) * 4
}

/// What the pipeline of a product depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Of the weight.
    pub ty: GgmlType,
    /// Heads, or 1.
    pub groups: u32,
    /// Rows of a group.
    pub rows: u32,
    /// Of 32 weights, per row.
    pub units: u32,
    /// Units from one group's input to the next.
    pub x_units: u32,
    /// What prepared values are.
    pub activation: Activation,
    /// Where the input comes from.
    pub source: Source,
    /// Whether the input has a norm.
    pub rms: bool,
    /// Whether something is added.
    pub residual: bool,
    /// Whether the output is left as f32.
    pub y: bool,
    /// Whether it is left prepared, and if so whether with a norm.
    pub prepared: Option<bool>,
    /// The rotation of queries last.
    pub rotate: Option<RotationShape>,
    /// Experts whose logits leave in parts.
    pub router: Option<u32>,
    /// Whether the input, of one group and prepared, passes through workgroup memory.
    pub staged: bool,
}

/// Where the input of a product comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Prepared values.
    Prepared,
    /// f32, still without the norm's weight.
    Stream,
    /// The attention's slices.
    Slices,
}

/// Threads of a workgroup that joins slices at most: what 16 KiB of workgroup memory hold of them.
const MERGE_THREADS: u32 = 512;
/// Rows of a workgroup that are worth joining slices for: GLM's heads have 256, so four workgroups repeat the joining.
const MERGE_ROWS: u32 = 64;

impl Shape {
    /// What to choose a geometry for.
    pub(super) fn site(&self) -> Site {
        let merge = self.source == Source::Slices;
        let cols = self.units * 32;
        Site {
            kernel: match self.source {
                Source::Prepared if self.rotate.is_some() => "token_matvec+rotate",
                Source::Prepared => "token_matvec",
                Source::Stream => "token_matvec+x_times_norm",
                Source::Slices => "token_matvec+merge",
            },
            types: vec![self.ty],
            shape: match self.groups {
                1 => format!("{}x{cols}", self.rows),
                groups => format!("{groups}x{}x{cols}", self.rows),
            },
            rows: self.groups * self.rows,
            units: self.units,
            activation: self.activation,
            prepared: self.prepared.is_some(),
            pairs: self.rotate.is_some(),
            whole: merge.then_some(self.rows),
            threads: if merge {
                // A thread for every four columns.
                [cols / 4, MERGE_THREADS]
            } else {
                [1, MAX_THREADS]
            },
            // Its weights are on their way while the slices are joined.
            one_block: merge,
            at_once: if self.rotate.is_some() { 1 } else { 2 },
            shares_work: merge.then_some(MERGE_ROWS),
            split: false,
        }
    }
}

/// The pipeline with this geometry.
pub(super) fn spec(geometry: &Geometry, shape: &Shape) -> Spec {
    let merge = shape.source == Source::Slices;
    // What the router reads is floats in every tier.
    let (variant, input) = match shape.source {
        Source::Stream => {
            let floats = Activation::Floats;
            let variant = variant(floats).module("INPUT", "x_times_norm");
            (variant, floats)
        }
        Source::Prepared | Source::Slices => (variant(shape.activation), shape.activation),
    };
    let variant = weight(variant, ["WEIGHT", "WEIGHT_TIMES"], shape.ty, input);
    let mut variant = divided(variant, geometry, shape.units)
        .number("UNITS", shape.units)
        .number("AT_ONCE", geometry.at_once)
        .flag("MERGE", merge)
        .flag("RMS", shape.rms)
        .flag("RESIDUAL", shape.residual)
        .flag("OUT_PLAIN", shape.y)
        .flag("OUT_PREPARED", shape.prepared.is_some())
        .flag("NORM_OUT", shape.prepared == Some(true));
    if shape.staged {
        variant = staged(variant, geometry, shape.activation, shape.units);
    }
    if let Some(experts) = shape.router {
        let threads = geometry.threads();
        variant = variant
            .flag("ROUTER", true)
            .number("EXPERTS", experts)
            .number("ROUTER_COLUMNS", shape.groups * shape.rows / 4)
            .number(
                "ROUTER_LOADS",
                (experts * geometry.tile / 4).div_ceil(threads),
            )
            .number(
                "ROUTER_STORES",
                (experts * geometry.tile / ROUTER_ROWS).div_ceil(threads),
            );
    }
    if merge {
        variant = variant
            .number("ROWS_PER_GROUP", shape.rows)
            .number("PHASES", geometry.threads() / (shape.units * 8));
    } else if shape.groups > 1 {
        variant = variant
            .flag("GROUPS", true)
            .number("ROWS_PER_GROUP", shape.rows)
            .number("X_UNITS", shape.x_units);
    }
    if let Some(rotation) = shape.rotate {
        variant = rotation.variant(variant);
    }
    let mut access = String::from(match shape.source {
        Source::Prepared => "rrr",
        Source::Stream | Source::Slices => "rrrr",
    });
    access.extend(shape.rms.then_some('r'));
    access.extend(shape.residual.then_some('r'));
    access.extend(shape.y.then_some('w'));
    access.push_str(match shape.prepared {
        Some(true) => "rww",
        Some(false) => "w",
        None => "",
    });
    access.push_str(if shape.router.is_some() { "rw" } else { "" });
    access.push_str(if shape.rotate.is_some() { "r" } else { "" });
    Spec {
        kernel: "token_matvec",
        source: include_str!("../../wgsl/token_matvec.wgsl"),
        variant,
        access: accesses(&access),
    }
}

impl GpuTokenMatvec<'_> {
    fn squares(&self) -> Option<(&Range, f32)> {
        match &self.x {
            Input::Prepared(x, _) => x.rms.as_ref().map(|(squares, eps)| (squares, *eps)),
            Input::Stream(_, _, squares, eps) => Some((squares, *eps)),
            Input::Slices(..) => None,
        }
    }

    fn shape(&self, rotation: Option<&Rotation>) -> Shape {
        let w = self.weight;
        let (source, x_units) = match &self.x {
            Input::Prepared(_, x_units) => (Source::Prepared, *x_units),
            Input::Stream(..) => (Source::Stream, 0),
            Input::Slices(..) => (Source::Slices, 0),
        };
        Shape {
            ty: w.ty,
            groups: w.groups,
            rows: w.rows,
            units: w.cols / 32,
            x_units,
            activation: self.activation,
            source,
            rms: self.squares().is_some(),
            residual: self.residual.is_some(),
            y: self.y.is_some(),
            prepared: self.prepared.as_ref().map(|out| out.norm.is_some()),
            rotate: rotation.map(Rotation::shape),
            router: self.router.as_ref().map(|router| router.weight.rows),
            staged: false,
        }
    }

    /// What a geometry can be chosen for.
    pub fn site(&self) -> Site {
        self.shape(None).site()
    }

    /// The dispatches: one per part of the weight.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where no geometry suits the shape on this device, or rows that leave prepared are no
    /// multiple of 16.
    ///
    /// # Panics
    /// If a buffer is too small for the sizes, which would let the kernel index beyond it.
    pub fn calls(&self, target: &Target) -> Result<Vec<Call>, GpuError> {
        self.calls_with(target, &geometry(target, &self.site())?)
    }

    /// The dispatches of a product whose output, as f32 alone, is rotated.
    ///
    /// # Errors
    /// As [`calls`](Self::calls).
    ///
    /// # Panics
    /// As [`calls`](Self::calls), or if the rows to rotate are not whole heads. A replay's position must be in the table.
    pub fn rotated_calls(
        &self,
        target: &Target,
        rotation: &Rotation,
    ) -> Result<Vec<Call>, GpuError> {
        rotation.check(self.weight.total_rows(), &self.weight.name);
        assert!(
            self.prepared.is_none()
                && self.weight.groups == 1
                && matches!(self.x, Input::Prepared(..)),
            "{}: rotated queries come prepared and leave as floats",
            self.weight.name
        );
        let geometry = geometry(target, &self.shape(Some(rotation)).site())?;
        self.divided_calls(target, &geometry, Some(rotation))
    }

    /// As [`calls`](Self::calls), divided so.
    ///
    /// # Errors
    /// As [`calls`](Self::calls).
    ///
    /// # Panics
    /// As [`calls`](Self::calls), or if the kernel or the device does not allow the geometry.
    pub fn calls_with(&self, target: &Target, geometry: &Geometry) -> Result<Vec<Call>, GpuError> {
        self.divided_calls(target, geometry, None)
    }

    fn divided_calls(
        &self,
        target: &Target,
        geometry: &Geometry,
        rotation: Option<&Rotation>,
    ) -> Result<Vec<Call>, GpuError> {
        let mut shape = self.shape(rotation);
        let beside = shape
            .router
            .map_or(0, |experts| router_bytes(experts, geometry.tile));
        shape.staged = shape.source == Source::Prepared
            && shape.groups == 1
            && stages(target, shape.activation, shape.units, beside);
        check_geometry(target, &shape.site(), geometry);
        let w = self.weight;
        let (out, cols) = (w.total_rows(), u64::from(w.cols));
        let fits = |range: &Range| range.size >= u64::from(out) * 4;
        assert!(
            self.y.iter().chain(&self.residual).all(fits),
            "output of {}",
            w.name
        );
        assert!(
            self.y.is_some() || self.prepared.is_some(),
            "{} goes nowhere",
            w.name
        );
        if !w.cols.is_multiple_of(32) {
            return Err(unsupported(
                target,
                &format!("a kernel for rows of {cols} in {}", w.name),
            ));
        }
        let mut inputs = self.inputs();
        assert!(
            self.squares().is_none_or(|(s, _)| s.size >= cols / 4),
            "squares before {}",
            w.name
        );
        inputs.extend(self.squares().map(|(squares, _)| squares.clone()));
        inputs.extend(self.residual.clone());
        inputs.extend(self.y.clone());
        if let Some(prepared) = &self.prepared {
            prepared.check(out, self.activation, &w.name);
            inputs.extend(prepared.bindings());
        }
        if let Some(RouterParts { weight, logits }) = &self.router {
            assert!(
                shape.prepared == Some(true)
                    && leaves_router_parts(weight, geometry.tile)
                    && weight.cols == out
                    && logits.size >= u64::from(out / ROUTER_ROWS * weight.rows) * 4,
                "{} behind {}",
                weight.name,
                w.name
            );
            inputs.extend([weight.parts[0].quants.clone(), logits.clone()]);
        }
        inputs.extend(rotation.map(|rotation| rotation.table.clone()));
        let spec = spec(geometry, &shape);
        let parts = w.parts.iter().map(|part| {
            if self.prepared.is_some() {
                check_rows(target, part.rows, &w.name)?;
            }
            let (grid, width) = grid(part.rows.div_ceil(geometry.tile));
            let mut params = vec![
                Word::U(part.rows),
                Word::U(part.first_row),
                Word::U(part.sub),
                Word::U(width),
            ];
            params.extend(self.squares().map(|(_, eps)| Word::F(eps)));
            params.extend((shape.source == Source::Slices).then_some(Word::Splits));
            if rotation.is_some() {
                assert!(part.first_row.is_multiple_of(2), "pairs of {}", w.name);
                params.push(Word::Pos);
            }
            let bindings = [part.quants.clone(), part.scales.clone()]
                .into_iter()
                .chain(inputs.clone())
                .collect();
            // Of the router the columns of these rows.
            let router = u64::from(part.rows) * u64::from(shape.router.unwrap_or(0));
            let call = Call::positional(spec.clone(), bindings, params, grid)
                .with_bytes(part.quants.size + part.scales.size + 4 * router)
                .with_flops(Flops {
                    once: 2 * (u64::from(part.rows) * u64::from(w.cols) + router),
                    ..Flops::default()
                })
                .at_site(shape.site());
            Ok(call)
        });
        parts.collect()
    }

    /// The bindings of the input.
    fn inputs(&self) -> Vec<Range> {
        let w = self.weight;
        let cols = u64::from(w.cols);
        match &self.x {
            Input::Prepared(x, x_units) => {
                let units = u64::from((w.groups - 1) * x_units) + cols / 32;
                assert!(
                    x.values.size >= self.activation.bytes(units),
                    "input of {}",
                    w.name
                );
                vec![x.values.clone()]
            }
            Input::Stream(x, norm, ..) => {
                assert!(
                    x.size.min(norm.size) >= cols * 4 && w.groups == 1,
                    "input of {}",
                    w.name
                );
                vec![x.clone(), norm.clone()]
            }
            Input::Slices(partials, dims) => {
                assert!(
                    (w.groups as usize, w.cols as usize) == (dims.heads, dims.kv_lora),
                    "{dims:?} for {}",
                    w.name
                );
                let sizes = partial_bytes(*dims, 1);
                assert!(
                    partials.iter().zip(sizes).all(|(p, bytes)| p.size >= bytes),
                    "slices before {}",
                    w.name
                );
                partials.to_vec()
            }
        }
    }
}

#[cfg(test)]
mod tests;
