//! The languages that shaders are translated to, each written by naga with the options that wgpu takes for unchecked shaders.

use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::ModuleInfo;
use naga::{AddressSpace, Module, ShaderStage, StorageAccess};

/// The language that a driver, or a compiler in its place, is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// For DX12 with shader model 6.2.
    Hlsl62,
    /// For DX12 with shader model 6.4, which multiplies packed bytes.
    Hlsl64,
    /// For Vulkan 1.1 without packed products of bytes.
    Spirv13,
    /// For Vulkan 1.3, which has them.
    Spirv16,
    /// For Metal.
    Msl,
    /// For browsers.
    Wgsl,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Hlsl62,
        Self::Hlsl64,
        Self::Spirv13,
        Self::Spirv16,
        Self::Msl,
        Self::Wgsl,
    ];

    /// The name of the language and of its folder.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hlsl62 => "hlsl-6.2",
            Self::Hlsl64 => "hlsl-6.4",
            Self::Spirv13 => "spirv-1.3",
            Self::Spirv16 => "spirv-1.6",
            Self::Msl => "msl",
            Self::Wgsl => "wgsl",
        }
    }

    /// How the names of its files end.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Hlsl62 | Self::Hlsl64 => "hlsl",
            Self::Spirv13 | Self::Spirv16 => "spv",
            Self::Msl => "metal",
            Self::Wgsl => "wgsl",
        }
    }
}

const UNCHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Unchecked,
    buffer: BoundsCheckPolicy::Unchecked,
    image_load: BoundsCheckPolicy::Unchecked,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// The versions of Metal's language that wgpu asks for, by the version of macOS (12 to 26). The first is the one that the tests compile.
const METAL_VERSIONS: [(u8, u8); 5] = [(2, 4), (3, 0), (3, 1), (3, 2), (4, 0)];

/// The source that Metal compiles, with the slots of wgpu's layout: immediates, buffers in order, their sizes. It is the same in all versions,
/// but for the line that names the version.
pub fn write_msl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let [text, others @ ..] = METAL_VERSIONS.map(|version| write_msl_in(version, module, info));
    let text = text?;
    for other in others {
        let other = other?;
        let differs = text
            .lines()
            .zip(other.lines())
            .find(|(a, b)| a != b && !a.starts_with("// language: "));
        if differs.is_some() || text.lines().count() != other.lines().count() {
            return Err(format!("MSL differs between versions: {differs:?}"));
        }
    }
    Ok(text)
}

fn write_msl_in(version: (u8, u8), module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let mut resources = msl::EntryPointResources {
        immediates_buffer: Some(0),
        ..Default::default()
    };
    for (_, var) in module.global_variables.iter() {
        if let Some(binding) = var.binding {
            let slot = resources.resources.len() as u8 + 1;
            let target = msl::BindTarget {
                buffer: Some(slot),
                mutable: matches!(var.space, AddressSpace::Storage { access } if access.contains(StorageAccess::STORE)),
                ..Default::default()
            };
            resources.resources.insert(binding, target);
        }
    }
    resources.sizes_buffer = Some(resources.resources.len() as u8 + 1);
    let options = msl::Options {
        lang_version: version,
        per_entry_point_map: [("main".to_owned(), resources)].into(),
        fake_missing_bindings: false,
        bounds_check_policies: UNCHECKED,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, "main".to_owned())),
        ..Default::default()
    };
    let (text, written) =
        msl::write_string(module, info, &options, &pipeline).map_err(|e| format!("MSL: {e}"))?;
    match written.entry_point_names.as_slice() {
        [Ok(_)] => Ok(text),
        other => Err(format!("MSL: entry points {other:?}")),
    }
}

/// The source that DXC compiles.
pub fn write_hlsl(
    module: &Module,
    info: &ModuleInfo,
    shader_model: hlsl::ShaderModel,
) -> Result<String, String> {
    let options = hlsl::Options {
        shader_model,
        fake_missing_bindings: true,
        immediates_target: Some(hlsl::BindTarget::default()),
        zero_initialize_workgroup_memory: false,
        restrict_indexing: false,
        force_loop_bounding: false,
        ..Default::default()
    };
    let pipeline = hlsl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, "main".to_owned())),
    };
    let mut text = String::new();
    let written = hlsl::Writer::new(&mut text, &options, &pipeline)
        .write(module, info, None)
        .map_err(|e| format!("HLSL: {e}"))?;
    match written.entry_point_names.as_slice() {
        [Ok(_)] => Ok(text),
        other => Err(format!("HLSL: entry points {other:?}")),
    }
}

/// The features of a device that a shader in SPIR-V may use.
#[derive(Debug, Clone, Copy)]
pub struct Abilities {
    /// The version of SPIR-V.
    pub version: (u8, u8),
    /// Operations of subgroups.
    pub subgroups: bool,
    /// Arithmetic in f16.
    pub halves: bool,
    /// Cooperative matrices.
    pub matrices: bool,
    /// Products of packed bytes.
    pub packed_bytes: bool,
}

impl Abilities {
    /// The features that wgpu asks of the device, as the capabilities that SPIR-V names.
    fn capabilities(self) -> Vec<spv::Capability> {
        use spv::Capability as C;
        let subgroups = [
            C::GroupNonUniform,
            C::GroupNonUniformVote,
            C::GroupNonUniformArithmetic,
            C::GroupNonUniformBallot,
            C::GroupNonUniformShuffle,
            C::GroupNonUniformShuffleRelative,
            C::GroupNonUniformQuad,
        ];
        let halves = [
            C::Float16,
            C::StorageBuffer16BitAccess,
            C::UniformAndStorageBuffer16BitAccess,
            C::StorageInputOutput16,
        ];
        let matrices = [C::CooperativeMatrixKHR, C::VulkanMemoryModel];
        let packed_bytes = [
            C::DotProductInputAllKHR,
            C::DotProductInput4x8BitKHR,
            C::DotProductInput4x8BitPackedKHR,
            C::DotProductKHR,
        ];
        let parts = [
            (true, &[C::Shader][..]),
            (self.subgroups, &subgroups),
            (self.halves, &halves),
            (self.matrices, &matrices),
            (self.packed_bytes, &packed_bytes),
        ];
        let had = parts.into_iter().filter(|(has, _)| *has);
        had.flat_map(|(_, part)| part.iter().copied()).collect()
    }
}

/// The words that Vulkan compiles, with no more than these abilities.
pub fn write_spirv(
    module: &Module,
    info: &ModuleInfo,
    abilities: Abilities,
) -> Result<Vec<u32>, String> {
    let options = spv::Options {
        lang_version: abilities.version,
        flags: spv::WriterFlags::empty(),
        capabilities: Some(abilities.capabilities().into_iter().collect()),
        bounds_check_policies: UNCHECKED,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let pipeline = spv::PipelineOptions {
        shader_stage: ShaderStage::Compute,
        entry_point: "main".to_owned(),
    };
    spv::write_vec(module, info, &options, Some(&pipeline)).map_err(|e| format!("SPIR-V: {e}"))
}
