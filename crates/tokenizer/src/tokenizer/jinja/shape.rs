//! Whether a template is short and flat enough to be parsed.
//!
//! `minijinja` parses, compiles and forgets expressions by recursion, and computes constants while it compiles.

use minijinja::machinery::{Span, Token, ast, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::budget::repeated;
use super::guard::{self, Names};

/// The most bytes of a template. Those of published models have up to 40,000.
const BYTES: usize = 256 << 10;
/// The most links of an expression or of a chain of conditions: operators, brackets, filters and branches, one within the other.
const LINKS: usize = 400;
/// The most bytes of a text or list that is the product of constants.
const PRODUCT: u64 = 4096;

/// Checks the length and the depth of `source`, before it is parsed. Returned are the names in it.
///
/// # Errors
/// Which limit it exceeds, or what cannot be read.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<Names, Error> {
    if source.len() > BYTES {
        return Err(refused(format!(
            "the template has {} bytes; at most {BYTES} were expected",
            source.len()
        )));
    }
    let mut names = Names::new();
    // By open bracket: the links since it was opened, or since the last comma.
    let mut open = vec![0_usize];
    // By open `if`: its branches.
    let mut branches: Vec<usize> = Vec::new();
    let mut first = false;
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        match &token {
            Token::Ident(name) => drop(names.insert((*name).to_owned())),
            Token::Str(text) if text.len() < 40 => drop(names.insert((*text).to_owned())),
            _ => {}
        }
        match &token {
            Token::VariableStart | Token::BlockStart => open = vec![0],
            Token::Ident("if") if first => branches.push(1),
            Token::Ident("elif") if first => branches.last_mut().into_iter().for_each(|n| *n += 1),
            Token::Ident("endif") if first => drop(branches.pop()),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                link(&mut open);
                open.push(0);
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose if open.len() > 1 => {
                open.pop();
            }
            Token::Comma => open.last_mut().into_iter().for_each(|links| *links = 0),
            Token::Ident("not" | "and" | "or" | "if" | "else" | "is" | "in") => link(&mut open),
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => link(&mut open),
            _ => {}
        }
        first = matches!(token, Token::BlockStart);
        let deep = [&open, &branches].map(|links| links.iter().sum::<usize>());
        if deep.into_iter().any(|links| links > LINKS) {
            let line = span.start_line;
            return Err(refused(format!(
                "line {line} has an expression or a chain of conditions of more than {LINKS} links"
            )));
        }
    }
    Ok(names)
}

fn link(open: &mut [usize]) {
    if let Some(links) = open.last_mut() {
        *links += 1;
    }
}

fn refused(detail: String) -> Error {
    Error::new(ErrorKind::SyntaxError, detail)
}

/// Checks that no constant of a parsed template is a product that takes all memory, since the compiler would compute it, and that glimt has
/// what the template uses in any case. What stands behind a condition may never be used.
///
/// # Errors
/// The constant, or what is not had.
pub(super) fn parsed(stmt: &ast::Stmt<'_>) -> Result<(), Error> {
    checked(stmt, true)
}

fn checked(stmt: &ast::Stmt<'_>, sure: bool) -> Result<(), Error> {
    use ast::Stmt;
    let all = |stmts: &[Stmt<'_>]| stmts.iter().try_for_each(|stmt| checked(stmt, sure));
    match stmt {
        Stmt::Template(s) => all(&s.children),
        Stmt::EmitExpr(s) => expr(&s.expr, sure),
        Stmt::ForLoop(s) => {
            expr(&s.iter, sure)?;
            s.filter_expr
                .iter()
                .try_for_each(|value| expr(value, sure))?;
            all(&s.body)?;
            all(&s.else_body)
        }
        Stmt::IfCond(s) => {
            expr(&s.expr, sure)?;
            let mut bodies = s.true_body.iter().chain(&s.false_body);
            bodies.try_for_each(|stmt| checked(stmt, false))
        }
        Stmt::WithBlock(s) => {
            (s.assignments.iter()).try_for_each(|(_, value)| expr(value, sure))?;
            all(&s.body)
        }
        Stmt::Set(s) => {
            expr(&s.target, sure)?;
            expr(&s.expr, sure)
        }
        Stmt::SetBlock(s) => {
            s.filter.iter().try_for_each(|value| expr(value, sure))?;
            all(&s.body)
        }
        Stmt::AutoEscape(s) => {
            expr(&s.enabled, sure)?;
            if s.enabled.as_const().is_none_or(|value| value.is_true()) {
                return Err(not_had(s.span(), "escapes texts for HTML (autoescape)"));
            }
            all(&s.body)
        }
        Stmt::FilterBlock(s) => {
            expr(&s.filter, sure)?;
            all(&s.body)
        }
        Stmt::Block(s) => all(&s.body),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => match sure {
            true => Err(refused(
                "the template reads another one (import, extends or include); a file has one alone"
                    .to_owned(),
            )),
            false => Ok(()),
        },
        Stmt::Macro(s) => {
            s.defaults.iter().try_for_each(|value| expr(value, sure))?;
            all(&s.body)
        }
        Stmt::CallBlock(s) => {
            expr(&s.call.expr, sure)?;
            arguments(&s.call.args, sure)?;
            s.macro_decl
                .defaults
                .iter()
                .try_for_each(|value| expr(value, sure))?;
            all(&s.macro_decl.body)
        }
        Stmt::Do(s) => {
            expr(&s.call.expr, sure)?;
            arguments(&s.call.args, sure)
        }
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Ok(()),
    }
}

fn arguments(arguments: &[ast::CallArg<'_>], sure: bool) -> Result<(), Error> {
    use ast::CallArg::{Kwarg, KwargSplat, Pos, PosSplat};
    arguments.iter().try_for_each(|argument| match argument {
        Pos(value) | Kwarg(_, value) | PosSplat(value) | KwargSplat(value) => expr(value, sure),
    })
}

fn expr(value: &ast::Expr<'_>, sure: bool) -> Result<(), Error> {
    use ast::Expr;
    match value {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(e) => {
            expr(&e.expr, sure)?;
            let bounds = [&e.start, &e.stop, &e.step];
            bounds
                .into_iter()
                .flatten()
                .try_for_each(|value| expr(value, sure))
        }
        Expr::UnaryOp(e) => expr(&e.expr, sure),
        Expr::BinOp(e) => {
            expr(&e.left, sure)?;
            expr(&e.right, sure)?;
            match e.op {
                ast::BinOpKind::Mul => product(&e.left, &e.right),
                _ => Ok(()),
            }
        }
        Expr::Compare(e) => {
            expr(&e.expr, sure)?;
            e.ops.iter().try_for_each(|op| expr(&op.expr, sure))
        }
        Expr::IfExpr(e) => {
            expr(&e.test_expr, sure)?;
            expr(&e.true_expr, false)?;
            e.false_expr.iter().try_for_each(|value| expr(value, false))
        }
        Expr::Filter(e) => {
            if sure && !guard::is_filter(e.name) {
                return Err(not_had(e.span(), &format!("uses the filter {}", e.name)));
            }
            e.expr.iter().try_for_each(|value| expr(value, sure))?;
            arguments(&e.args, sure)
        }
        Expr::Test(e) => {
            if sure && !guard::is_test(e.name) {
                return Err(not_had(e.span(), &format!("uses the test {}", e.name)));
            }
            expr(&e.expr, sure)?;
            arguments(&e.args, sure)
        }
        Expr::GetAttr(e) => expr(&e.expr, sure),
        Expr::GetItem(e) => {
            expr(&e.expr, sure)?;
            expr(&e.subscript_expr, sure)
        }
        Expr::Call(e) => {
            expr(&e.expr, sure)?;
            arguments(&e.args, sure)
        }
        Expr::List(e) => e.items.iter().try_for_each(|value| expr(value, sure)),
        Expr::Tuple(e) => e.items.iter().try_for_each(|value| expr(value, sure)),
        Expr::Map(e) => e
            .keys
            .iter()
            .chain(&e.values)
            .try_for_each(|value| expr(value, sure)),
    }
}

/// The error of what templates cannot have here.
fn not_had(span: Span, what: &str) -> Error {
    let line = span.start_line;
    refused(format!("line {line} {what}, which glimt does not have"))
}

/// Checks the product of two constants, whose own products were checked.
fn product(left: &ast::Expr<'_>, right: &ast::Expr<'_>) -> Result<(), Error> {
    let (Some(left), Some(right)) = (left.as_const(), right.as_const()) else {
        return Ok(());
    };
    match repeated(&left, &right)? {
        Some(size) if size > PRODUCT => Err(refused(format!(
            "a constant text or list is repeated to more than {PRODUCT} bytes"
        ))),
        _ => Ok(()),
    }
}
