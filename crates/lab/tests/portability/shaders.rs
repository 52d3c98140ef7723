//! A pipeline in every language, each checked for what that language's devices have.

use crate::code::{check_module, check_text};
use crate::interface::check_interface;
use crate::language::{Abilities, Language, write_hlsl, write_msl, write_spirv};
use crate::pipelines::{Devices, Pipeline};
use glimt::gpu::Tier;
use glimt::gpu::barriers::order_workgroup_memory;
use glimt::gpu::shader::{self, FETCHES};
use naga::Module;
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

/// A shader in a language, or why there is none.
pub type Written = Result<Vec<u8>, &'static str>;

/// A shader in a language as far as it can be told: (language, shader or why there is none).
pub type Translations = Vec<(Language, Written)>;

/// Why DX12 gets no kernel by matrices.
const NO_MATRICES_IN_HLSL: &str = "no cooperative matrices in HLSL: DX12 computes in f32";
/// Why browsers get none.
const NO_MATRICES_IN_BROWSERS: &str = "no cooperative matrices in browsers: they compute in f32";
/// Why Metal gets none of 16 rows.
const LARGE_MATRICES: &str = "matrices of 16 rows: Metal has those of 8, which are other shaders";
/// Why no SPIR-V of Vulkan 1.1 is made of them.
const NEW_DRIVERS: &str = "drivers with cooperative matrices have Vulkan 1.3";

/// The capabilities that the validator may let pass: those that all three writers can express and the tier may use.
fn capabilities(tier: Tier) -> Capabilities {
    // pack2x16float and unpack2x16float, which every browser has; naga counts them as an ability.
    let plain = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let wanted = match tier {
        Tier::Plain => plain,
        Tier::Subgroup | Tier::Int8 => plain | Capabilities::SUBGROUP | Capabilities::IMMEDIATES,
    };
    let portable = msl::supported_capabilities()
        & hlsl::supported_capabilities()
        & spv::supported_capabilities();
    assert!(portable.contains(wanted), "no tier can use {wanted:?}");
    wanted
}

/// The shader as text, with `fetches` as Vulkan gets it.
fn expanded(pipeline: &Pipeline, fetches: bool) -> Result<String, String> {
    let Pipeline { spec, tier, .. } = pipeline;
    let variant = spec.variant.clone().flag(FETCHES, fetches);
    let expanded = shader::expand(spec.kernel, spec.source, &variant, *tier);
    Ok(expanded.map_err(|e| e.to_string())?.text)
}

impl Pipeline {
    /// Whether the pipeline multiplies matrices.
    fn by_matrices(&self) -> bool {
        self.devices != Devices::All
    }

    /// Whether the pipeline computes in f16: by matrices, or pairs of halves where the device has f16 in shaders.
    fn by_halves(&self) -> bool {
        self.by_matrices() || self.spec.variant.flags.contains("PACKED")
    }

    /// The module of the pipeline's text, as the engine gives it to wgpu. It must be valid with the features of its tier and its devices.
    fn validated(&self, text: &str, vulkan: bool) -> Result<(Module, ModuleInfo), String> {
        let mut module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
        let mut allowed = capabilities(self.tier);
        if self.by_halves() {
            allowed |= Capabilities::SHADER_FLOAT16;
        }
        if self.by_matrices() {
            allowed |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP_BARRIER;
        }
        if vulkan {
            order_workgroup_memory(&mut module);
        }
        let info = Validator::new(ValidationFlags::all(), allowed)
            .validate(&module)
            .map_err(|e| e.emit_to_string(text))?;
        Ok((module, info))
    }

    fn spirv(&self, [version, packed_bytes]: [(u8, u8); 2]) -> Result<Vec<u8>, String> {
        let text = expanded(self, self.tier != Tier::Plain)?;
        let (module, info) = self.validated(&text, true)?;
        let abilities = Abilities {
            version,
            subgroups: self.tier != Tier::Plain,
            halves: self.by_halves(),
            matrices: self.by_matrices(),
            packed_bytes: version >= packed_bytes,
        };
        let words = write_spirv(&module, &info, abilities)?;
        Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
    }

    /// The pipeline in every language.
    ///
    /// # Errors
    /// The objection of a check or of naga.
    pub fn translated(&self) -> Result<Translations, String> {
        let text = expanded(self, false)?;
        let (module, info) = self.validated(&text, false)?;
        check_interface(&module, &self.spec, self.tier, self.by_matrices())?;
        check_module(&module, &info, self.devices == Devices::MatricesAndMetal)?;
        let hlsl = |model| -> Result<Written, String> {
            if self.by_matrices() {
                return Ok(Err(NO_MATRICES_IN_HLSL));
            }
            let text = write_hlsl(&module, &info, model)?;
            check_text(&module, "HLSL", &text)?;
            Ok(Ok(text.into_bytes()))
        };
        let metal = || -> Result<Written, String> {
            if self.devices == Devices::Matrices {
                return Ok(Err(LARGE_MATRICES));
            }
            let text = write_msl(&module, &info)?;
            check_text(&module, "MSL", &text)?;
            Ok(Ok(text.into_bytes()))
        };
        let old_vulkan = match self.by_matrices() {
            true => Err(NEW_DRIVERS),
            false => Ok(self.spirv([(1, 3), (1, 6)])?),
        };
        let browser = match self.by_matrices() {
            true => Err(NO_MATRICES_IN_BROWSERS),
            false => Ok(for_browsers(&text, self.tier).into_bytes()),
        };
        Ok(vec![
            (Language::Hlsl62, hlsl(hlsl::ShaderModel::V6_2)?),
            (Language::Hlsl64, hlsl(hlsl::ShaderModel::V6_4)?),
            (Language::Spirv13, old_vulkan),
            (Language::Spirv16, Ok(self.spirv([(1, 6), (1, 6)])?)),
            (Language::Msl, metal()?),
            (Language::Wgsl, browser),
        ])
    }
}

/// The text with what browsers demand for subgroups, and naga refuses.
///
/// In some kernels only some groups of lanes shuffle. All lanes of such a group take part, but WGSL's analysis sees whole subgroups only.
fn for_browsers(text: &str, tier: Tier) -> String {
    match tier {
        Tier::Plain => text.to_owned(),
        Tier::Subgroup | Tier::Int8 => {
            format!("enable subgroups;\ndiagnostic(off, subgroup_uniformity);\n{text}")
        }
    }
}
