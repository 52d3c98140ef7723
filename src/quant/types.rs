//! The tensor types of GGUF that glimt reads, with the sizes of their blocks.

use std::fmt;

/// Weights per block of the types that GGML calls legacy, and of IQ4_NL (`QK4_0` and its kin in ggml-common.h).
pub const SMALL_BLOCK: usize = 32;

/// Weights per superblock of the K-quants and IQ4_XS (`QK_K` in ggml-common.h).
pub const SUPER_BLOCK: usize = 256;

/// How the numbers of a tensor are stored: GGUF's `ggml_type`, with GGUF's numbers as discriminants.
///
/// Only the types that glimt computes with are here; other ids of the GGUF format give `None` from
/// [`GgmlType::from_id`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(
    non_camel_case_types,
    reason = "the names are those of GGML, under which users know the files"
)]
pub enum GgmlType {
    /// IEEE single precision.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// 4 bits and one f16 scale per 32 weights, 4.5 bits per weight.
    Q4_0 = 2,
    /// 4 bits, an f16 scale and an f16 minimum per 32 weights, 5 bits per weight.
    Q4_1 = 3,
    /// 5 bits and one f16 scale per 32 weights, 5.5 bits per weight.
    Q5_0 = 6,
    /// 5 bits, an f16 scale and an f16 minimum per 32 weights, 6 bits per weight.
    Q5_1 = 7,
    /// 8 bits and one f16 scale per 32 weights, 8.5 bits per weight.
    Q8_0 = 8,
    /// 2 bits, 4-bit scales and minima per 16 weights, 2.625 bits per weight.
    Q2_K = 10,
    /// 3 bits, 6-bit scales per 16 weights, 3.4375 bits per weight.
    Q3_K = 11,
    /// 4 bits, 6-bit scales and minima per 32 weights, 4.5 bits per weight.
    Q4_K = 12,
    /// 5 bits, 6-bit scales and minima per 32 weights, 5.5 bits per weight.
    Q5_K = 13,
    /// 6 bits, 8-bit scales per 16 weights, 6.5625 bits per weight.
    Q6_K = 14,
    /// 4-bit indices into a fixed nonlinear codebook, one f16 scale per 32 weights, 4.5 bits per weight.
    IQ4_NL = 20,
    /// The codebook of IQ4_NL with 6-bit scales per 32 weights, 4.25 bits per weight.
    IQ4_XS = 23,
    /// The upper half of an IEEE single.
    BF16 = 30,
}

impl GgmlType {
    /// Every type, in the order of the GGUF ids.
    pub const ALL: &[GgmlType] = &[
        GgmlType::F32,
        GgmlType::F16,
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::Q2_K,
        GgmlType::Q3_K,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
        GgmlType::IQ4_NL,
        GgmlType::IQ4_XS,
        GgmlType::BF16,
    ];

    /// The type with this number in a GGUF tensor table, `None` for those glimt does not compute with.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The number that stands for this type in a GGUF tensor table.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The name as GGML writes it in capitals: `Q4_K`, `F16`, `IQ4_NL`.
    pub fn name(self) -> &'static str {
        match self {
            GgmlType::F32 => "F32",
            GgmlType::F16 => "F16",
            GgmlType::Q4_0 => "Q4_0",
            GgmlType::Q4_1 => "Q4_1",
            GgmlType::Q5_0 => "Q5_0",
            GgmlType::Q5_1 => "Q5_1",
            GgmlType::Q8_0 => "Q8_0",
            GgmlType::Q2_K => "Q2_K",
            GgmlType::Q3_K => "Q3_K",
            GgmlType::Q4_K => "Q4_K",
            GgmlType::Q5_K => "Q5_K",
            GgmlType::Q6_K => "Q6_K",
            GgmlType::IQ4_NL => "IQ4_NL",
            GgmlType::IQ4_XS => "IQ4_XS",
            GgmlType::BF16 => "BF16",
        }
    }

    /// The type of that name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// Weights per block: 1 for the floats, 32 or 256 otherwise. A row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => 1,
            GgmlType::Q4_0
            | GgmlType::Q4_1
            | GgmlType::Q5_0
            | GgmlType::Q5_1
            | GgmlType::Q8_0
            | GgmlType::IQ4_NL => SMALL_BLOCK,
            GgmlType::Q2_K
            | GgmlType::Q3_K
            | GgmlType::Q4_K
            | GgmlType::Q5_K
            | GgmlType::Q6_K
            | GgmlType::IQ4_XS => SUPER_BLOCK,
        }
    }

    /// Bytes per block of [`GgmlType::block_len`] weights.
    pub const fn block_bytes(self) -> usize {
        match self {
            GgmlType::F32 => 4,
            GgmlType::F16 | GgmlType::BF16 => 2,
            GgmlType::Q4_0 | GgmlType::IQ4_NL => 18,
            GgmlType::Q4_1 => 20,
            GgmlType::Q5_0 => 22,
            GgmlType::Q5_1 => 24,
            GgmlType::Q8_0 => 34,
            GgmlType::Q2_K => 84,
            GgmlType::Q3_K => 110,
            GgmlType::Q4_K => 144,
            GgmlType::Q5_K => 176,
            GgmlType::Q6_K => 210,
            GgmlType::IQ4_XS => 136,
        }
    }

    /// Bytes of a row of `cols` weights; `None` if `cols` is no multiple of [`GgmlType::block_len`] or the product
    /// overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_lead_back_to_the_type() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
            assert_eq!(GgmlType::from_name(&ty.name().to_lowercase()), Some(ty));
            assert_eq!(ty.name(), format!("{ty:?}"));
        }
        assert_eq!(GgmlType::from_id(4), None, "Q4_2 was removed from GGML");
        assert_eq!(GgmlType::from_name("Q4"), None);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(GgmlType::Q4_K.row_bytes(2048), Some(1152));
        assert_eq!(GgmlType::Q4_K.row_bytes(192), None);
        assert_eq!(GgmlType::Q5_0.row_bytes(192), Some(132));
        assert_eq!(GgmlType::F16.row_bytes(7), Some(14));
        assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
    }
}
