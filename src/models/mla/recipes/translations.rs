//! Portability without the hardware: every shader of the recorded steps, written as Metal, DX12 and Vulkan get it.
//!
//! Each is expanded, parsed, validated with no more than what its tier may use, and written with the options that wgpu takes for unchecked
//! shaders. Nothing is compiled further: that naga's output is right for the driver is naga's claim, that it holds no slow code and fits
//! every device is checked here.

use super::tests::{batches, composed, model, record, resolved, retyped};
use crate::gpu::buffer::Range;
use crate::gpu::interface;
use crate::gpu::machine::MAX_THREADS;
use crate::gpu::pipeline::{Spec, workgroup_memory};
use crate::gpu::shader::{self, Access};
use crate::gpu::target::profiles;
use crate::gpu::tier::SUBGROUP_BUFFERS;
use crate::gpu::{Target, Tier};
use crate::kernels::{mark, read};
use crate::quant::GgmlType;
use crate::synth::{ModelName, Recipe};
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::FunctionInfo;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, Block, Expression, Module, Scalar, ShaderStage, Statement, StorageAccess,
    TypeInner,
};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// What the validator may let pass: what all three writers can express and the tier may use.
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

const UNCHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Unchecked,
    buffer: BoundsCheckPolicy::Unchecked,
    image_load: BoundsCheckPolicy::Unchecked,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// The source that Metal compiles, with the slots of wgpu's layout: immediates, buffers in order, their sizes.
fn write_msl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
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
        lang_version: (2, 4),
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
fn write_hlsl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
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

/// The words that Vulkan compiles, with no more capabilities than wgpu asks of the device for the tier.
fn write_spirv(
    module: &Module,
    info: &ModuleInfo,
    tier: Tier,
    [f16, coop]: [bool; 2],
) -> Result<Vec<u32>, String> {
    use spv::Capability as C;
    let subgroup = [
        C::GroupNonUniform,
        C::GroupNonUniformVote,
        C::GroupNonUniformArithmetic,
        C::GroupNonUniformBallot,
        C::GroupNonUniformShuffle,
        C::GroupNonUniformShuffleRelative,
        C::GroupNonUniformQuad,
    ];
    let more: &[_] = match tier {
        Tier::Plain => &[],
        Tier::Subgroup | Tier::Int8 => &subgroup,
    };
    let halves = [
        C::Float16,
        C::StorageBuffer16BitAccess,
        C::UniformAndStorageBuffer16BitAccess,
        C::StorageInputOutput16,
    ];
    let matrices = [C::CooperativeMatrixKHR, C::VulkanMemoryModel];
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        capabilities: Some(
            [C::Shader]
                .iter()
                .chain(more)
                .chain(if f16 { &halves[..] } else { &[] })
                .chain(if coop { &matrices[..] } else { &[] })
                .copied()
                .collect(),
        ),
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

/// Fails with the text where `ok` is false.
fn ensure(ok: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(otherwise()) }
}

/// Bindings as the layout of the pipeline has them, parameters as the recorder passes them, limits of the least device.
fn check_interface(module: &Module, spec: &Spec, tier: Tier, coop: bool) -> Result<(), String> {
    let [entry] = module.entry_points.as_slice() else {
        return Err("more or fewer than one entry point".to_owned());
    };
    ensure(entry.name == "main", || {
        format!("the entry point {}", entry.name)
    })?;
    let threads: u32 = entry.workgroup_size.iter().product();
    // Whole subgroups of any size up to 64: the numbering of threads by subgroup would have holes otherwise.
    // Whoever has subgroups binds more buffers than a browser.
    let (most_threads, most_buffers) = match tier {
        Tier::Plain => (256, 8),
        Tier::Subgroup | Tier::Int8 => (MAX_THREADS, SUBGROUP_BUFFERS as usize),
    };
    ensure(
        threads <= most_threads && threads.is_multiple_of(64),
        || format!("{threads} threads"),
    )?;
    ensure(spec.access.len() <= most_buffers, || {
        format!("{} storage buffers", spec.access.len())
    })?;
    check_variables(module, spec, tier)?;
    check_workgroup_memory(module, spec, coop)?;

    let functions = module.functions.iter().map(|(_, f)| f);
    for function in functions.chain([&entry.function]) {
        for (_, var) in function.local_variables.iter() {
            let name = var.name.as_deref().unwrap_or("?");
            check_local(module, Some(function), name, var.ty)?;
        }
    }
    Ok(())
}

/// The storage buffers are those of the layout, and the parameters are where the tier has them.
fn check_variables(module: &Module, spec: &Spec, tier: Tier) -> Result<(), String> {
    let mut layouter = naga::proc::Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| format!("layout: {e}"))?;
    let mut access = vec![None; spec.access.len()];
    let mut params = 0;
    for (_, var) in module.global_variables.iter() {
        let name = var.name.as_deref().unwrap_or("?");
        let place = var.binding.map(|b| (b.group, b.binding as usize));
        match var.space {
            AddressSpace::Storage { access: found } => {
                let found = if found.contains(StorageAccess::STORE) {
                    Access::Write
                } else {
                    Access::Read
                };
                let slot = match place {
                    Some((0, i)) => access.get_mut(i),
                    _ => None,
                };
                let slot = slot.ok_or_else(|| format!("{name} at {place:?}: not in the layout"))?;
                ensure(slot.replace(found).is_none(), || {
                    format!("{name} at {place:?}: bound twice")
                })?;
            }
            AddressSpace::Uniform | AddressSpace::Immediate => {
                let (plain, expected) = (tier == Tier::Plain, (1, 0));
                ensure(
                    (var.space == AddressSpace::Uniform) == plain
                        && place == plain.then_some(expected),
                    || format!("{name} in {:?} at {place:?}", var.space),
                )?;
                check_params(module, var.ty)?;
                params += 1;
            }
            AddressSpace::WorkGroup => {}
            AddressSpace::Private => check_local(module, None, name, var.ty)?,
            space => return Err(format!("{name} in {space:?}")),
        }
    }
    let declared: Vec<_> = access.iter().flatten().copied().collect();
    ensure(declared == spec.access, || {
        format!("bindings {access:?} for a layout of {:?}", spec.access)
    })?;
    // A mark, a trial, biases, copies, and what a table tells all have none.
    let without = ["mark", "small_halves", "logit_bias", "copy_rows"].contains(&spec.kernel)
        || (spec.variant.flags.contains("table")
            && ["attention_merge", "sample_pick", "sample_scan"].contains(&spec.kernel));
    ensure(params == usize::from(!without), || {
        format!("{params} blocks of parameters")
    })?;
    Ok(())
}

/// Workgroup memory is what every device has that this kernel is chosen for.
fn check_workgroup_memory(module: &Module, spec: &Spec, coop: bool) -> Result<(), String> {
    // Devices with cooperative matrices are only used where they have 32 KiB; these kernels have shapes for those that have more.
    let large = ["attention_coop", "prompt_attention_coop"].contains(&spec.kernel);
    let roomy = ["attention_heads", "attention_short"].contains(&spec.kernel);
    let most_workgroup = match coop {
        true if large => 48 << 10,
        true => 32 << 10,
        // Inputs are staged, and these kernels chosen, where there is room for them.
        false
            if spec
                .variant
                .modules
                .values()
                .any(|module| module.starts_with("staged"))
                || roomy =>
        {
            32 << 10
        }
        false => 16 << 10,
    };
    let workgroup = workgroup_memory(module)?;
    ensure(workgroup <= most_workgroup, || {
        format!("{workgroup} bytes of workgroup memory")
    })
}

/// The parameters are words, one after the other, in the 128 bytes that immediates have everywhere.
fn check_params(module: &Module, ty: naga::Handle<naga::Type>) -> Result<(), String> {
    let TypeInner::Struct { members, span } = &module.types[ty].inner else {
        return Err("parameters are a struct, or HLSL pads them".to_owned());
    };
    ensure(*span <= 128, || format!("{span} bytes of parameters"))?;
    for (i, member) in members.iter().enumerate() {
        let inner = &module.types[member.ty].inner;
        let word = [Scalar::U32, Scalar::F32].map(TypeInner::Scalar);
        ensure(
            word.contains(inner) && member.offset as usize == 4 * i,
            || format!("parameter {member:?}"),
        )?;
    }
    Ok(())
}

/// No arrays in the variables of a thread but those that only constants index: others live in memory.
fn check_local(
    module: &Module,
    function: Option<&naga::Function>,
    name: &str,
    ty: naga::Handle<naga::Type>,
) -> Result<(), String> {
    let array = matches!(module.types[ty].inner, TypeInner::Array { .. });
    let indexed = function.is_none_or(|function| {
        let expressions = || function.expressions.iter().map(|(_, e)| e);
        let of_local = |base: naga::Handle<Expression>| {
            matches!(function.expressions[base], Expression::LocalVariable(_))
        };
        expressions().any(|e| matches!(e, Expression::Access { base, .. } if of_local(*base)))
    });
    ensure(!array || !indexed, || {
        format!("the array {name} in private memory, indexed by variables")
    })
}

/// No thread writes one component of a vector that others may write too: WGSL lets a device write the whole vector, as
/// the compilers of Metal and DX12 do, so components would be lost.
fn check_stores(module: &Module, info: &FunctionInfo, block: &Block) -> Result<(), String> {
    for statement in block.iter() {
        match statement {
            Statement::Store { pointer, .. } => {
                let component = match info[*pointer].ty.inner_with(&module.types) {
                    TypeInner::ValuePointer {
                        size: None, space, ..
                    } => Some(space),
                    _ => None,
                };
                let private = [AddressSpace::Function, AddressSpace::Private];
                ensure(component.is_none_or(|s| private.contains(s)), || {
                    format!("a store to a component of a vector in {component:?}")
                })?;
            }
            Statement::Block(inner) => check_stores(module, info, inner)?,
            Statement::If { accept, reject, .. } => {
                check_stores(module, info, accept)?;
                check_stores(module, info, reject)?;
            }
            Statement::Switch { cases, .. } => {
                for case in cases {
                    check_stores(module, info, &case.body)?;
                }
            }
            Statement::Loop {
                body, continuing, ..
            } => {
                check_stores(module, info, body)?;
                check_stores(module, info, continuing)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Matrices come from and go to pointers to numbers, as MSL's functions take them.
fn check_matrices(
    module: &Module,
    info: &FunctionInfo,
    function: &naga::Function,
) -> Result<(), String> {
    fn stores(block: &Block, found: &mut Vec<naga::Handle<Expression>>) {
        for statement in block.iter() {
            match statement {
                Statement::CooperativeStore { data, .. } => found.push(data.pointer),
                Statement::Block(inner) => stores(inner, found),
                Statement::If { accept, reject, .. } => {
                    stores(accept, found);
                    stores(reject, found);
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().for_each(|case| stores(&case.body, found));
                }
                Statement::Loop {
                    body, continuing, ..
                } => {
                    stores(body, found);
                    stores(continuing, found);
                }
                _ => {}
            }
        }
    }
    let loads = function.expressions.iter().filter_map(|(_, e)| match e {
        Expression::CooperativeLoad { data, .. } => Some(data.pointer),
        _ => None,
    });
    let mut pointers: Vec<_> = loads.collect();
    stores(&function.body, &mut pointers);
    for pointer in pointers {
        let number = match info[pointer].ty.inner_with(&module.types) {
            TypeInner::Pointer { base, .. } => {
                matches!(module.types[*base].inner, TypeInner::Scalar(_))
            }
            TypeInner::ValuePointer { size, .. } => size.is_none(),
            _ => false,
        };
        ensure(number, || {
            "a matrix through a pointer to vectors, for Metal".to_owned()
        })?;
    }
    Ok(())
}

/// Nothing in the text that the unchecked options and the rules for kernels are there to avoid.
fn check_text(module: &Module, language: &str, text: &str) -> Result<(), String> {
    // A counter of 64 bits per loop; a flag per `for` loop; a clamp per load.
    let mut forbidden = vec!["loop_bound", "loop_init", "min(unsigned("];
    if language == "MSL" {
        // HLSL has no option to leave out the test for a divisor of 0; DXC folds it, since divisors are constants.
        forbidden.extend(["naga_div", "naga_mod"]);
    }
    for part in forbidden {
        ensure(!text.contains(part), || format!("{language} has {part}"))?;
    }
    let workgroup: Vec<_> = module
        .global_variables
        .iter()
        .filter(|(_, var)| var.space == AddressSpace::WorkGroup)
        .filter_map(|(_, var)| var.name.as_deref())
        .collect();
    for line in text.lines().map(str::trim) {
        let zeroed = line.ends_with(" = {};") || line.ends_with(")0;");
        ensure(
            !(zeroed && workgroup.iter().any(|name| line.starts_with(name))),
            || format!("{language} zeroes workgroup memory: {line}"),
        )?;
    }
    Ok(())
}

/// What a shader is checked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Devices {
    /// All that have the tier.
    All,
    /// Those with cooperative matrices, on Vulkan alone.
    Matrices,
    /// Those with cooperative matrices, on Vulkan and Metal.
    MatricesAndMetal,
}

/// Checks a shader.
fn check(spec: &Spec, tier: Tier, devices: Devices) -> Result<(), String> {
    let coop = devices != Devices::All;
    let text = shader::expand(spec.kernel, spec.source, &spec.variant, tier)
        .map_err(|e| e.to_string())?
        .text;
    let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
    let mut allowed = capabilities(tier);
    // Pairs of halves are multiplied where the device has f16 in shaders.
    let f16 = coop || spec.variant.flags.contains("PACKED");
    if f16 {
        allowed |= Capabilities::SHADER_FLOAT16;
    }
    if coop {
        allowed |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP_BARRIER;
    }
    let info = Validator::new(ValidationFlags::all(), allowed)
        .validate(&module)
        .map_err(|e| e.emit_to_string(&text))?;
    check_interface(&module, spec, tier, coop)?;
    for (handle, function) in module.functions.iter() {
        check_stores(&module, &info[handle], &function.body)?;
    }
    check_stores(
        &module,
        info.get_entry_point(0),
        &module.entry_points[0].function.body,
    )?;
    if devices == Devices::MatricesAndMetal {
        for (handle, function) in module.functions.iter() {
            check_matrices(&module, &info[handle], function)?;
        }
        let entry = &module.entry_points[0].function;
        check_matrices(&module, info.get_entry_point(0), entry)?;
    }
    if devices != Devices::Matrices {
        check_text(&module, "MSL", &write_msl(&module, &info)?)?;
    }
    if !coop {
        check_text(&module, "HLSL", &write_hlsl(&module, &info)?)?;
    }
    write_spirv(&module, &info, tier, [f16, coop])?;
    Ok(())
}

/// The kernels by cooperative matrices.
const COOP: [&str; 4] = [
    "attention_coop",
    "expand_kv_coop",
    "gemm_coop",
    "prompt_attention_coop",
];

/// Every pipeline that steps of these models ask for on these devices, once, and for whom: weights of each type, each beside its
/// successor. A kernel that reads two types imports two modules that share no code, so a pair can only clash by names.
static PIPELINES: LazyLock<Vec<(Spec, Tier, Devices)>> = LazyLock::new(pipelines);

fn pipelines() -> Vec<(Spec, Tier, Devices)> {
    let types = |i: usize| {
        let all = GgmlType::ALL;
        [all[i], all[(i + 1) % all.len()]]
    };
    let models = [
        ModelName::Glm47Flash,
        ModelName::DeepseekV2Lite,
        ModelName::YoutuLlm2b,
        ModelName::TinyGlm,
    ];
    let of_model = |(name, i): (ModelName, usize)| {
        let mut found = BTreeSet::new();
        let model = retyped(model(name, Recipe::Q4_0), &types(i));
        for target in profiles() {
            let mut steps = record(&target, &model).steps;
            steps.push(("composed", composed(&target, &model)));
            steps.extend(batches(&target, &model));
            for (what, step) in &steps {
                let specs = resolved(&target, what, step)
                    .into_iter()
                    .map(|call| call.spec);
                // Matrices of 8 lanes are those of software, for tests.
                let software = target.coop.is_some_and(|coop| coop.lanes == 8);
                let specs = specs.filter(|spec| !software || !COOP.contains(&spec.kernel));
                found.extend(specs.map(|spec| asked(spec, &target)));
            }
        }
        found
    };
    let cases = models
        .iter()
        .flat_map(|name| (0..GgmlType::ALL.len()).map(|i| (*name, i)));
    let cases: Vec<_> = cases.collect();
    let mut all: BTreeSet<_> = cases.into_par_iter().flat_map_iter(of_model).collect();
    // What no step has.
    let told = Range::words("told", 4);
    let read = read::AT_ONCE.map(|at_once| {
        let data = Range::words("data", read::tile_bytes(at_once) / 4);
        read::call(&data, &told, at_once, 0)
    });
    let others = [mark::call(&told)].into_iter().chain(read);
    for call in others {
        let spec = interface::spec(&call).unwrap_or_else(|e| panic!("{e}"));
        all.extend(profiles().iter().map(|target| asked(spec.clone(), target)));
    }
    all.into_iter()
        .map(|(spec, tier, devices)| (spec, TIERS[tier], devices))
        .collect()
}

const TIERS: [Tier; 3] = [Tier::Plain, Tier::Subgroup, Tier::Int8];

/// For whom `target` asks for a pipeline. `int8` is `subgroup` with other flags.
fn asked(spec: Spec, target: &Target) -> (Spec, usize, Devices) {
    let metal = target
        .coop
        .is_some_and(|coop| (coop.size, coop.lanes) == (8, 32));
    let devices = match COOP.contains(&spec.kernel) {
        false => Devices::All,
        true if metal => Devices::MatricesAndMetal,
        true => Devices::Matrices,
    };
    (spec, usize::from(target.tier != Tier::Plain), devices)
}

#[test]
#[ignore = "long: scripts/test --all"]
fn every_pipeline_is_fit_for_its_devices() {
    let all = &*PIPELINES;
    let failures: Vec<_> = all
        .par_iter()
        .filter_map(|(spec, tier, devices)| {
            let e = check(spec, *tier, *devices).err()?;
            Some((
                format!("{} {}: {e}", spec.kernel, tier.name()),
                &spec.variant,
            ))
        })
        .collect();
    println!("{} pipelines", all.len());
    // Of each reason the first.
    let reasons: BTreeMap<_, _> = failures.iter().rev().map(|(e, v)| (e, v)).collect();
    for (reason, variant) in &reasons {
        println!("{reason}\n  {variant:?}");
    }
    assert!(
        failures.is_empty(),
        "{} of {} pipelines, for {} reasons",
        failures.len(),
        all.len(),
        reasons.len()
    );
    // Those of weights that are composed, and of a trial, are asked for outside of steps.
    let outside = ["compose", "small_halves"];
    let listed: BTreeSet<_> = all
        .iter()
        .map(|(spec, ..)| spec.kernel)
        .chain(outside)
        .collect();
    let kernels: BTreeSet<_> = shader::kernels().collect();
    assert_eq!(listed, kernels);
}

/// Subgroups differ in size from device to device, and on AMD's from kernel to kernel: only the device knows which threads share one.
#[test]
#[ignore = "long: scripts/test --all"]
fn numbers_of_subgroups_and_lanes_come_from_the_device() {
    let mut counts = [0; 2];
    for (spec, tier, _) in PIPELINES.iter().filter(|(_, tier, _)| *tier != Tier::Plain) {
        let text = shader::expand(spec.kernel, spec.source, &spec.variant, *tier)
            .unwrap_or_else(|e| panic!("{e}"))
            .text;
        let code = text.lines().map(|l| l.split("//").next().unwrap_or(l));
        let code: String = code.flat_map(|line| [line, "\n"]).collect();
        let numbered = code.contains("local_invocation");
        let subgroups = code.contains("subgroup");
        assert!(
            !(numbered && subgroups),
            "{} numbers its threads past their subgroups",
            spec.kernel
        );
        counts[usize::from(subgroups)] += 1;
        let Some(index) = code.find("let t = ") else {
            continue;
        };
        let line = code[index..].lines().next();
        assert_eq!(
            line.map(str::trim),
            Some("let t = subgroup * subgroup_size + lane_id;"),
            "{}",
            spec.kernel
        );
    }
    assert!(counts[1] > counts[0], "{counts:?}");
}
