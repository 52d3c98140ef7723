//! The limits of what a shader uses of a device: bindings, parameters, threads and memory.

use crate::ensure;
use glimt::gpu::Tier;
use glimt::gpu::budget::Budget;
use glimt::gpu::machine::MAX_THREADS;
use glimt::gpu::pipeline::Spec;
use glimt::gpu::shader::Access;
use glimt::gpu::tier::SUBGROUP_BUFFERS;
use naga::{AddressSpace, Expression, Module, Scalar, StorageAccess, TypeInner};

/// Bindings as the layout of the pipeline has them, parameters as the recorder passes them, limits of the least device.
pub fn check_interface(module: &Module, spec: &Spec, tier: Tier, coop: bool) -> Result<(), String> {
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
    // A mark, a trial, biases, copies, and what a table tells all have none. Rows of grouped queries have some for norms and partial sums.
    let flags = &spec.variant.flags;
    let of_rows = [
        "eps",
        "pages",
        "q_partial_sums",
        "k_partial_sums",
        "v_partial_sums",
    ];
    let told = match spec.kernel {
        "attention_merge" | "sample_pick" | "sample_scan" => true,
        "grouped_rows" => of_rows.iter().all(|word| !flags.contains(word)),
        _ => false,
    };
    let without = ["mark", "small_halves", "logit_bias", "copy_rows"].contains(&spec.kernel)
        || (told && flags.contains("table"));
    ensure(params == usize::from(!without), || {
        format!("{params} blocks of parameters")
    })?;
    Ok(())
}

/// Workgroup memory is what every device has that this kernel is chosen for.
fn check_workgroup_memory(module: &Module, spec: &Spec, coop: bool) -> Result<(), String> {
    // Devices with cooperative matrices are only used where they have 32 KiB; these kernels have shapes for those that have more.
    let large = [
        "attention_coop",
        "grouped_attention_coop",
        "prompt_attention_coop",
    ]
    .contains(&spec.kernel);
    let roomy = ["attention_heads", "attention_short", "batch_experts"].contains(&spec.kernel);
    let most_workgroup = match coop {
        true if large => 48 << 10,
        true => 32 << 10,
        // Inputs are staged, and these kernels chosen or given their threads, where there is room for them.
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
    let workgroup = Budget::of(module)?.workgroup_memory;
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
