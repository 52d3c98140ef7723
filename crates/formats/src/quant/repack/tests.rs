//! Protects the layouts that the shaders rely on: repacking loses nothing, and planes begin where they should.

use super::*;
use crate::testing::Rng;

/// Row lengths that fit the type, short and long enough for several tasks.
fn shapes(ty: GgmlType) -> [(usize, usize); 4] {
    let unit = UNIT.max(ty.block_len());
    [(1, unit), (3, unit), (7, 5 * unit), (1021, 2048)]
}

#[test]
fn unpack_gives_back_the_bytes_of_every_type() {
    let mut random = Rng::fresh();
    for &ty in GgmlType::ALL {
        for (rows, cols) in shapes(ty) {
            let src = random.bytes(rows * ty.row_bytes(cols).expect("the shape fits"));
            let planes = Planes::new(ty, rows, cols, &src);
            assert!(
                planes.quants.len().is_multiple_of(16)
                    && planes.scales.len().is_multiple_of(16)
                    && planes.scales.len() >= 16
            );
            assert!(
                unpack(ty, rows, cols, &planes.quants, &planes.scales) == src,
                "{ty} {rows}x{cols}"
            );
        }
    }
}

#[test]
fn runs_of_rows_fill_all_of_both_planes() {
    let mut random = Rng::fresh();
    for &ty in GgmlType::ALL {
        for (rows, cols) in shapes(ty) {
            let row_bytes = ty.row_bytes(cols).expect("the shape fits");
            let src = random.bytes(rows * row_bytes);
            let (quants, scales) = plane_bytes(ty, rows, cols);
            let mut planes = Planes {
                quants: vec![0xa5; quants],
                scales: vec![0xa5; scales],
            };
            let mut start = 0;
            while start < rows {
                let steps = 1 + usize::from(random.bytes(1)[0]);
                let run = start..rows.min(start + steps * ROW_STEP);
                let at = sections(ty, rows, cols, run.clone());
                planes.scales[..head(ty).len()].copy_from_slice(head(ty));
                let (records, subs) = planes.scales.split_at_mut(at.subs.start);
                repack_rows(
                    ty,
                    cols,
                    &src[run.start * row_bytes..run.end * row_bytes],
                    [
                        &mut planes.quants[at.quants],
                        &mut records[at.records],
                        &mut subs[..at.subs.len()],
                    ],
                );
                start = run.end;
            }
            assert!(
                planes == Planes::new(ty, rows, cols, &src),
                "{ty} {rows}x{cols}"
            );
        }
    }
}

#[test]
fn runs_of_rows_follow_one_another_at_whole_vec4() {
    for &ty in GgmlType::ALL {
        let (rows, cols) = (3 * ROW_STEP + 5, UNIT.max(ty.block_len()));
        let (quants, scales) = plane_bytes(ty, rows, cols);
        let whole = sections(ty, rows, cols, 0..rows);
        assert_eq!((whole.quants, whole.subs.end), (0..quants, scales));
        assert_eq!(whole.records.end, whole.subs.start);
        let (mut quants, mut records, mut subs) = (0, head(ty).len(), whole.subs.start);
        for run in [0..ROW_STEP, ROW_STEP..3 * ROW_STEP, 3 * ROW_STEP..rows] {
            let at = sections(ty, rows, cols, run);
            assert_eq!(
                (at.quants.start, at.records.start, at.subs.start),
                (quants, records, subs),
                "{ty}"
            );
            (quants, records, subs) = (at.quants.end, at.records.end, at.subs.end);
            for end in [quants, records, subs] {
                assert!(end.is_multiple_of(16), "{ty}: {end}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows 4..12 of 20 cannot be repacked on their own")]
fn runs_at_odd_rows_are_refused() {
    sections(GgmlType::Q4_0, 20, 32, 4..12);
}

#[test]
fn planes_are_within_two_percent_of_the_file() {
    for &ty in GgmlType::ALL {
        let (rows, cols) = (1536, 2048);
        let (quants, scales) = plane_bytes(ty, rows, cols);
        let file = rows * ty.row_bytes(cols).expect("the shape fits");
        assert!(
            (quants + scales) as f64 <= 1.02 * file as f64,
            "{ty}: {quants} + {scales} for {file}"
        );
    }
}

#[test]
fn sub_planes_start_behind_the_records() {
    assert_eq!(
        sub_plane_words(GgmlType::Q4_0, 3, 2048),
        0,
        "no records in front"
    );
    assert_eq!(sub_plane_words(GgmlType::Q4_K, 3, 2048), 0, "no sub-plane");
    assert_eq!(
        sub_plane_words(GgmlType::Q5_0, 3, 192),
        20,
        "18 words of high bits, up to a whole vec4"
    );
    assert_eq!(
        sub_plane_words(GgmlType::Q6_K, 3, 512),
        6 * 20,
        "six records of five vec4"
    );
    assert_eq!(
        sub_plane_words(GgmlType::IQ2_XS, 3, 512),
        512 + 6 * 2,
        "512 points before the records"
    );
}

#[test]
#[should_panic(expected = "rows of 48 weights cannot be repacked as F16")]
fn rows_of_broken_units_are_refused() {
    plane_bytes(GgmlType::F16, 4, 48);
}

#[test]
fn high_nibbles_are_signed_bytes_less_eight() {
    let mut random = Rng::fresh();
    for ty in [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q4_K] {
        assert!(has_nibbles(ty));
        let cols = UNIT.max(ty.block_len());
        let src = random.bytes(ty.row_bytes(cols).expect("the shape fits"));
        let planes = Planes::new(ty, 1, cols, &src);
        // The second half of the first unit: of a superblock in the low nibbles of bytes 16 to 32, else in the high ones of all 16.
        let (first, shift) = match ty {
            GgmlType::Q4_0 => (2, 4),
            GgmlType::Q4_1 => (4, 4),
            _ => (32, 0),
        };
        for j in 0..16 {
            let code = (src[first + j] >> shift) & 15;
            let byte = (planes.quants[j] & 0xf0) as i8;
            assert_eq!(i32::from(byte), 16 * (i32::from(code) - 8), "{ty}");
        }
    }
}

#[test]
fn points_lie_before_the_scales() {
    let words = |ty| -> &[u32] { bytemuck::cast_slice(head(ty)) };
    for (ty, count) in [
        (GgmlType::Q4_K, 0),
        (GgmlType::MXFP4, 0),
        (GgmlType::IQ1_S, 1024),
        (GgmlType::IQ1_M, 1024),
        (GgmlType::IQ2_XXS, 256),
        (GgmlType::IQ2_XS, 512),
        (GgmlType::IQ2_S, 1024),
        (GgmlType::IQ3_XXS, 256),
        (GgmlType::IQ3_S, 512),
    ] {
        assert_eq!(words(ty).len(), count, "{ty}");
    }
    // Point 1 is 43 and seven times 8.
    assert_eq!(words(GgmlType::IQ2_XXS)[1], 0x23);
    // Point 1 is 20, 4, 4, 4.
    assert_eq!(words(GgmlType::IQ3_XXS)[1], 0x0404_0414);
    // The first point is -1 eight times, the last one 1 eight times.
    assert_eq!(words(GgmlType::IQ1_S)[0] & 0x0f0f_0f0f, 0);
    assert_eq!(words(GgmlType::IQ1_M)[1023] >> 4 & 0x0f0f_0f0f, 0x0a0a_0a0a);
}

#[test]
fn signs_lie_over_words_even_ones_first() {
    for bit in 0..32 {
        let (i, b) = (bit / 4, bit % 4);
        assert_eq!(
            bits::spread_signs(1 << bit),
            1 << (8 * b + i / 2 + 4 * (i % 2))
        );
    }
    assert_eq!(bits::spread_sevens(0xa000_0000), 0xa000_0000);
    // The first sign of the fourth point: weight 24, the first of word 6.
    assert_eq!(bits::spread_sevens(1 << 21), 1 << 3);
}

#[test]
fn high_bits_lie_over_words() {
    for bit in 0..32 {
        let (i, b) = (bit / 4, bit % 4);
        assert_eq!(bits::spread_bits(1 << bit), 1 << (8 * b + i));
    }
    for i in 0..8 {
        for lane in 0..4 {
            for k in 0..8 {
                let mut words = [0; 8];
                words[i] = 1 << (8 * lane + k);
                bits::transpose_bits(&mut words);
                let mut expected = [0; 8];
                expected[k] = 1 << (8 * lane + i);
                assert_eq!(words, expected);
            }
        }
    }
}
