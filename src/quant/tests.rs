//! Dequantisation against vectors made by gguf-py (scripts/make-quant-golden.py).

use super::*;

/// `"0aff"` to bytes.
fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("the golden file is hexadecimal"))
        .collect()
}

#[test]
fn dequantize_row_gives_the_bits_of_gguf_py() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/data/quant-golden.json"))
            .expect("the golden file is JSON");
    for &ty in GgmlType::ALL {
        let case = &golden[ty.name()];
        let hex = |key: &str| {
            from_hex(
                case[key]
                    .as_str()
                    .unwrap_or_else(|| panic!("{ty} has no {key}")),
            )
        };
        let (blocks, expected) = (hex("blocks"), hex("values"));
        let expected: Vec<f32> = bytemuck::pod_collect_to_vec(&expected);
        assert_eq!(Some(blocks.len()), ty.row_bytes(expected.len()), "{ty}");
        // At an odd address too: rows of 18-byte blocks in an embedded file can start anywhere.
        for offset in 0..2 {
            let mut shifted = vec![0; offset];
            shifted.extend_from_slice(&blocks);
            let mut values = vec![f32::NAN; expected.len()];
            dequantize_row(ty, &shifted[offset..], &mut values);
            for (i, (got, want)) in values.iter().zip(&expected).enumerate() {
                assert_eq!(
                    got.to_bits(),
                    want.to_bits(),
                    "{ty} weight {i}: {got} instead of {want}"
                );
            }
        }
    }
}

#[test]
#[should_panic(expected = "17 bytes of Q4_0 for 32 weights")]
fn dequantize_row_refuses_a_part_of_a_block() {
    dequantize_row(GgmlType::Q4_0, &[0; 17], &mut [0.0; 32]);
}
