//! The way back from the planes to the file's blocks, by which the processor multiplies experts that lie as a device reads them.

use bytemuck::Pod;

use super::super::bits::{
    LOW_NIBBLES, swap_bits, to_bytes, to_words, transpose_crumbs, turn_high_nibbles,
};
use super::*;
use crate::quant::iq2::Iq2XxsRun;

/// A block that can be put together again.
pub(in super::super) trait Joined: Planar {
    /// The inverse of [`Planar::split`].
    fn join(quants: &Self::Quants, record: &Self::Record, sub: &Self::Sub) -> Self;
}

/// Blocks one after the other, of planes that begin with the first of them.
#[inline(always)]
pub(in super::super) fn join_blocks<B: Joined>([quants, records, subs]: [&[u8]; 3], to: &mut [u8]) {
    let blocks = bytemuck::cast_slice_mut::<u8, B>(to).iter_mut();
    for (i, block) in blocks.enumerate() {
        *block = B::join(&load(quants, i), &load(records, i), &load(subs, i));
    }
}

fn load<T: Pod>(plane: &[u8], i: usize) -> T {
    let size = size_of::<T>();
    bytemuck::pod_read_unaligned(&plane[i * size..(i + 1) * size])
}

fn gathered(high_bits: [u8; 4]) -> [u8; 4] {
    gather_bits(u32::from_le_bytes(high_bits)).to_le_bytes()
}

fn join_runs(runs: &[[u8; 16]; 8]) -> [[u8; 32]; 4] {
    std::array::from_fn(|i| join_nibbles(&runs[2 * i], &runs[2 * i + 1]))
}

fn join_crumb_runs(runs: &[[u8; 8]; 8]) -> [[u8; 32]; 2] {
    std::array::from_fn(|half| {
        join_crumbs(&std::array::from_fn(|run| to_words(&runs[4 * half + run])))
    })
}

/// The inverse of [`split_nibbles`].
fn join_nibbles(low: &[u8; 16], high: &[u8; 16]) -> [u8; 32] {
    let (low, high) = (u128::from_le_bytes(*low), u128::from_le_bytes(*high));
    let first = low & LOW_NIBBLES | (high & LOW_NIBBLES) << 4;
    let second = (low >> 4) & LOW_NIBBLES | high & !LOW_NIBBLES;
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&first.to_le_bytes());
    bytes[16..].copy_from_slice(&second.to_le_bytes());
    bytes
}

/// The inverse of [`split_crumbs`].
fn join_crumbs(runs: &[[u32; 2]; 4]) -> [u8; 32] {
    let mut first = runs.map(|run| run[0]);
    let mut second = runs.map(|run| run[1]);
    transpose_crumbs(&mut first);
    transpose_crumbs(&mut second);
    let mut words = [0; 8];
    words[..4].copy_from_slice(&first);
    words[4..].copy_from_slice(&second);
    to_bytes(&words)
}

/// The inverse of [`spread_bits`].
fn gather_bits(spread: u32) -> u32 {
    let mut bits = 0;
    for (b, byte) in spread.to_le_bytes().into_iter().enumerate() {
        let mut v = u32::from(byte);
        v = (v | v << 12) & 0x000f_000f;
        v = (v | v << 6) & 0x0303_0303;
        v = (v | v << 3) & 0x1111_1111;
        bits |= v << b;
    }
    bits
}

/// The inverse of [`pack_nibbles`]: the lower 16 bits as one nibble per byte.
fn unpack_nibbles(packed: u32) -> u32 {
    let v = packed & 0xffff;
    let v = (v | v << 8) & 0x00ff_00ff;
    (v | v << 4) & 0x0f0f_0f0f
}

/// The inverse of [`pack_crumbs`]: the lower 8 bits as two bits per byte.
fn unpack_crumbs(packed: u32) -> u32 {
    let v = packed & 0xff;
    let v = (v | v << 12) & 0x000f_000f;
    (v | v << 6) & 0x0303_0303
}

impl ScalesMins {
    fn packed(&self) -> [u8; 12] {
        let scales_low = u32::from_le_bytes(self.scales_low);
        let mins_low = u32::from_le_bytes(self.mins_low);
        let high = u32::from_le_bytes(self.high);
        let scales =
            unpack_nibbles(scales_low) | unpack_crumbs(high) << 4 | unpack_crumbs(high >> 8) << 6;
        let mins = unpack_nibbles(mins_low)
            | unpack_crumbs(high >> 16) << 4
            | unpack_crumbs(high >> 24) << 6;
        let both = unpack_nibbles(scales_low >> 16) | unpack_nibbles(mins_low >> 16) << 4;
        to_bytes(&[scales, mins, both])
    }
}

impl Joined for Q4_0 {
    fn join(&qs: &Self::Quants, _: &Self::Record, &d: &Self::Sub) -> Self {
        let qs = turn_high_nibbles(qs);
        Q4_0 { d, qs }
    }
}

impl Joined for Iq4Nl {
    fn join(&qs: &Self::Quants, _: &Self::Record, &d: &Self::Sub) -> Self {
        Iq4Nl { d, qs }
    }
}

impl Joined for Q4_1 {
    fn join(&qs: &Self::Quants, &[d, m]: &Self::Record, _: &Self::Sub) -> Self {
        let qs = turn_high_nibbles(qs);
        Q4_1 { d, m, qs }
    }
}

impl Joined for Q5_0 {
    fn join(&qs: &Self::Quants, &high_bits: &Self::Record, &d: &Self::Sub) -> Self {
        Q5_0 {
            d,
            qh: gathered(high_bits),
            qs,
        }
    }
}

impl Joined for Q5_1 {
    fn join(&qs: &Self::Quants, record: &Self::Record, _: &Self::Sub) -> Self {
        Q5_1 {
            d: record.d,
            m: record.m,
            qh: gathered(record.high_bits),
            qs,
        }
    }
}

impl Joined for Q8_0 {
    fn join(&qs: &Self::Quants, _: &Self::Record, &d: &Self::Sub) -> Self {
        Q8_0 { d, qs }
    }
}

impl Joined for Q2K {
    fn join(runs: &Self::Quants, &scales: &Self::Record, &[d, dmin]: &Self::Sub) -> Self {
        Q2K {
            scales,
            qs: join_crumb_runs(runs),
            d,
            dmin,
        }
    }
}

impl Joined for Q3K {
    fn join(runs: &Self::Quants, record: &Self::Record, _: &Self::Sub) -> Self {
        let [low, high]: [u32; 2] = to_words(&record.scales_low);
        let first = unpack_nibbles(low) | unpack_nibbles(high) << 4;
        let second = unpack_nibbles(low >> 16) | unpack_nibbles(high >> 16) << 4;
        let mut upper = 0;
        for (i, &crumbs) in record.scales_high.iter().enumerate() {
            upper |= unpack_crumbs(u32::from(crumbs)) << (2 * i);
        }
        Q3K {
            hmask: transposed(&record.high_bits),
            qs: join_crumb_runs(runs),
            scales: to_bytes(&[first, second, upper]),
            d: record.d,
        }
    }
}

impl Joined for Q4K {
    fn join(runs: &Self::Quants, record: &Self::Record, _: &Self::Sub) -> Self {
        Q4K {
            d: record.d,
            dmin: record.dmin,
            scales: record.packed(),
            qs: join_runs(&runs.map(turn_high_nibbles)),
        }
    }
}

impl Joined for Q5K {
    fn join(runs: &Self::Quants, record: &Self::Record, _: &Self::Sub) -> Self {
        Q5K {
            d: record.scales.d,
            dmin: record.scales.dmin,
            scales: record.scales.packed(),
            qh: transposed(&record.high_bits),
            qs: join_runs(runs),
        }
    }
}

impl Joined for Q6K {
    fn join(runs: &Self::Quants, record: &Self::Record, &d: &Self::Sub) -> Self {
        let group =
            |half: usize, i: usize| join_nibbles(&runs[4 * half + i], &runs[4 * half + i + 2]);
        Q6K {
            ql: std::array::from_fn(|half| std::array::from_fn(|i| group(half, i))),
            qh: join_crumb_runs(&record.high_bits),
            scales: record.scales,
            d,
        }
    }
}

impl Joined for Iq4Xs {
    fn join(&qs: &Self::Quants, &[d, scales_h, low, high]: &Self::Record, _: &Self::Sub) -> Self {
        Iq4Xs {
            d,
            scales_h,
            scales_l: bytemuck::cast([low, high]),
            qs,
        }
    }
}

impl Joined for Mxfp4 {
    fn join(&qs: &Self::Quants, _: &Self::Record, &e: &Self::Sub) -> Self {
        Mxfp4 { e, qs }
    }
}

/// The inverse of [`spread_signs`].
fn gather_signs(spread: u32) -> u32 {
    gather_bits(swap_bits(swap_bits(spread, 2, 0x0c0c_0c0c), 1, 0x2222_2222))
}

/// The inverse of [`spread_sevens`].
fn gather_sevens(spread: u32) -> u32 {
    let signs = gather_signs(spread & 0x0fff_ffff);
    let seven = |i: u32| (signs >> (8 * i) & 127) << (7 * i);
    (0..4).fold(0, |word, i| word | seven(i)) | spread & 0xf000_0000
}

impl Joined for Iq2Xxs {
    fn join(runs: &Self::Quants, _: &Self::Record, &d: &Self::Sub) -> Self {
        let words = spread_words(&runs.map(|[_, word]| word), gather_sevens);
        let run = |i: usize| Iq2XxsRun {
            points: runs[i][0],
            signs_scale: words[i],
        };
        Iq2Xxs {
            d,
            runs: std::array::from_fn(run),
        }
    }
}

impl Joined for Iq2Xs {
    fn join(runs: &Self::Quants, &scales: &Self::Record, &d: &Self::Sub) -> Self {
        let words = spread_words(&runs.map(|[_, word]| word), gather_sevens);
        let point = |i: usize, l: usize| {
            let word = u32::from_le_bytes(words[i]);
            let upper = (word >> (28 + l) & 1) | (word >> (7 * l) & 127) << 1;
            [runs[i][0][l], upper as u8]
        };
        Iq2Xs {
            d,
            points: std::array::from_fn(|i| std::array::from_fn(|l| point(i, l))),
            scales,
        }
    }
}

impl Joined for Iq2S {
    fn join(runs: &Self::Quants, record: &Self::Record, &d: &Self::Sub) -> Self {
        Iq2S {
            d,
            points: runs.map(|[points, _]| points),
            signs: spread_words(&runs.map(|[_, word]| word), gather_signs),
            high: record.map(|[high, _]| high),
            scales: record.map(|[_, scales]| scales),
        }
    }
}

impl Joined for Iq3Xxs {
    fn join(&points: &Self::Quants, words: &Self::Record, &d: &Self::Sub) -> Self {
        Iq3Xxs {
            d,
            points,
            signs_scale: spread_words(words, gather_sevens),
        }
    }
}

impl Joined for Iq3S {
    fn join(&points: &Self::Quants, record: &Self::Record, &d: &Self::Sub) -> Self {
        Iq3S {
            d,
            points,
            high: record.high,
            signs: spread_words(&record.signs, gather_signs),
            scales: record.scales,
        }
    }
}

impl Joined for Iq1S {
    fn join(&points: &Self::Quants, &high: &Self::Record, &d: &Self::Sub) -> Self {
        Iq1S { d, points, high }
    }
}

impl Joined for Iq1M {
    fn join(&points: &Self::Quants, record: &Self::Record, _: &Self::Sub) -> Self {
        Iq1M {
            points,
            high: std::array::from_fn(|i| record[i]),
            scales: std::array::from_fn(|i| record[8 + i]),
        }
    }
}

impl<const BYTES: usize> Joined for Plain<BYTES> {
    fn join(&quants: &Self::Quants, _: &Self::Record, _: &Self::Sub) -> Self {
        Plain(quants)
    }
}
