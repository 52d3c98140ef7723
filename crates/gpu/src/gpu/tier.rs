//! The tiers of kernels, and which of them a device runs.

use super::facts::Facts;
use super::machine::{MIN_SUBGROUP, Profile};
use crate::quant::activation::Activation;
use wgpu::{AdapterInfo, Backend, DeviceType, Features};

named! {
    /// The device features that kernels may use. Chosen from the adapter's features, can be forced with `--tier`.
    pub enum Tier {
        /// No subgroups, uniforms instead of immediates, 8 storage buffers, 16 KiB, 256 threads: what every browser gives.
        Plain = "plain",
        /// Subgroups of at least 8 lanes, immediates (uniforms in a browser) and 16 storage buffers. As exact as f32: NMSE of logits some 1e-7 and less.
        Subgroup = "subgroup",
        /// `Subgroup` with a decoded token's activations as signed bytes, multiplied by packed dot products (DP4A and its like).
        /// Their rounding gives an NMSE of logits of 2e-5 to 3e-4 on the golden files.
        Int8 = "int8",
    }
}

/// Storage buffers that a kernel of the tiers with subgroups binds at most.
pub const SUBGROUP_BUFFERS: u32 = 16;
/// Storage buffers that a kernel of tier `plain` binds at most: those of every browser.
pub const PLAIN_BUFFERS: u32 = 8;
/// The most bytes of parameters that one dispatch may have: the portable size of immediates (DX12 has 128).
pub const MAX_PARAMS: usize = 128;

impl Tier {
    /// The form in which the products of few tokens leave their outputs for each other. `packed` says how the device multiplies halves.
    pub const fn activation(self, packed: bool) -> Activation {
        match self {
            Self::Plain => Activation::Floats,
            Self::Subgroup => Activation::Halves { packed },
            Self::Int8 => Activation::Bytes,
        }
    }

    /// Whether kernels exchange values within subgroups. Those of a decoded token do.
    pub const fn has_subgroups(self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// The tier that a device is opened in unless another is asked for: the [preferred](Self::preferred) one, or the best that it has
    /// all for. Where it [may be measured](Self::may_be_measured), loading a model may settle for another.
    pub fn best(adapter: &Facts) -> Self {
        [Self::preferred(&adapter.info), Self::Subgroup]
            .into_iter()
            .find(|tier| tier.missing(adapter).is_empty())
            .unwrap_or(Self::Plain)
    }

    /// The tier that suits a device, whether or not it can run it: `Int8` for discrete GPUs of NVIDIA, AMD and Intel by Vulkan or
    /// DX12, which multiply packed bytes in one instruction, else `Subgroup`.
    ///
    /// wgpu tells of no feature for such products (naga lowers them where they are missing), so the kind of device is the first guess.
    pub fn preferred(info: &AdapterInfo) -> Self {
        let packed_bytes = Profile::of(info).packed_bytes(info.backend);
        if packed_bytes && info.device_type == DeviceType::DiscreteGpu {
            Self::Int8
        } else {
            Self::Subgroup
        }
    }

    /// Whether a device opened in this tier can change between `Subgroup` and `Int8` by what is measured when a model is loaded.
    ///
    /// Metal has no packed products of bytes. Software keeps `Subgroup`, which is exact: what a CPU gains by bytes is no reason to
    /// round the text that every machine without a GPU gives.
    pub fn may_be_measured(self, info: &AdapterInfo) -> bool {
        self != Self::Plain
            && [Backend::Vulkan, Backend::Dx12].contains(&info.backend)
            && info.device_type != DeviceType::Cpu
    }

    /// The features and limits that the adapter lacks for this tier, in words; empty where it can run it.
    pub fn missing(self, adapter: &Facts) -> String {
        if self == Self::Plain {
            return String::new();
        }
        let Facts {
            info,
            limits,
            features,
        } = adapter;
        let has_subgroups = features.contains(Features::SUBGROUP);
        let mut missing = vec![];
        if !has_subgroups {
            missing.push(match adapter.remedy() {
                Some(remedy) => format!("subgroups ({remedy})"),
                None => "subgroups".to_owned(),
            });
        }
        // A browser has none, and parameters are uniforms there.
        let immediates = features.contains(Features::IMMEDIATES)
            && limits.max_immediate_size as usize >= MAX_PARAMS;
        if !immediates && info.backend != Backend::BrowserWebGpu {
            missing.push(format!("immediates of {MAX_PARAMS} bytes"));
        }
        // wgpu reports a constant 4..64 on Metal, where every GPU has 32 or more.
        let is_told = has_subgroups && info.backend != Backend::Metal;
        if is_told && info.subgroup_min_size < MIN_SUBGROUP {
            missing.push(format!(
                "subgroups of {MIN_SUBGROUP} lanes (it has {})",
                info.subgroup_min_size
            ));
        }
        let buffers = limits.max_storage_buffers_per_shader_stage;
        if buffers < SUBGROUP_BUFFERS {
            missing.push(format!(
                "{SUBGROUP_BUFFERS} storage buffers in a shader (it has {buffers})"
            ));
        }
        missing.join(" and ")
    }
}

impl std::str::FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::named(text)
            .ok_or_else(|| format!("unknown tier '{text}', expected plain, subgroup or int8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::machine::{AMD, INTEL, NVIDIA};

    #[test]
    fn the_tier_is_measured_where_bytes_may_be_multiplied() {
        use Backend::{Dx12, Metal, Vulkan};
        use DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
        for (tier, kind, backend, expected) in [
            (Tier::Int8, DiscreteGpu, Vulkan, true),
            (Tier::Subgroup, IntegratedGpu, Vulkan, true),
            (Tier::Subgroup, IntegratedGpu, Dx12, true),
            (Tier::Subgroup, VirtualGpu, Vulkan, true),
            (Tier::Subgroup, Other, Vulkan, true),
            (Tier::Plain, IntegratedGpu, Vulkan, false),
            (Tier::Subgroup, IntegratedGpu, Metal, false),
            (Tier::Subgroup, Cpu, Vulkan, false),
        ] {
            let found = tier.may_be_measured(&AdapterInfo::new(kind, backend));
            assert_eq!(found, expected, "{tier:?} {kind:?} {backend:?}");
        }
    }

    #[test]
    fn bytes_are_preferred_by_discrete_gpus_that_multiply_them() {
        use Backend::{Dx12, Metal, Vulkan};
        use DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
        let [nvidia, amd, intel] = [NVIDIA, AMD, INTEL];
        let (apple, mesa) = (0x106b, 0x10005);
        for (kind, backend, vendor, expected) in [
            (DiscreteGpu, Vulkan, nvidia, Tier::Int8),
            (DiscreteGpu, Dx12, nvidia, Tier::Int8),
            (DiscreteGpu, Vulkan, amd, Tier::Int8),
            (DiscreteGpu, Dx12, amd, Tier::Int8),
            (DiscreteGpu, Vulkan, intel, Tier::Int8),
            (DiscreteGpu, Metal, amd, Tier::Subgroup),
            (DiscreteGpu, Vulkan, 0x1234, Tier::Subgroup),
            (IntegratedGpu, Metal, apple, Tier::Subgroup),
            (IntegratedGpu, Vulkan, intel, Tier::Subgroup),
            (IntegratedGpu, Dx12, amd, Tier::Subgroup),
            (VirtualGpu, Vulkan, nvidia, Tier::Subgroup),
            (Cpu, Vulkan, mesa, Tier::Subgroup),
            (Other, Vulkan, amd, Tier::Subgroup),
        ] {
            let mut info = AdapterInfo::new(kind, backend);
            info.vendor = vendor;
            let found = Tier::preferred(&info);
            assert_eq!(found, expected, "{kind:?} {backend:?} {vendor:#x}");
        }
    }
}
