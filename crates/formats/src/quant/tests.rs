//! Protects dequantisation: the bits are those of gguf-py (scripts/make-quant-golden.py).

use super::*;

/// tests/data/quant-golden.json.
pub(super) struct Golden(serde_json::Value);

impl Golden {
    pub(super) fn read() -> Self {
        let text = include_str!("../../../../tests/data/quant-golden.json");
        Golden(serde_json::from_str(text).expect("the golden file is JSON"))
    }

    /// The bytes under `key` of a type.
    pub(super) fn bytes(&self, ty: GgmlType, key: &str) -> Vec<u8> {
        from_hex(&self.0[ty.name()][key])
    }

    /// The floats under a key of the file itself.
    pub(super) fn floats(&self, key: &str) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&from_hex(&self.0[key]))
    }
}

fn from_hex(value: &serde_json::Value) -> Vec<u8> {
    let text = value.as_str().expect("the golden file has this entry");
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("the golden file is hexadecimal"))
        .collect()
}

#[test]
fn dequantize_row_gives_the_bits_of_gguf_py() {
    let golden = Golden::read();
    for &ty in GgmlType::ALL {
        let (blocks, expected) = (golden.bytes(ty, "blocks"), golden.bytes(ty, "values"));
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
