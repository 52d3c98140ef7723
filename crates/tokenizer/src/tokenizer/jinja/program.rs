//! The compiled form of a template, in which every instruction whose cost depends on data asks the budget first.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, ast, eval, make_string_output,
};
use minijinja::{AutoEscape, Environment, Error, Value};

use super::guard;

/// Renders a parsed template.
///
/// # Errors
/// Where the template fails, or where it is stopped.
pub(super) fn render<'t>(
    environment: &'t Environment<'t>,
    (key, source): (&'t str, &'t str),
    parsed: &ast::Stmt<'t>,
    variables: Value,
) -> Result<String, Error> {
    let mut generator = CodeGenerator::new(key, source);
    generator.compile_stmt(parsed);
    let (main, blocks) = generator.finish();
    let main = guarded(&main);
    let blocks: BTreeMap<_, _> = blocks
        .iter()
        .map(|(name, block)| (*name, guarded(block)))
        .collect();
    let mut text = String::new();
    eval(
        environment,
        &main,
        variables,
        &blocks,
        &mut make_string_output(&mut text),
        AutoEscape::None,
    )?;
    Ok(text)
}

/// `instructions` with the guarded ones of [`guard`] in place of those that may be costly, or beside them.
fn guarded<'t>(instructions: &Instructions<'t>) -> Instructions<'t> {
    let mut places = Vec::new();
    let mut all = Vec::new();
    while let Some(instruction) = instructions.get(places.len() as u32) {
        let old = places.len() as u32;
        places.push(all.len() as u32);
        all.extend(replaced(instruction).into_iter().map(|new| (new, old)));
    }
    places.push(all.len() as u32);
    let mut result = Instructions::new(instructions.name(), instructions.source());
    for (mut instruction, old) in all {
        if let Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) = &mut instruction
        {
            *to = places.get(*to as usize).copied().unwrap_or(*to);
        }
        match (instructions.get_span(old), instructions.get_line(old)) {
            (Some(span), _) => result.add_with_span(instruction, span),
            (None, Some(line)) => {
                let line = u16::try_from(line).unwrap_or(u16::MAX);
                result.add_with_line(instruction, line)
            }
            (None, None) => result.add(instruction),
        };
    }
    result
}

/// A filter without a place in the interpreter's table of those that it has looked up.
const NO_PLACE: u8 = u8::MAX;

/// The instructions that replace `instruction`.
fn replaced<'t>(instruction: &Instruction<'t>) -> Vec<Instruction<'t>> {
    let same = || instruction.clone();
    let op = |name, count: usize| Instruction::ApplyFilter(name, Some(count as u16), NO_PLACE);
    match instruction {
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::Eq => vec![op(guard::COMPARISONS[0], 2)],
        Instruction::Ne => vec![op(guard::COMPARISONS[1], 2)],
        Instruction::Lt => vec![op(guard::COMPARISONS[2], 2)],
        Instruction::Lte => vec![op(guard::COMPARISONS[3], 2)],
        Instruction::Gt => vec![op(guard::COMPARISONS[4], 2)],
        Instruction::Gte => vec![op(guard::COMPARISONS[5], 2)],
        Instruction::In => vec![op(guard::COMPARISONS[6], 2)],
        // It leaves the right side beside the result.
        Instruction::CompareAndPreserve(kind) => vec![
            op(guard::PRESERVED[comparison(&format!("{kind:?}"))], 2),
            Instruction::UnpackList(2),
        ],
        Instruction::Mul => vec![op(guard::MUL, 2)],
        Instruction::Rem => vec![op(guard::REM, 2)],
        Instruction::Neg => vec![op(guard::NEG, 1)],
        Instruction::BuildMacro(..) => vec![same(), op(guard::MACRO, 1)],
        Instruction::UnpackList(_) => vec![op(guard::UNPACKED, 1), same()],
        Instruction::StringConcat => vec![op(guard::CONCAT, 2)],
        Instruction::Add => vec![same(), op(guard::FLAT, 1)],
        Instruction::GetItem => vec![op(guard::ITEM, 2)],
        Instruction::Slice => vec![op(guard::SLICE, 4)],
        // Arguments by name are read by what is called.
        Instruction::BuildList(_) | Instruction::BuildTuple(_) | Instruction::BuildMap(_) => {
            vec![same(), op(guard::MADE, 1)]
        }
        Instruction::UnpackLists(count) => {
            vec![op(guard::SPLAT, *count), Instruction::UnpackLists(1)]
        }
        Instruction::MergeKwargs(count) => {
            vec![op(guard::MERGED, *count), Instruction::MergeKwargs(1)]
        }
        Instruction::PushLoop(_)
        | Instruction::FastRecurse
        // It may be the loop that is called.
        | Instruction::CallFunction(_, Some(1)) => vec![op(guard::ITERATED, 1), same()],
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, op(guard::KEPT, 1), Instruction::Swap, same()]
        }
        Instruction::CallMethod("changed", count) => {
            vec![Instruction::ApplyFilter(guard::CHANGED, *count, NO_PLACE)]
        }
        _ => vec![same()],
    }
}

/// The index of the comparison of this name in [`guard::COMPARISONS`].
fn comparison(name: &str) -> usize {
    let names = ["Eq", "Ne", "Lt", "Lte", "Gt", "Gte", "In", "NotIn"];
    names.iter().position(|known| *known == name).unwrap_or(0)
}
