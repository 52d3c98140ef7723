//! The structs of the blocks by type, in one place for all that is generic over them.

/// The value of an expression in which `$block` is the struct of the blocks of type `$ty`. The float types have no blocks, so each has an
/// expression of its own.
macro_rules! with_block {
    ($ty:expr, $block:ident => $value:expr, $($float:pat => $of_floats:expr,)*) => {{
        use crate::quant::{iq1, iq2, iq3, iq4, k_quants, legacy, mxfp4, types::GgmlType};
        match $ty {
            $($float => $of_floats,)*
            GgmlType::Q4_0 => { type $block = legacy::Q4_0; $value }
            GgmlType::Q4_1 => { type $block = legacy::Q4_1; $value }
            GgmlType::Q5_0 => { type $block = legacy::Q5_0; $value }
            GgmlType::Q5_1 => { type $block = legacy::Q5_1; $value }
            GgmlType::Q8_0 => { type $block = legacy::Q8_0; $value }
            GgmlType::Q2_K => { type $block = k_quants::Q2K; $value }
            GgmlType::Q3_K => { type $block = k_quants::Q3K; $value }
            GgmlType::Q4_K => { type $block = k_quants::Q4K; $value }
            GgmlType::Q5_K => { type $block = k_quants::Q5K; $value }
            GgmlType::Q6_K => { type $block = k_quants::Q6K; $value }
            GgmlType::IQ1_S => { type $block = iq1::Iq1S; $value }
            GgmlType::IQ1_M => { type $block = iq1::Iq1M; $value }
            GgmlType::IQ2_XXS => { type $block = iq2::Iq2Xxs; $value }
            GgmlType::IQ2_XS => { type $block = iq2::Iq2Xs; $value }
            GgmlType::IQ2_S => { type $block = iq2::Iq2S; $value }
            GgmlType::IQ3_XXS => { type $block = iq3::Iq3Xxs; $value }
            GgmlType::IQ3_S => { type $block = iq3::Iq3S; $value }
            GgmlType::IQ4_NL => { type $block = iq4::Iq4Nl; $value }
            GgmlType::IQ4_XS => { type $block = iq4::Iq4Xs; $value }
            GgmlType::MXFP4 => { type $block = mxfp4::Mxfp4; $value }
        }
    }};
}
pub(crate) use with_block;
