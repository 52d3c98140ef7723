//! How a block of each type is split over the planes. The heads of the modules in `wgsl/shared` describe the same layouts
//! from the reader's side.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::bits::{
    pack_crumbs, pack_nibbles, split_crumbs, split_nibbles, spread_bits, spread_sevens,
    spread_signs, to_bytes, to_words, transpose_bits, turn_high_nibbles,
};
use crate::quant::grids::{self, Grid};
use crate::quant::iq1::{Iq1M, Iq1S};
use crate::quant::iq2::{Iq2S, Iq2Xs, Iq2Xxs};
use crate::quant::iq3::{Iq3S, Iq3Xxs};
use crate::quant::iq4::{Iq4Nl, Iq4Xs};
use crate::quant::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use crate::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::quant::mxfp4::Mxfp4;

/// A block that can be taken apart into planes.
pub(super) trait Planar: Pod + Send + Sync {
    /// The part of a block that goes to the quants plane.
    type Quants: Pod;
    /// The part that goes to the front of the scales plane; nothing for some types.
    type Record: Pod;
    /// The part that goes to the sub-plane behind all records; nothing for some types.
    type Sub: Pod;

    /// Takes the block apart.
    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub);

    /// The words at the beginning of the plane of scales. They are the points of the type's grid, in whole vec4. Most types have no grid and no
    /// such words.
    fn head() -> &'static [u32] {
        &[]
    }
}

/// The points of a grid as words of four bytes, from byte `b` of a point.
fn words<const N: usize>(grid: &Grid<N>, byte: impl Fn(&[i8; N], usize) -> u8) -> Vec<u32> {
    let word = |point| u32::from_le_bytes(std::array::from_fn(|b| byte(point, b)));
    grid.points.iter().map(word).collect()
}

/// The points of one of the grids of eight values 8, 25 and 43: of value `b` the bits that differ, of value `b + 4` the same two places higher.
fn of_eight(grid: &Grid<8>) -> Vec<u32> {
    words(grid, |point, b| {
        (point[b] & 0x33 | (point[b + 4] & 0x33) << 2) as u8
    })
}

/// The points of the grid of eight values -1, 0 and 1, two to a word, as bytes of nibbles: value `b` + 1 in the lower two bits and value `b + 4`
/// + 1 in the upper two. The points of the second half are in the upper nibbles.
fn two_to_a_word() -> Vec<u32> {
    let nibble = |point: &[i8; 8], b: usize| ((point[b] + 1) | ((point[b + 4] + 1) << 2)) as u8;
    let all = words(&grids::IQ1, nibble);
    let (first, second) = all.split_at(all.len() / 2);
    first.iter().zip(second).map(|(a, b)| a | b << 4).collect()
}

/// [`Planar::head`] of a type: the words of an expression, made once.
macro_rules! head {
    ($words:expr) => {
        fn head() -> &'static [u32] {
            static HEAD: LazyLock<Vec<u32>> = LazyLock::new(|| $words);
            &HEAD
        }
    };
}

type Nothing = [u8; 0];

/// The eight 6-bit scales and minima of a superblock with their f16 factors.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(in crate::quant) struct ScalesMins {
    /// Nibble k: the lower bits of scale k.
    pub(in crate::quant) scales_low: [u8; 4],
    /// Nibble k: the lower bits of minimum k.
    pub(in crate::quant) mins_low: [u8; 4],
    /// Bits 2k and 2k + 1: the upper bits of scale k; 16 bits further of minimum k.
    pub(in crate::quant) high: [u8; 4],
    pub(in crate::quant) d: [u8; 2],
    pub(in crate::quant) dmin: [u8; 2],
}

impl ScalesMins {
    fn new(packed: &[u8; 12], d: [u8; 2], dmin: [u8; 2]) -> Self {
        let [scales, mins, both] = to_words(packed);
        let scales_low = pack_nibbles(scales) | pack_nibbles(both) << 16;
        let mins_low = pack_nibbles(mins) | pack_nibbles(both >> 4) << 16;
        let high = pack_crumbs(scales >> 4)
            | pack_crumbs(scales >> 6) << 8
            | pack_crumbs(mins >> 4) << 16
            | pack_crumbs(mins >> 6) << 24;
        ScalesMins {
            scales_low: scales_low.to_le_bytes(),
            mins_low: mins_low.to_le_bytes(),
            high: high.to_le_bytes(),
            d,
            dmin,
        }
    }
}

/// The record of a Q3_K superblock.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Q3KRecord {
    high_bits: [u8; 32],
    scales_low: [u8; 8],
    scales_high: [u8; 4],
    d: [u8; 2],
    /// Zero, so that a record is three whole vec4.
    padding: [u8; 2],
}

/// The record of a Q5_K superblock.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(in crate::quant) struct Q5KRecord {
    pub(in crate::quant) scales: ScalesMins,
    pub(in crate::quant) high_bits: [u8; 32],
}

/// The record of a Q6_K superblock.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(in crate::quant) struct Q6KRecord {
    pub(in crate::quant) high_bits: [[u8; 8]; 8],
    pub(in crate::quant) scales: [i8; 16],
}

/// The record of a Q5_1 block.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Q5_1Record {
    high_bits: [u8; 4],
    d: [u8; 2],
    m: [u8; 2],
}

/// GGML's high bits of a superblock (bit = run) to one word per run, or back.
fn transposed(high_bits: &[u8; 32]) -> [u8; 32] {
    let mut words = to_words(high_bits);
    transpose_bits(&mut words);
    to_bytes(&words)
}

fn spread(qh: [u8; 4]) -> [u8; 4] {
    spread_bits(u32::from_le_bytes(qh)).to_le_bytes()
}

/// 4-bit codes of a superblock to 16 bytes per run.
fn split_runs(qs: &[[u8; 32]; 4]) -> [[u8; 16]; 8] {
    let mut runs = [[0; 16]; 8];
    for (i, pair) in qs.iter().enumerate() {
        (runs[2 * i], runs[2 * i + 1]) = split_nibbles(pair);
    }
    runs
}

/// 2-bit codes of a superblock to 8 bytes per run.
fn split_crumb_runs(qs: &[[u8; 32]; 2]) -> [[u8; 8]; 8] {
    let halves = [split_crumbs(&qs[0]), split_crumbs(&qs[1])];
    std::array::from_fn(|run| to_bytes(&halves[run / 4][run % 4]))
}

impl Planar for Q4_0 {
    type Quants = [u8; 16];
    type Record = Nothing;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (turn_high_nibbles(self.qs), [], self.d)
    }
}

impl Planar for Iq4Nl {
    type Quants = [u8; 16];
    type Record = Nothing;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.qs, [], self.d)
    }
}

impl Planar for Q4_1 {
    type Quants = [u8; 16];
    type Record = [[u8; 2]; 2];
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (turn_high_nibbles(self.qs), [self.d, self.m], [])
    }
}

impl Planar for Q5_0 {
    type Quants = [u8; 16];
    type Record = [u8; 4];
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.qs, spread(self.qh), self.d)
    }
}

impl Planar for Q5_1 {
    type Quants = [u8; 16];
    type Record = Q5_1Record;
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let record = Q5_1Record {
            high_bits: spread(self.qh),
            d: self.d,
            m: self.m,
        };
        (self.qs, record, [])
    }
}

impl Planar for Q8_0 {
    type Quants = [i8; 32];
    type Record = Nothing;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.qs, [], self.d)
    }
}

impl Planar for Q2K {
    type Quants = [[u8; 8]; 8];
    type Record = [u8; 16];
    type Sub = [[u8; 2]; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (split_crumb_runs(&self.qs), self.scales, [self.d, self.dmin])
    }
}

impl Planar for Q3K {
    type Quants = [[u8; 8]; 8];
    type Record = Q3KRecord;
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let [first, second, high] = to_words(&self.scales);
        let record = Q3KRecord {
            high_bits: transposed(&self.hmask),
            scales_low: to_bytes(&[
                pack_nibbles(first) | pack_nibbles(second) << 16,
                pack_nibbles(first >> 4) | pack_nibbles(second >> 4) << 16,
            ]),
            scales_high: [0, 2, 4, 6].map(|shift| pack_crumbs(high >> shift) as u8),
            d: self.d,
            padding: [0; 2],
        };
        (split_crumb_runs(&self.qs), record, [])
    }
}

impl Planar for Q4K {
    type Quants = [[u8; 16]; 8];
    type Record = ScalesMins;
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let record = ScalesMins::new(&self.scales, self.d, self.dmin);
        (split_runs(&self.qs).map(turn_high_nibbles), record, [])
    }
}

impl Planar for Q5K {
    type Quants = [[u8; 16]; 8];
    type Record = Q5KRecord;
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let record = Q5KRecord {
            scales: ScalesMins::new(&self.scales, self.d, self.dmin),
            high_bits: transposed(&self.qh),
        };
        (split_runs(&self.qs), record, [])
    }
}

impl Planar for Q6K {
    type Quants = [[u8; 16]; 8];
    type Record = Q6KRecord;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let mut runs = [[0; 16]; 8];
        for (half, groups) in self.ql.iter().enumerate() {
            for (i, group) in groups.iter().enumerate() {
                (runs[4 * half + i], runs[4 * half + i + 2]) = split_nibbles(group);
            }
        }
        let record = Q6KRecord {
            high_bits: split_crumb_runs(&self.qh),
            scales: self.scales,
        };
        (runs, record, self.d)
    }
}

impl Planar for Iq4Xs {
    type Quants = [[u8; 16]; 8];
    /// The first eight bytes of the block as they are.
    type Record = [[u8; 2]; 4];
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let [low @ .., c, d] = self.scales_l;
        (self.qs, [self.d, self.scales_h, low, [c, d]], [])
    }
}

impl Planar for Mxfp4 {
    type Quants = [u8; 16];
    type Record = Nothing;
    type Sub = u8;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.qs, [], self.e)
    }
}

/// Words of signs and four other bits, little-endian.
fn spread_words(words: &[[u8; 4]; 8], spread: fn(u32) -> u32) -> [[u8; 4]; 8] {
    words.map(|word| spread(u32::from_le_bytes(word)).to_le_bytes())
}

/// Each run's lower bits of indices, then its word of signs.
fn joined(points: &[[u8; 4]; 8], signs: &[[u8; 4]; 8]) -> [[[u8; 4]; 2]; 8] {
    std::array::from_fn(|i| [points[i], signs[i]])
}

impl Planar for Iq2Xxs {
    type Quants = [[[u8; 4]; 2]; 8];
    type Record = Nothing;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let words = spread_words(&self.runs.map(|run| run.signs_scale), spread_sevens);
        let points = self.runs.map(|run| run.points);
        (joined(&points, &words), [], self.d)
    }

    head!(of_eight(&grids::IQ2_XXS));
}

impl Planar for Iq2Xs {
    type Quants = [[[u8; 4]; 2]; 8];
    type Record = [u8; 8];
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        // As in IQ2_XXS, with the upper bits of the indices in the place of the scale.
        let word = |run: [[u8; 2]; 4]| {
            let points = run.map(|point| u32::from(u16::from_le_bytes(point)));
            let bits = |word, i: usize| {
                word | points[i] >> 9 << (7 * i) | (points[i] >> 8 & 1) << (28 + i)
            };
            (0..4).fold(0, bits).to_le_bytes()
        };
        let words = spread_words(&self.points.map(word), spread_sevens);
        let low = self.points.map(|run| run.map(|point| point[0]));
        (joined(&low, &words), self.scales, self.d)
    }

    head!(of_eight(&grids::IQ2_XS));
}

impl Planar for Iq2S {
    type Quants = [[[u8; 4]; 2]; 8];
    /// Per run the upper bits of its indices and its scales.
    type Record = [[u8; 2]; 8];
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let words = spread_words(&self.signs, spread_signs);
        let record = std::array::from_fn(|i| [self.high[i], self.scales[i]]);
        (joined(&self.points, &words), record, self.d)
    }

    head!(of_eight(&grids::IQ2_S));
}

impl Planar for Iq3Xxs {
    type Quants = [[u8; 8]; 8];
    type Record = [[u8; 4]; 8];
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let words = spread_words(&self.signs_scale, spread_sevens);
        (self.points, words, self.d)
    }

    head!(words(&grids::IQ3_XXS, |point, b| point[b] as u8));
}

/// The record of an IQ3_S superblock.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Iq3SRecord {
    signs: [[u8; 4]; 8],
    high: [u8; 8],
    scales: [u8; 4],
}

impl Planar for Iq3S {
    type Quants = [[u8; 8]; 8];
    type Record = Iq3SRecord;
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let record = Iq3SRecord {
            signs: spread_words(&self.signs, spread_signs),
            high: self.high,
            scales: self.scales,
        };
        (self.points, record, self.d)
    }

    head!(words(&grids::IQ3_S, |point, b| point[b] as u8));
}

impl Planar for Iq1S {
    type Quants = [[u8; 4]; 8];
    type Record = [[u8; 2]; 8];
    type Sub = [u8; 2];

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.points, self.high, self.d)
    }

    head!(two_to_a_word());
}

impl Planar for Iq1M {
    type Quants = [[u8; 4]; 8];
    /// The upper bits of the runs, then the scales.
    type Record = [[u8; 2]; 12];
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        let mut record = [[0; 2]; 12];
        record[..8].copy_from_slice(&self.high);
        record[8..].copy_from_slice(&self.scales);
        (self.points, record, [])
    }

    head!(two_to_a_word());
}

/// The weights of a float type: 32 of them, as they are.
#[repr(transparent)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Plain<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Planar for Plain<BYTES> {
    type Quants = [u8; BYTES];
    type Record = Nothing;
    type Sub = Nothing;

    fn split(&self) -> (Self::Quants, Self::Record, Self::Sub) {
        (self.0, [], [])
    }
}

pub(super) mod joined;
