//! Prepared values: what products of a decoded token leave for each other, in the form of the tier.

use super::EPS;
use super::lab::{Compared, Lab};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::kernels::token::{TokenInput, TokenOutput};
use crate::quant::activation::{
    Activation, Q8Unit, dequantize_activation, quantize_activation, squares,
};
use crate::quant::halves::{HalvesBlock, halve, restore};

/// The form of a tier whose products prepare their outputs.
pub(super) fn form(lab: &Lab<'_>) -> Activation {
    lab.gpu.activation()
}

/// The values that prepared `values` stand for: the values themselves, or those that their bytes or halves give.
pub(super) fn stand_for(form: Activation, values: &[f32]) -> Vec<f32> {
    match form {
        Activation::Bytes => dequantize_activation(&quantize_activation(values)),
        Activation::Halves { .. } => restore(&halve(values), values.len()),
        Activation::Floats => values.to_vec(),
    }
}

/// The NMSE that sums of products with values in this form may have.
pub(super) const fn limit(form: Activation) -> f64 {
    match form {
        // Sums of integers are exact. Others are f32 sums in another order.
        Activation::Bytes | Activation::Floats => 1e-10,
        // Sums of f32 from which a bias of many times their size is taken off.
        Activation::Halves { packed: false } => 1e-7,
        // Sums of products in f16.
        Activation::Halves { packed: true } => 2e-5,
    }
}

/// The NMSE where the kernel itself rounds values in between: one midway between two may round to the other one.
pub(super) const fn limit_of_rounded(form: Activation) -> f64 {
    match form {
        Activation::Floats => 1e-10,
        Activation::Halves { packed: true } => 2e-5,
        Activation::Bytes | Activation::Halves { .. } => 1e-5,
    }
}

/// Prepared values on the device.
pub(super) fn given(lab: &Lab<'_>, values: &[f32]) -> Range {
    match form(lab) {
        Activation::Bytes => lab.given(&quantize_activation(values)),
        Activation::Halves { .. } => lab.given(&halve(values)),
        Activation::Floats => lab.given(values),
    }
}

/// An input with a norm before it, of one token or several.
pub(super) struct Normed {
    /// The input in f32.
    pub(super) x: Vec<f32>,
    /// The weight of the norm.
    pub(super) norm: Vec<f32>,
    /// The input times the weight of the norm.
    weighted: Vec<f32>,
    /// The values that the weighted input stands for when prepared.
    pub(super) values: Vec<f32>,
    /// Sums of squares of 16 values of the input.
    pub(super) squares: Vec<f32>,
}

impl Normed {
    /// Random rows of `cols` values.
    pub(super) fn new(lab: &Lab<'_>, rows: usize, cols: usize) -> Self {
        let (x, norm) = (lab.normals(rows * cols), lab.normals(cols));
        let pairs = x.iter().zip(norm.iter().cycle());
        let weighted: Vec<f32> = pairs.map(|(x, g)| x * g).collect();
        Self {
            values: stand_for(form(lab), &weighted),
            squares: squares(&x),
            weighted,
            x,
            norm,
        }
    }

    /// The twin's input of token `t`: its values, and the sums of squares that the norm is computed from.
    pub(super) fn token(&self, t: usize) -> (&[f32], (&[f32], f32)) {
        let cols = self.norm.len();
        let squares = &self.squares[t * cols / 16..][..cols / 16];
        (&self.values[t * cols..][..cols], (squares, EPS))
    }

    /// On the device.
    pub(super) fn input(&self, lab: &Lab<'_>) -> TokenInput {
        TokenInput {
            values: given(lab, &self.weighted),
            rms: Some((lab.given(&self.squares), EPS)),
        }
    }
}

/// Room for `n` prepared values, with the weight of the norm behind them.
pub(super) fn room(lab: &Lab<'_>, n: usize, norm: Option<&[f32]>) -> TokenOutput {
    let form = form(lab);
    let words = form.bytes(n.div_ceil(32) as u64) as usize / 4;
    TokenOutput {
        values: lab.room(words).holding(Role::prepared(form)),
        norm: norm.map(|g| (lab.given(g), lab.room(n / 16))),
    }
}

/// The prepared output beside `twin` times the norm `g`: the values, what goes with them, and the sums of squares of `twin`.
pub(super) fn compared(
    lab: &Lab<'_>,
    left: &TokenOutput,
    g: Option<&[f32]>,
    twin: &[f32],
) -> Result<Vec<Compared>, GpuError> {
    let n = twin.len();
    let weighted: Vec<f32> = match g {
        Some(g) => twin
            .iter()
            .zip(g.iter().cycle())
            .map(|(x, g)| x * g)
            .collect(),
        None => twin.to_vec(),
    };
    let form = form(lab);
    let sums = limit(form);
    let mut all = match form {
        Activation::Bytes => {
            let units: Vec<Q8Unit> = lab.read(&left.values, n / 32)?;
            let found = dequantize_activation(&units);
            let sum = |codes: &[i8; 16]| codes.iter().map(|c| i32::from(*c)).sum::<i32>() as f32;
            let own = units.iter().flat_map(|unit| {
                let pairs = unit.codes.iter().zip(unit.scales);
                pairs.map(|(codes, scale)| sum(codes) * scale)
            });
            let own: Vec<f32> = own.collect();
            let told: Vec<f32> = units.iter().flat_map(|unit| unit.scaled_sums).collect();
            // The largest of 16 values has 127 steps.
            vec![
                Compared::new(&found, &weighted, 1e-4),
                Compared::new(&told, &own, 1e-9),
            ]
        }
        Activation::Halves { .. } => {
            let blocks: Vec<HalvesBlock> = lab.read(&left.values, n.div_ceil(256))?;
            let found = restore(&blocks, n);
            let own = found.chunks_exact(16).map(|half| half.iter().sum());
            let own: Vec<f32> = own.collect();
            let told = (0..own.len()).map(|i| blocks[i / 16].scales[i / 2 % 8][i % 2][1]);
            let told: Vec<f32> = told.collect();
            // Rounded to f16.
            vec![
                Compared::new(&found, &weighted, 1e-6 + sums),
                Compared::new(&told, &own, 1e-7),
            ]
        }
        Activation::Floats => vec![lab.floats(&left.values, &weighted, sums)?],
    };
    if let Some((_, found)) = &left.norm {
        // A deviation of a value counts twice in its square.
        all.push(lab.floats(found, &squares(twin), 16.0 * sums)?);
    }
    Ok(all)
}
