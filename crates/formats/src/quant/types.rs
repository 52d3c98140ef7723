//! The tensor types of GGUF that glimt reads, with the sizes of their blocks.

use std::fmt;

/// Weights per block of the types that GGML calls legacy, and of IQ4_NL and MXFP4 (`QK4_0` and its kin in ggml-common.h).
pub const SMALL_BLOCK: usize = 32;

/// Weights per superblock of the K-quants, IQ4_XS and the types with grids (`QK_K` in ggml-common.h).
pub const SUPER_BLOCK: usize = 256;

/// Floats stand alone.
const SINGLE: usize = 1;

/// Says each type once: its number in GGUF, the name of its WGSL module, and its blocks.
macro_rules! types {
    ($($(#[$doc:meta])* $ty:ident = $id:literal, $module:literal, $len:ident weights in $bytes:literal bytes;)*) => {
        /// How the numbers of a tensor are stored: GGUF's `ggml_type`, with GGUF's numbers as discriminants.
        ///
        /// Only the types that glimt computes with are here; other ids of the GGUF format give `None` from
        /// [`GgmlType::from_id`].
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the names are those of GGML, under which users know the files")]
        pub enum GgmlType {
            $($(#[$doc])* $ty = $id,)*
        }

        impl GgmlType {
            /// Every type, in the order of the GGUF ids.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$ty),*];

            /// The name as GGML writes it in capitals: `Q4_K`, `F16`, `IQ4_NL`.
            pub fn name(self) -> &'static str {
                match self { $(GgmlType::$ty => stringify!($ty),)* }
            }

            /// The name of the WGSL module in `wgsl/shared` that reads its planes ([`repack`](super::repack)).
            pub(super) fn module(self) -> &'static str {
                match self { $(GgmlType::$ty => $module,)* }
            }

            /// Weights per block: 1 for the floats, 32 or 256 otherwise. A row is a whole number of blocks.
            pub const fn block_len(self) -> usize {
                match self { $(GgmlType::$ty => $len,)* }
            }

            /// Bytes per block of [`GgmlType::block_len`] weights.
            pub const fn block_bytes(self) -> usize {
                match self { $(GgmlType::$ty => $bytes,)* }
            }
        }
    };
}
types! {
    /// IEEE single precision.
    F32 = 0, "f32", SINGLE weights in 4 bytes;
    /// IEEE half precision.
    F16 = 1, "f16", SINGLE weights in 2 bytes;
    /// 4 bits and one f16 scale per 32 weights, 4.5 bits per weight.
    Q4_0 = 2, "q4_0", SMALL_BLOCK weights in 18 bytes;
    /// 4 bits, an f16 scale and an f16 minimum per 32 weights, 5 bits per weight.
    Q4_1 = 3, "q4_1", SMALL_BLOCK weights in 20 bytes;
    /// 5 bits and one f16 scale per 32 weights, 5.5 bits per weight.
    Q5_0 = 6, "q5_0", SMALL_BLOCK weights in 22 bytes;
    /// 5 bits, an f16 scale and an f16 minimum per 32 weights, 6 bits per weight.
    Q5_1 = 7, "q5_1", SMALL_BLOCK weights in 24 bytes;
    /// 8 bits and one f16 scale per 32 weights, 8.5 bits per weight.
    Q8_0 = 8, "q8_0", SMALL_BLOCK weights in 34 bytes;
    /// 2 bits, 4-bit scales and minima per 16 weights, 2.625 bits per weight.
    Q2_K = 10, "q2_k", SUPER_BLOCK weights in 84 bytes;
    /// 3 bits, 6-bit scales per 16 weights, 3.4375 bits per weight.
    Q3_K = 11, "q3_k", SUPER_BLOCK weights in 110 bytes;
    /// 4 bits, 6-bit scales and minima per 32 weights, 4.5 bits per weight.
    Q4_K = 12, "q4_k", SUPER_BLOCK weights in 144 bytes;
    /// 5 bits, 6-bit scales and minima per 32 weights, 5.5 bits per weight.
    Q5_K = 13, "q5_k", SUPER_BLOCK weights in 176 bytes;
    /// 6 bits, 8-bit scales per 16 weights, 6.5625 bits per weight.
    Q6_K = 14, "q6_k", SUPER_BLOCK weights in 210 bytes;
    /// Points of a grid of 8 values, even signs and a 4-bit scale per 32 weights, 2.0625 bits per weight.
    IQ2_XXS = 16, "iq2_xxs", SUPER_BLOCK weights in 66 bytes;
    /// Points of a larger grid of 8 values, even signs, 4-bit scales per 16 weights, 2.3125 bits per weight.
    IQ2_XS = 17, "iq2_xs", SUPER_BLOCK weights in 74 bytes;
    /// Points of a grid of 4 values, even signs and a 4-bit scale per 32 weights, 3.0625 bits per weight.
    IQ3_XXS = 18, "iq3_xxs", SUPER_BLOCK weights in 98 bytes;
    /// Points of a grid of 8 values, an offset and a 3-bit scale per 32 weights, 1.5625 bits per weight.
    IQ1_S = 19, "iq1_s", SUPER_BLOCK weights in 50 bytes;
    /// 4-bit indices into a fixed nonlinear codebook, one f16 scale per 32 weights, 4.5 bits per weight.
    IQ4_NL = 20, "iq4_nl", SMALL_BLOCK weights in 18 bytes;
    /// Points of a larger grid of 4 values, a sign per weight, a 4-bit scale per 32 weights, 3.4375 bits per weight.
    IQ3_S = 21, "iq3_s", SUPER_BLOCK weights in 110 bytes;
    /// Points of the largest grid of 8 values, a sign per weight, 4-bit scales per 16 weights, 2.5625 bits per weight.
    IQ2_S = 22, "iq2_s", SUPER_BLOCK weights in 82 bytes;
    /// The codebook of IQ4_NL with 6-bit scales per 32 weights, 4.25 bits per weight.
    IQ4_XS = 23, "iq4_xs", SUPER_BLOCK weights in 136 bytes;
    /// The grid of IQ1_S with an offset per 8 and a 3-bit scale per 16 weights, 1.75 bits per weight.
    IQ1_M = 29, "iq1_m", SUPER_BLOCK weights in 56 bytes;
    /// The upper half of an IEEE single.
    BF16 = 30, "bf16", SINGLE weights in 2 bytes;
    /// Floats of 4 bits with a power of two per 32 weights (MXFP4 of the OCP microscaling formats), 4.25 bits per weight.
    MXFP4 = 39, "mxfp4", SMALL_BLOCK weights in 17 bytes;
}

impl GgmlType {
    /// The type with this number in a GGUF tensor table, `None` for those glimt does not compute with.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The number that stands for this type in a GGUF tensor table.
    pub fn id(self) -> u32 {
        self as u32
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
    fn ids_lead_back_to_the_type() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(ty.module(), ty.name().to_lowercase());
        }
        assert_eq!(GgmlType::from_id(4), None, "Q4_2 was removed from GGML");
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
