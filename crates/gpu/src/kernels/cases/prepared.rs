//! Prepared values: what products of a decoded token leave for each other, in the form of the tier.

use super::lab::{Compared, Lab};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Range, Role};
use crate::kernels::token::{TokenInput, TokenOutput};
use crate::quant::activation::{
    Activation, Q8Unit, dequantize_activation, quantize_activation, squares,
};
use crate::quant::halves::{HalvesBlock, halve, restore};

/// The epsilon of every norm.
pub(crate) const EPS: f32 = 1e-5;

/// The values that prepared `values` stand for: the values themselves, or those that their bytes or halves give.
pub(crate) fn stand_for(form: Activation, values: &[f32]) -> Vec<f32> {
    match form {
        Activation::Bytes => dequantize_activation(&quantize_activation(values)),
        Activation::Halves { .. } => restore(&halve(values), values.len()),
        Activation::Floats => values.to_vec(),
    }
}

/// The NMSE that sums of products have in this form, beside what stands for their input.
pub(crate) const fn limit(form: Activation) -> f64 {
    match form {
        // Sums of integers are exact; the rest are f32 sums of up to 684 half units in another order.
        Activation::Bytes | Activation::Floats => 1e-11,
        // Sums of f32 from which a bias of some 100 times their size is taken off.
        Activation::Halves { packed: false } => 1e-8,
        // Sums of 4 products in f16, of codes without a sign.
        Activation::Halves { packed: true } => 4e-6,
    }
}

/// The NMSE where the kernel itself rounds latents in between. One midway between two rounded values may round to the other one, and the
/// limit has room for some.
pub(crate) const fn limit_of_rounded(form: Activation) -> f64 {
    match form {
        Activation::Bytes | Activation::Halves { .. } => 5e-6,
        Activation::Floats => 1e-11,
    }
}

/// Values times the weight of a norm, row by row.
pub(crate) fn weighted(x: &[f32], norm: &[f32]) -> Vec<f32> {
    let pairs = x.iter().zip(norm.iter().cycle());
    pairs.map(|(x, g)| x * g).collect()
}

/// An input with a norm before it, of one token or several.
pub(crate) struct Normed {
    /// The input in f32.
    pub x: Vec<f32>,
    /// The weight of the norm.
    pub norm: Vec<f32>,
    /// The input times the weight of the norm.
    pub weighted: Vec<f32>,
    /// The values that the weighted input stands for when prepared.
    pub values: Vec<f32>,
    /// Sums of squares of 16 values of the input.
    pub squares: Vec<f32>,
}

impl Normed {
    /// Random rows of `cols` values.
    pub fn new(lab: &Lab<'_>, rows: usize, cols: usize) -> Self {
        let (x, norm) = (lab.normals(rows * cols), lab.normals(cols));
        let weighted = weighted(&x, &norm);
        Self {
            values: stand_for(lab.gpu.activation(), &weighted),
            squares: squares(&x),
            weighted,
            x,
            norm,
        }
    }

    /// The sums of squares of row `t`, and the epsilon.
    pub fn rms(&self, t: usize) -> (&[f32], f32) {
        let cols = self.norm.len();
        (&self.squares[t * cols / 16..][..cols / 16], EPS)
    }

    /// The root mean square of row `t`.
    pub fn root(&self, t: usize) -> f32 {
        let (squares, eps) = self.rms(t);
        (squares.iter().sum::<f32>() / self.norm.len() as f32 + eps).sqrt()
    }

    /// The twin's input of token `t`: its values, and the sums of squares that the norm is computed from.
    pub fn token(&self, t: usize) -> (&[f32], (&[f32], f32)) {
        let cols = self.norm.len();
        (&self.values[t * cols..][..cols], self.rms(t))
    }

    /// The input on the device.
    pub fn input(&self, lab: &Lab<'_>) -> TokenInput {
        TokenInput {
            values: lab.prepared(&self.weighted),
            rms: Some((lab.given(&self.squares), EPS)),
        }
    }
}

impl Lab<'_> {
    /// The form of a product's output for the next product in the tier of the device.
    pub fn form(&self) -> Activation {
        self.gpu.activation()
    }

    /// The limit of sums of products in the form of the tier.
    pub fn limit(&self) -> f64 {
        limit(self.form())
    }

    /// Prepared values on the device.
    pub fn prepared(&self, values: &[f32]) -> Range {
        match self.form() {
            Activation::Bytes => self.given(&quantize_activation(values)),
            Activation::Halves { .. } => self.given(&halve(values)),
            Activation::Floats => self.given(values),
        }
    }

    /// Room for `n` prepared values, with the weight of the norm behind them.
    pub fn output(&self, n: usize, norm: Option<&[f32]>) -> TokenOutput {
        let form = self.form();
        let words = form.bytes(n.div_ceil(32) as u64) as usize / 4;
        TokenOutput {
            values: self.room(words).holding(Role::prepared(form)),
            norm: norm.map(|g| (self.given(g), self.room(n / 16))),
        }
    }

    /// The prepared output beside `twin` times the norm `g`: the values, what goes with them, and the sums of squares of `twin`.
    pub fn left(
        &self,
        left: &TokenOutput,
        g: Option<&[f32]>,
        twin: &[f32],
    ) -> Result<Vec<Compared>, GpuError> {
        let mut all = self.left_in(self.form(), &left.values, g, twin)?;
        if let Some((_, found)) = &left.norm {
            let found: Vec<f32> = self.read(found, twin.len() / 16)?;
            // A deviation of x counts twice in its square, and 16 values may deviate more than all do.
            let far = 1e-4f32.max(4.0 * self.limit().sqrt() as f32);
            let pairs = found.iter().zip(squares(twin)).enumerate();
            for (i, (found, exact)) in pairs {
                let near = (found - exact).abs() <= far * exact;
                all.push(self.holds(near, || format!("squares {i} are {found} for {exact}")));
            }
        }
        Ok(all)
    }

    /// Prepared values in this form beside `twin` times the norm `g`.
    pub fn left_in(
        &self,
        form: Activation,
        left: &Range,
        g: Option<&[f32]>,
        twin: &[f32],
    ) -> Result<Vec<Compared>, GpuError> {
        let n = twin.len();
        let exact = match g {
            Some(g) => weighted(twin, g),
            None => twin.to_vec(),
        };
        match form {
            Activation::Bytes => Ok(self.bytes(&self.read(left, n.div_ceil(32))?, &exact)),
            Activation::Halves { .. } => {
                let blocks: Vec<_> = self.read(left, n.div_ceil(256))?;
                Ok(self.halved(&blocks, &exact, limit(form)))
            }
            Activation::Floats => {
                let found: Vec<f32> = self.read(left, n)?;
                Ok(vec![self.close(&found, &exact, limit(form))])
            }
        }
    }

    /// The values but for what halves round and sums in another form lose (`nmse`), and the sums those of the halves. The error of
    /// few values varies, so the limit is several times that of many.
    fn halved(&self, blocks: &[HalvesBlock], exact: &[f32], nmse: f64) -> Vec<Compared> {
        let found = restore(blocks, exact.len());
        let mut all = vec![self.close(&found, exact, nmse + 4e-7)];
        for (i, values) in found.chunks_exact(16).enumerate() {
            let [scale, scaled_sum] = blocks[i / 16].scales[i / 2 % 8][i % 2];
            let largest = values.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let sum: f32 = values.iter().sum();
            let fits = 16384.0 * scale <= largest && largest <= 32768.0 * scale;
            let right = (sum - scaled_sum).abs() <= 1e-5 * largest;
            all.push(self.holds(fits && right, || {
                format!("half {i} has scale {scale} for {largest}, sum {scaled_sum} for {sum}")
            }));
        }
        all
    }

    /// Each value within its half step, the scaled sums those of the bytes.
    fn bytes(&self, units: &[Q8Unit], exact: &[f32]) -> Vec<Compared> {
        let mut values = dequantize_activation(units);
        values.truncate(exact.len());
        // The largest of 16 values has 127 steps.
        let mut all = vec![self.close(&values, exact, 1e-4)];
        for (i, (value, x)) in values.iter().zip(exact).enumerate() {
            let scale = units[i / 32].scales[i % 32 / 16];
            // The sums behind x differ in their last bits, so a value may round the other way.
            let near = (value - x).abs() <= 0.502 * scale + 1e-30;
            all.push(self.holds(near, || {
                format!("value {i} is {value} for {x}, step {scale}")
            }));
        }
        for (i, unit) in units.iter().enumerate() {
            // The last unit may be half a one.
            for h in (0..2).filter(|h| 2 * i + h < exact.len() / 16) {
                let (codes, scale) = (&unit.codes[h], unit.scales[h]);
                let sum: i32 = codes.iter().map(|c| i32::from(*c)).sum();
                let expected = scale * sum as f32;
                let right = (unit.scaled_sums[h] - expected).abs() <= 1e-6 * expected.abs();
                let full = scale == 0.0 || codes.iter().any(|c| c.unsigned_abs() == 127);
                all.push(self.holds(right && full, || format!("sum or range of unit {i}")));
            }
        }
        all
    }
}
