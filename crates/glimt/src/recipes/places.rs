//! The places of a model's tensors on a device: matrices by the loader that fills them, vectors in one buffer.

use super::Residence;
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::memory::{GpuWeight, Lies, Loader};
use crate::gpu::{GpuError, Target};
use crate::model::{Convert, Mlp, Weight};
use std::convert::Infallible;

/// The conversion that gives a model's tensors their places on a device.
pub struct Places<'a> {
    residence: Residence,
    loader: Loader<'a>,
    alignment: usize,
    /// The f32 vectors of a model (norms, selection biases), each at a bindable offset.
    vectors: Vec<f32>,
}

/// The number of a matrix in its loader.
pub(super) type Number = usize;

impl<'a> Places<'a> {
    pub(super) fn new(target: &Target, residence: Residence) -> Self {
        Self {
            residence,
            loader: Loader::new(target),
            alignment: target.offset_alignment as usize / 4,
            vectors: vec![],
        }
    }

    /// Has experts that get places from now on lie on the device.
    pub(super) fn experts_on_device(&mut self) {
        self.residence = Residence::Whole;
    }

    /// The loader, and the places that were given.
    pub(super) fn made(self) -> (Loader<'a>, Made) {
        let made = Made {
            weights: self.loader.places(),
            vectors: Buffer::with("norms and biases", &self.vectors),
        };
        (self.loader, made)
    }
}

impl<'a> Convert<'a, Weight, Vec<f32>> for Places<'a> {
    type Weight = Number;
    type Vector = Span;
    type Error = GpuError;

    fn weight(&mut self, weight: &'a Weight) -> Result<Number, GpuError> {
        self.loader.add(weight)
    }

    fn pair(&mut self, pair: [&'a Weight; 2]) -> Result<[Number; 2], GpuError> {
        let numbers = self.loader.add_alike(&pair)?;
        Ok([numbers[0], numbers[1]])
    }

    fn experts(&mut self, experts: &'a Mlp) -> Result<Mlp<Number>, GpuError> {
        self.loader.to(self.residence.lies());
        let numbers = experts.convert(self);
        self.loader.to(Lies::Device);
        numbers
    }

    fn vector(&mut self, vector: &'a Vec<f32>) -> Result<Span, GpuError> {
        let start = self.vectors.len().next_multiple_of(self.alignment);
        self.vectors.resize(start, 0.0);
        self.vectors.extend_from_slice(vector);
        // Kernels bind vectors as vec4.
        let end = self.vectors.len().next_multiple_of(4);
        self.vectors.resize(end, 0.0);
        Ok((4 * start as u64, 4 * (end - start) as u64))
    }
}

/// The places.
pub struct Made {
    pub(super) weights: Vec<GpuWeight>,
    vectors: Buffer,
}

impl Made {
    /// All norms and biases.
    pub(super) fn vectors(&self) -> Range {
        Range::whole(&self.vectors)
    }
}

impl<'a> Convert<'a, Number, Span> for Made {
    type Weight = GpuWeight;
    type Vector = Range;
    type Error = Infallible;

    fn weight(&mut self, number: &'a Number) -> Result<GpuWeight, Infallible> {
        Ok(self.weights[*number].clone())
    }

    fn vector(&mut self, span: &'a Span) -> Result<Range, Infallible> {
        let (offset, size) = *span;
        Ok(Range {
            buffer: self.vectors.clone(),
            offset,
            size,
            role: Role::Floats,
        })
    }
}

/// Byte offset and length in the buffer of all vectors.
pub(super) type Span = (u64, u64);
