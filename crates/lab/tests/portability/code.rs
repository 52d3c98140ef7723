//! The rules of code: what no shader may do on some device, and what no translation of one may hold.

use crate::ensure;
use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{AddressSpace, Block, Expression, Module, Statement, TypeInner};
use std::collections::BTreeSet;

/// The module has no store that loses what others stored, and takes matrices as Metal does where it is to have them.
pub fn check_module(module: &Module, info: &ModuleInfo, matrices: bool) -> Result<(), String> {
    let functions = module.functions.iter();
    let functions = functions.map(|(handle, function)| (&info[handle], function));
    let entry = &module.entry_points[0].function;
    for (info, function) in functions.chain([(info.get_entry_point(0), entry)]) {
        check_stores(module, info, &function.body)?;
        if matrices {
            check_matrices(module, info, function)?;
        }
    }
    Ok(())
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
pub fn check_text(module: &Module, language: &str, text: &str) -> Result<(), String> {
    // A counter of 64 bits per loop; a flag per `for` loop; a clamp per load.
    let mut forbidden = vec!["loop_bound", "loop_init", "min(unsigned("];
    if language == "MSL" {
        // HLSL has no option to leave out the test for a divisor of 0; DXC folds it, since divisors are constants.
        forbidden.extend(["naga_div", "naga_mod"]);
    }
    // naga writes a function for each type of array that is composed, and types that differ by name alone have one name there.
    let mut made = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("typedef ")) {
        ensure(made.insert(line), || {
            format!("{language} defines this twice: {line}")
        })?;
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
