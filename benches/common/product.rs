//! Products of zeros in any tile.

use super::{Bench, Work};
use glimt::gpu::buffer::{Buffer, Range, Role};
use glimt::gpu::call::{Call, State};
use glimt::gpu::memory::{GpuWeight, Piece};
use glimt::gpu::{GpuError, Target};
use glimt::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile, tiles};
use glimt::quant::GgmlType;
use glimt::quant::repack::{plane_bytes, sub_plane_words};

/// Dispatches of a submission, and submissions of which the best counts.
const REPEATS: usize = 10;
const ROUNDS: usize = 4;

/// Weights, input and output.
pub struct Product {
    form: Form,
    weights: Vec<GpuWeight>,
    tokens: u32,
    inputs: [Range; 2],
    output: Range,
    work: Work,
}

/// Its sizes.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Tokens of a replay.
    pub tokens: usize,
    /// Groups of the weight, rows of each, and columns.
    pub shape: [usize; 3],
    /// Whether there are two weights.
    pub pair: bool,
    /// Groups that each token is multiplied by.
    pub used: usize,
}

impl Product {
    /// One of a Q4_0 weight in the best form of the device.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn new(bench: &Bench, sizes: Sizes) -> Result<Self, GpuError> {
        let Sizes {
            tokens,
            shape,
            pair,
            used,
        } = sizes;
        let [groups, rows, cols] = shape;
        let form = Form::best(&bench.gpu);
        let weights: Vec<_> = (0..if pair { 2 } else { 1 })
            .map(|_| weight(shape))
            .collect();
        let places = tokens * used;
        let in_rows = if pair { tokens } else { places };
        let (role, bytes) = match form {
            Form::Matrix(_) => (Role::Halves, 2),
            Form::Float { .. } => (Role::Floats, 4),
        };
        let inputs = [
            bench.zeros((in_rows * cols * bytes) as u64, role)?,
            bench.zeros(in_rows as u64 * 4, Role::Floats)?,
        ];
        let output = bench.zeros((places * rows) as u64 * 4, Role::Floats)?;
        let read: u64 = weights.iter().map(GpuWeight::bytes).sum();
        // Of few tokens no more experts are read than they choose.
        let read = read * places.min(groups) as u64 / groups as u64;
        let work = Work {
            bytes: read + inputs[0].size + output.size,
            flops: (2 * places * rows * cols * weights.len()) as u64,
        };
        Ok(Self {
            form,
            weights,
            tokens: tokens as u32,
            inputs,
            output,
            work,
        })
    }

    /// Its least work.
    pub fn work(&self) -> Work {
        self.work
    }

    /// The dispatch in a tile.
    pub fn call(&self, target: &Target, tile: Tile, experts: Option<GpuExperts>) -> Call {
        let product = GpuGemm {
            form: self.form,
            weight: &self.weights[0],
            up: self.weights.get(1),
            max_tokens: self.tokens,
            x: match self.form {
                Form::Matrix(_) => Input::Halves(self.inputs.clone()),
                Form::Float { .. } => Input::Floats(self.inputs[0].clone()),
            },
            x_stride: self.weights[0].cols,
            x_group_stride: 0,
            experts,
            residual: None,
            split_k: 1,
            y: self.output.clone(),
            tile: Some(tile),
        };
        product.calls(target).remove(0)
    }

    /// Microseconds of a dispatch.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn time(&self, bench: &Bench, call: &Call) -> Result<f64, GpuError> {
        let repeats = if bench.quick { 2 } else { REPEATS };
        let state = State {
            tokens: self.tokens,
            ..State::default()
        };
        let step = bench.record(vec![call.clone(); repeats], &state)?;
        Ok(bench.fastest(&step, &state, bench.rounds(ROUNDS))? / repeats as f64)
    }

    /// Frees its buffers.
    pub fn release(&self, bench: &Bench) {
        let pieces = self.weights.iter().flat_map(|weight| &weight.pieces);
        bench.release(pieces.flat_map(|piece| [&piece.quants, &piece.scales]));
        bench.release(self.inputs.iter().chain([&self.output]));
    }
}

/// A weight of zeros.
fn weight([groups, rows, cols]: [usize; 3]) -> GpuWeight {
    let ty = GgmlType::Q4_0;
    let (quants, scales) = plane_bytes(ty, groups * rows, cols);
    let plane = |bytes, role| Range::whole(&Buffer::new("weight", bytes as u64, role));
    GpuWeight {
        name: format!("{groups}x{rows}x{cols}"),
        ty,
        groups: groups as u32,
        rows: rows as u32,
        cols: cols as u32,
        pieces: vec![Piece {
            first_row: 0,
            rows: (groups * rows) as u32,
            quants: plane(quants, Role::Codes(ty)),
            scales: plane(scales, Role::Scales(ty)),
            sub: sub_plane_words(ty, groups * rows, cols) as u32,
        }],
    }
}

/// Floating-point operations per second of a large product in the best of all tiles, and what was multiplied.
///
/// # Errors
/// The error that the device reports.
pub fn fastest(bench: &Bench) -> Result<(f64, String), GpuError> {
    let side = if bench.quick { 512 } else { 4096 };
    let product = Product::new(
        bench,
        Sizes {
            tokens: side,
            shape: [1, side, side],
            pair: false,
            used: 1,
        },
    )?;
    let mut best = 0f64;
    for &tile in tiles(product.form, false) {
        let us = product.time(bench, &product.call(&bench.gpu, tile, None))?;
        best = best.max(product.work.flops as f64 / us * 1e6);
    }
    product.release(bench);
    Ok((
        best,
        format!("the best tile of a product of {side} tokens with {side}x{side} weights"),
    ))
}
