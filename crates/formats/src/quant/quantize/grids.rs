//! The search for points of a grid: each weight is rounded to a level, and of the points that nearest to all levels together is taken.
//!
//! No weight counts more than another: there is no importance matrix here, with which ggml-quants.c makes better files of these types.

use super::search::normalised;
use super::{inverse, narrow};
use crate::quant::block::widen;
use crate::quant::grids::Grid;
use crate::quant::types::{SMALL_BLOCK, SUPER_BLOCK};

/// The nearest point of a grid for all vectors of levels.
pub(super) struct Nearest<const N: usize> {
    grid: &'static Grid<N>,
    /// Indices of points by the number whose digit `j` is the level of value `j`.
    points: Vec<u16>,
}

impl<const N: usize> Nearest<N> {
    pub(super) fn new(grid: &'static Grid<N>) -> Self {
        let levels = grid.levels;
        // A number is two halves of N / 2 digits, so its distance is a sum of two that are known.
        let halves = levels.len().pow(N as u32 / 2);
        let value =
            |half: usize, j: u32| i32::from(levels[half / levels.len().pow(j) % levels.len()]);
        let squared = |i: usize| {
            let (a, b) = (i / halves, i % halves);
            (0..N as u32 / 2)
                .map(|j| (value(a, j) - value(b, j)).pow(2))
                .sum()
        };
        let apart: Vec<i32> = (0..halves * halves).map(squared).collect();
        let level = |value: &i8| levels.iter().position(|l| l == value).unwrap_or_default();
        let number = |values: &[i8]| {
            values
                .iter()
                .rev()
                .fold(0, |n, v| n * levels.len() + level(v))
        };
        let split = |point: &[i8; N]| [number(&point[..N / 2]), number(&point[N / 2..])];
        let split: Vec<[usize; 2]> = grid.points.iter().map(split).collect();
        let nearest = |i: usize| {
            let (low, high) = (&apart[i % halves * halves..], &apart[i / halves * halves..]);
            let distance = |(_, [a, b]): &(usize, &[usize; 2])| low[*a] + high[*b];
            split
                .iter()
                .enumerate()
                .min_by_key(distance)
                .map_or(0, |(i, _)| i as u16)
        };
        Self {
            grid,
            points: (0..halves * halves).map(nearest).collect(),
        }
    }

    /// The index of the point that is nearest to the levels nearest to `x`.
    pub(super) fn point(&self, x: impl DoubleEndedIterator<Item = f32>) -> u16 {
        let levels = self.grid.levels;
        let level = |x: f32| {
            let above = |pair: &&[i8]| 2.0 * x > f32::from(pair[0]) + f32::from(pair[1]);
            levels.windows(2).take_while(above).count()
        };
        self.points[x
            .rev()
            .fold(0, |number, x| number * levels.len() + level(x))]
    }

    /// The values of a point.
    pub(super) fn values(&self, point: u16) -> [f32; N] {
        self.grid.points[usize::from(point)].map(f32::from)
    }

    /// The points nearest to `x` times `inv`, and their values.
    pub(super) fn snap<const M: usize>(&self, x: &[f32; M], inv: f32) -> [f32; M] {
        let mut values = [0.0; M];
        let (groups, _) = x.as_chunks::<N>();
        for (values, x) in values.chunks_mut(N).zip(groups) {
            values.copy_from_slice(&self.values(self.point(x.iter().map(|x| x * inv))));
        }
        values
    }

    /// The indices of the points of a run whose halves have the inverse scales `inv`.
    pub(super) fn points<const POINTS: usize>(
        &self,
        x: &[f32; SMALL_BLOCK],
        inv: [f32; 2],
    ) -> [u16; POINTS] {
        const { assert!(N * POINTS == SMALL_BLOCK) };
        std::array::from_fn(|i| {
            let inv = inv[2 * i / POINTS];
            self.point(x[N * i..N * (i + 1)].iter().map(|x| x * inv))
        })
    }
}

/// Multiples of the highest level that the largest weight is tried on, in sixteenths.
const STEPS: std::ops::RangeInclusive<u8> = 1..=20;

/// The scale of a group with the least squared error; `snap` gives the values nearest to the weights times a number, and `top` is the
/// largest of them.
fn fit<const M: usize>(
    weights: &[f32; M],
    top: f32,
    snap: impl Fn(&[f32; M], f32) -> [f32; M],
) -> f32 {
    let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let (mut best, mut best_gain) = (0.0, 0.0);
    for step in STEPS {
        let values = snap(weights, top * f32::from(step) / 16.0 * inverse(largest));
        let squares: f32 = values.iter().map(|v| v * v).sum();
        let products: f32 = values.iter().zip(weights).map(|(v, w)| v * w).sum();
        // With the best scale the squared error is sum(x^2) less this.
        let gain = products * products * inverse(squares);
        if products > 0.0 && gain > best_gain {
            best_gain = gain;
            best = products / squares;
        }
    }
    best
}

/// How the scales of a type are stored.
pub(super) struct Scales {
    /// The largest value of a grid's level with its offset.
    pub(super) top: f32,
    /// The number of codes of a scale.
    pub(super) codes: u8,
    /// The value of a code, in multiples of d.
    pub(super) value: fn(u8) -> f32,
}

impl Scales {
    /// The f16 d and the scales of a superblock in groups of `M` weights, as codes.
    pub(super) fn search<const M: usize, const GROUPS: usize>(
        &self,
        weights: &[f32; SUPER_BLOCK],
        snap: impl Fn(&[f32; M], f32) -> [f32; M],
    ) -> ([u8; 2], [u8; GROUPS]) {
        const { assert!(M * GROUPS == SUPER_BLOCK) };
        let Some((scaled, unit)) = normalised(weights) else {
            return ([0; 2], [0; GROUPS]);
        };
        let (groups, _) = scaled.as_chunks::<M>();
        let fits: [f32; GROUPS] = std::array::from_fn(|i| fit(&groups[i], self.top, &snap));
        let largest = fits.iter().copied().fold(0.0, f32::max);
        let d = narrow(largest * unit / (self.value)(self.codes - 1));
        let inv = unit * inverse(widen(d));
        let code = |fit: f32| {
            let off = |code: &u8| ((self.value)(*code) - fit * inv).abs();
            (0..self.codes)
                .min_by(|a, b| off(a).total_cmp(&off(b)))
                .unwrap_or_default()
        };
        (d, fits.map(code))
    }

    /// The inverse of a group's scale.
    pub(super) fn inverse(&self, d: [u8; 2], code: u8) -> f32 {
        inverse(widen(d) * (self.value)(code))
    }
}

/// The weights with their signs taken off, and these. With `even` the number of negative signs of every eight weights is made even: that of
/// the smallest weight is turned over, which leaves it negative.
pub(super) fn take_signs(
    weights: &[f32; SUPER_BLOCK],
    even: bool,
) -> ([f32; SUPER_BLOCK], [u32; 8]) {
    let mut rest = weights.map(f32::abs);
    let mut signs = [0; 8];
    for (i, eight) in weights.chunks(8).enumerate() {
        let mut bits = (0..8).fold(0u32, |bits, j| bits | u32::from(eight[j] < 0.0) << j);
        if even && bits.count_ones() % 2 == 1 {
            let smallest = (0..8).min_by(|&a, &b| eight[a].abs().total_cmp(&eight[b].abs()));
            let smallest = smallest.unwrap_or_default();
            bits ^= 1 << smallest;
            rest[8 * i + smallest] = -rest[8 * i + smallest];
        }
        signs[i / 4] |= bits << (8 * (i % 4));
    }
    (rest, signs)
}

/// The inverse of `even_signs`.
pub(super) fn sevens(signs: u32) -> u32 {
    let seven = |i: usize| (signs >> (8 * i) & 127) << (7 * i);
    (0..4).fold(0, |stored, i| stored | seven(i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::grids::{self, even_signs};
    use crate::testing::Rng;

    #[test]
    fn no_point_is_nearer_than_the_nearest() {
        let mut random = Rng::fresh();
        let nearest = Nearest::new(&grids::IQ2_XXS);
        let levels = nearest.grid.levels;
        for _ in 0..20 {
            let x: [f32; 8] =
                std::array::from_fn(|_| f32::from(levels[usize::from(random.bytes(1)[0]) % 3]));
            let distance = |values: [f32; 8]| -> f32 {
                values.iter().zip(x).map(|(v, x)| (v - x).powi(2)).sum()
            };
            let found = distance(nearest.values(nearest.point(x.into_iter())));
            let all = nearest
                .grid
                .points
                .iter()
                .map(|point| distance(point.map(f32::from)));
            assert_eq!(Some(found), all.min_by(f32::total_cmp), "{x:?}");
        }
    }

    #[test]
    fn signs_are_even_where_they_must_be() {
        let mut weights = [1.0; SUPER_BLOCK];
        weights[2] = -3.0;
        weights[5] = 0.5;
        weights[40] = -1.0;
        weights[41] = -1.0;
        let (rest, signs) = take_signs(&weights, true);
        assert_eq!((signs[0], signs[1]), (0b10_0100, 0b11 << 8));
        assert_eq!((rest[2], rest[5], rest[40]), (3.0, -0.5, 1.0));
        assert_eq!(even_signs(sevens(signs[0])), signs[0]);
        let (rest, signs) = take_signs(&weights, false);
        assert_eq!((signs[0], rest[5]), (0b100, 0.5));
    }
}
