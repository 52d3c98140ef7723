//! The work of a shader as a text, which two shaders share only if they do the same.

use naga::compact::{KeepUnused, compact};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{Block, Expression, Function, Handle, Literal, Module, Statement};

/// naga's module of a shader, without branches that constants rule out and without what nobody calls. Constants are evaluated in it.
///
/// # Errors
/// Why no driver is given the shader.
pub(super) fn of(text: &str) -> Result<String, String> {
    let mut module = naga::front::wgsl::parse_str(text).map_err(|e| e.message().to_owned())?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    validator
        .validate(&module)
        .map_err(|e| first_line(&format!("{:?}", e.as_inner())))?;
    let all = module.clone();
    for (_, function) in module.functions.iter_mut() {
        decide_all(&all, function);
    }
    for entry in &mut module.entry_points {
        decide_all(&all, &mut entry.function);
    }
    compact(&mut module, KeepUnused::No);
    Ok(without_places(&format!("{module:?}")))
}

/// The text of a module without the places that its parts have in the shader.
fn without_places(text: &str) -> String {
    let mut parts = text.split("Span {");
    let first = parts.next().unwrap_or_default().to_owned();
    let behind = |part: &str| part.split_once('}').map_or("", |(_, rest)| rest).to_owned();
    std::iter::once(first).chain(parts.map(behind)).collect()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("refused").to_owned()
}

fn decide_all(module: &Module, function: &mut Function) {
    let mut body = std::mem::take(&mut function.body);
    decide(module, function, &mut body);
    function.body = body;
}

/// Puts the branch that is taken in the place of every condition that is a constant.
fn decide(module: &Module, function: &Function, block: &mut Block) {
    for statement in block.iter_mut() {
        match statement {
            Statement::If {
                condition,
                accept,
                reject,
            } => {
                decide(module, function, accept);
                decide(module, function, reject);
                if let Some(holds) = known(module, function, *condition) {
                    let taken = if holds { accept } else { reject };
                    *statement = Statement::Block(std::mem::take(taken));
                }
            }
            Statement::Block(block) => decide(module, function, block),
            Statement::Loop {
                body, continuing, ..
            } => {
                decide(module, function, body);
                decide(module, function, continuing);
            }
            Statement::Switch { cases, .. } => {
                for case in cases {
                    decide(module, function, &mut case.body);
                }
            }
            _ => {}
        }
    }
}

/// The value of a condition, if it is a constant.
fn known(module: &Module, function: &Function, condition: Handle<Expression>) -> Option<bool> {
    let expression = match &function.expressions[condition] {
        Expression::Constant(constant) => {
            &module.global_expressions[module.constants[*constant].init]
        }
        expression => expression,
    };
    match expression {
        Expression::Literal(Literal::Bool(holds)) => Some(*holds),
        _ => None,
    }
}

#[test]
fn shaders_that_do_the_same_have_the_same_text() {
    let shader = |condition: &str, other: &str| {
        let text = format!(
            "const N = 4u;\nconst ON = true;\n@group(0) @binding(0) var<storage, read_write> y: array<u32>;\n\
             fn unused() -> u32 {{ let t = 3u; return {other}; }}\n@compute @workgroup_size(4)\nfn main(@builtin(local_invocation_index) t: u32) {{\n\
             if ({condition}) {{ y[t] = 1u; }} else {{ y[t] = {other}; }}\n}}\n"
        );
        of(&text).expect("it is valid")
    };
    assert_eq!(shader("N > 2u", "t"), shader("N >= 2u", "t + 1u"));
    assert_eq!(shader("ON", "t"), shader("N > 3u", "t"));
    assert_ne!(shader("N > 2u", "t"), shader("N > 4u", "t"));
    assert_ne!(shader("t > 2u", "t"), shader("t > 2u", "t + 1u"));
    assert!(of("fn main() { let x = vec2(0.0)[2]; }").is_err());
}
