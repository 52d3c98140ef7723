//! How a block of each type is split over the planes. The heads of the modules in `wgsl/shared` describe the same layouts
//! from the reader's side.

use bytemuck::{Pod, Zeroable};

use super::bits::{
    pack_crumbs, pack_nibbles, split_crumbs, split_nibbles, spread_bits, to_bytes, to_words,
    transpose_bits, turn_high_nibbles,
};
use crate::quant::iq4::{Iq4Nl, Iq4Xs};
use crate::quant::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use crate::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

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
}

type Nothing = [u8; 0];

/// The eight 6-bit scales and minima of a superblock with their f16 factors.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct ScalesMins {
    /// Nibble k: the lower bits of scale k.
    scales_low: [u8; 4],
    /// Nibble k: the lower bits of minimum k.
    mins_low: [u8; 4],
    /// Bits 2k and 2k + 1: the upper bits of scale k; 16 bits further of minimum k.
    high: [u8; 4],
    d: [u8; 2],
    dmin: [u8; 2],
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
pub(super) struct Q5KRecord {
    scales: ScalesMins,
    high_bits: [u8; 32],
}

/// The record of a Q6_K superblock.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Q6KRecord {
    high_bits: [[u8; 8]; 8],
    scales: [i8; 16],
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

#[cfg(any(test, feature = "testing"))]
pub(super) mod testing;
