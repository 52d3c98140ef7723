//! The source that Metal would compile.

use glimt::gpu::budget::Budget;
use naga::back::msl;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage, StorageAccess};

const UNCHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Unchecked,
    buffer: BoundsCheckPolicy::Unchecked,
    image_load: BoundsCheckPolicy::Unchecked,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// A kernel in Metal's language.
pub(super) struct Msl {
    pub text: String,
    /// Threads of a workgroup.
    pub threads: [u32; 3],
    /// The slot of the parameters, if there are any.
    pub params: Option<u8>,
    /// The slots of the bindings of group 0, in order.
    pub bindings: Vec<u8>,
}

/// Where the entry point finds its buffers, as wgpu lays them out: parameters, bindings in order, their sizes.
fn resources(module: &Module) -> msl::EntryPointResources {
    let mut bound: Vec<_> = module.global_variables.iter().map(|(_, var)| var).collect();
    bound.retain(|var| var.binding.is_some());
    bound.sort_by_key(|var| var.binding.map(|b| (b.group, b.binding)));
    let immediates = module
        .global_variables
        .iter()
        .any(|(_, var)| var.space == AddressSpace::Immediate);
    let first = u8::from(immediates);
    let target = |(slot, var): (u8, &naga::GlobalVariable)| {
        let writes = matches!(var.space, AddressSpace::Storage { access } if access.contains(StorageAccess::STORE));
        let target = msl::BindTarget {
            buffer: Some(slot),
            mutable: writes,
            ..Default::default()
        };
        Some((var.binding?, target))
    };
    let count = bound.len() as u8;
    msl::EntryPointResources {
        immediates_buffer: immediates.then_some(0),
        resources: (first..).zip(bound).filter_map(target).collect(),
        sizes_buffer: Some(first + count),
    }
}

/// Bytes of workgroup memory that every Mac has.
const WORKGROUP_MEMORY: u32 = 32 << 10;

/// The source of a pipeline, with the options that wgpu-hal takes for unchecked shaders.
///
/// # Errors
/// The fault of the template.
pub(super) fn written(text: &str, version: (u8, u8)) -> Result<Msl, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let Budget {
        workgroup_memory, ..
    } = Budget::of(&module)?;
    if workgroup_memory > WORKGROUP_MEMORY {
        return Err(format!("{workgroup_memory} bytes of workgroup memory"));
    }
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    let resources = resources(&module);
    let slots = resources.resources.iter();
    let mut bindings: Vec<_> = slots
        .map(|(place, target)| (*place, target.buffer))
        .collect();
    bindings.sort();
    let slot_of = |group| {
        move |(place, slot): &(naga::ResourceBinding, Option<u8>)| {
            (place.group == group).then_some(*slot)?
        }
    };
    let params = bindings
        .iter()
        .find_map(slot_of(1))
        .or(resources.immediates_buffer);
    let bindings = bindings.iter().filter_map(slot_of(0)).collect();
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
    let (text, names) =
        msl::write_string(&module, &info, &options, &pipeline).map_err(|e| format!("MSL: {e}"))?;
    match names.entry_point_names.as_slice() {
        [Ok(_)] => Ok(Msl {
            text,
            threads: module.entry_points[0].workgroup_size,
            params,
            bindings,
        }),
        other => Err(format!("MSL: entry points {other:?}")),
    }
}
