//! Expressions, component by component.

use super::graph::{Id, Kind, Op};
use super::value::{Pointee, Pointer, Step, Value, kind};
use super::walk::{Frame, Walk};
use naga::{BinaryOperator as B, Expression as E, Literal, MathFunction as M, ScalarKind};
use naga::{Handle, RelationalFunction, TypeInner};
use std::rc::Rc;

impl<'m> Walk<'m> {
    pub(crate) fn expression(
        &mut self,
        frame: &mut Frame<'m>,
        expression: &'m E,
    ) -> Result<Value, String> {
        match expression {
            E::Literal(literal) => self.literal(*literal),
            E::Constant(handle) => self.global(self.module.constants[*handle].init),
            E::ZeroValue(ty) => Pointee::Type(*ty).zero(self.module, &mut self.graph),
            E::FunctionArgument(i) => Ok(Self::argument(frame, *i)),
            E::GlobalVariable(_) | E::LocalVariable(_) => self.whole(frame, expression),
            E::Load { pointer } => {
                let pointer = self.value(frame, *pointer)?;
                self.load(pointer.pointer()?)
            }
            E::ArrayLength(_) => {
                let op = Op::Opaque(self.graph.unique());
                Ok(Value::Scalar(self.graph.node_in(0, op, Kind::Uint, vec![])))
            }
            E::Compose { .. }
            | E::AccessIndex { .. }
            | E::Access { .. }
            | E::Splat { .. }
            | E::Swizzle { .. } => self.components(frame, expression),
            _ => self.operation(frame, expression),
        }
    }

    /// An expression that builds a vector from components or selects some of its components.
    fn components(&mut self, frame: &mut Frame<'m>, expression: &E) -> Result<Value, String> {
        match expression {
            E::Compose { ty, components } => {
                let parts = components.iter().map(|c| self.value(frame, *c));
                let parts: Vec<_> = parts.collect::<Result<_, _>>()?;
                Ok(match self.module.types[*ty].inner {
                    // Vectors are also composed of vectors.
                    TypeInner::Vector { .. } => {
                        Value::vector(parts.iter().flat_map(Value::scalars).collect())
                    }
                    _ => Value::of(parts),
                })
            }
            E::AccessIndex { base, index } => {
                let base = self.value(frame, *base)?;
                self.step(&base, Step::Known(*index))
            }
            E::Access { base, index } => {
                let base = self.value(frame, *base)?;
                let index = self.value(frame, *index)?.scalar()?;
                let step = match self.graph.constant(index) {
                    Some(i) => Step::Known(i),
                    None => Step::Computed(index),
                };
                self.step(&base, step)
            }
            E::Splat { size, value } => {
                let id = self.value(frame, *value)?.scalar()?;
                Ok(Value::vector(vec![id; *size as usize]))
            }
            E::Swizzle {
                size,
                vector,
                pattern,
            } => {
                let vector = self.value(frame, *vector)?.scalars();
                let chosen = pattern[..*size as usize].iter();
                Ok(Value::vector(chosen.map(|c| vector[*c as usize]).collect()))
            }
            other => Err(format!("the expression {other:?}")),
        }
    }

    /// An expression that computes with components.
    fn operation(&mut self, frame: &mut Frame<'m>, expression: &E) -> Result<Value, String> {
        match expression {
            E::Unary { op, expr } => {
                let value = self.value(frame, *expr)?;
                let graph = &mut self.graph;
                Ok(value.map(&mut |id| {
                    let kind = graph.get(id).kind;
                    graph.node(Op::Unary(*op), kind, vec![id])
                }))
            }
            E::Binary { op, left, right } => {
                let left = self.value(frame, *left)?;
                let right = self.value(frame, *right)?;
                left.zip(&right, &mut |a, b| self.graph.binary(*op, a, b))
            }
            E::Select {
                condition,
                accept,
                reject,
            } => {
                let condition = self.value(frame, *condition)?;
                let accept = self.value(frame, *accept)?;
                let reject = self.value(frame, *reject)?;
                self.select(&condition, &accept, &reject)
            }
            E::Relational { fun, argument } => {
                let all = self.value(frame, *argument)?.scalars();
                let op = match fun {
                    RelationalFunction::All => B::LogicalAnd,
                    RelationalFunction::Any => B::LogicalOr,
                    other => return Err(format!("the function {other:?}")),
                };
                let joined = all.into_iter().reduce(|a, b| self.graph.binary(op, a, b));
                Ok(Value::Scalar(joined.ok_or("a vector without components")?))
            }
            E::Math {
                fun,
                arg,
                arg1,
                arg2,
                arg3,
            } => {
                let given = [Some(*arg), *arg1, *arg2, *arg3].into_iter().flatten();
                let given = given.map(|h: Handle<E>| self.value(frame, h));
                let given: Vec<_> = given.collect::<Result<_, _>>()?;
                self.math(*fun, &given)
            }
            E::As {
                expr,
                kind: to,
                convert,
            } => {
                let value = self.value(frame, *expr)?;
                let width = match (convert, to) {
                    (Some(width), _) => *width,
                    (None, ScalarKind::Bool) => 1,
                    (None, _) => 4,
                };
                let to = kind(naga::Scalar { kind: *to, width })?;
                Ok(match convert {
                    Some(_) => value.map(&mut |id| self.converted(id, to)),
                    None => value.map(&mut |id| self.graph.node(Op::Bits, to, vec![id])),
                })
            }
            other => Err(format!("the expression {other:?}")),
        }
    }

    fn literal(&mut self, literal: Literal) -> Result<Value, String> {
        let (kind, bits) = match literal {
            Literal::F32(v) => (Kind::Float, v.to_bits()),
            Literal::F16(v) => (Kind::Half, u32::from(v.to_bits())),
            Literal::U32(v) => (Kind::Uint, v),
            Literal::I32(v) => (Kind::Sint, v as u32),
            Literal::Bool(v) => (Kind::Bool, u32::from(v)),
            // Constants of the module that nothing has given a type yet.
            Literal::AbstractInt(v) => (Kind::Sint, v as u32),
            Literal::AbstractFloat(v) => (Kind::Float, (v as f32).to_bits()),
            other => return Err(format!("the literal {other:?}")),
        };
        Ok(Value::Scalar(self.graph.literal(kind, bits)))
    }

    fn step(&mut self, base: &Value, step: Step) -> Result<Value, String> {
        let Value::Pointer(pointer) = base else {
            return base.at(&[step], &mut self.graph);
        };
        let known = match step {
            Step::Known(i) => Some(i),
            Step::Computed(_) => None,
        };
        let mut path = pointer.path.clone();
        path.push(step);
        Ok(Value::Pointer(Rc::new(Pointer {
            root: pointer.root,
            path,
            to: pointer.to.step(self.module, known)?,
        })))
    }

    fn select(
        &mut self,
        condition: &Value,
        accept: &Value,
        reject: &Value,
    ) -> Result<Value, String> {
        let conditions = condition.scalars();
        let mut at = 0;
        let graph = &mut self.graph;
        accept.zip(reject, &mut |a, b| {
            let condition = conditions[at.min(conditions.len() - 1)];
            at += 1;
            let kind = graph.get(a).kind;
            graph.node(Op::Select, kind, vec![a, b, condition])
        })
    }

    fn converted(&mut self, id: Id, to: Kind) -> Id {
        let from = self.graph.get(id).kind;
        let integers = [Kind::Sint, Kind::Uint];
        let op = match integers.contains(&from) && integers.contains(&to) {
            true => Op::Bits,
            false => Op::Convert,
        };
        self.graph.node(op, to, vec![id])
    }

    fn math(&mut self, fun: M, given: &[Value]) -> Result<Value, String> {
        match (fun, given) {
            (M::Min | M::Max, [a, b]) => a.zip(b, &mut |a, b| {
                let kind = self.graph.get(a).kind;
                self.graph.node(Op::Math(fun), kind, vec![a, b])
            }),
            (M::Clamp, [v, low, high]) => {
                let v = self.math(M::Max, &[v.clone(), low.clone()])?;
                self.math(M::Min, &[v, high.clone()])
            }
            (M::Dot, [a, b]) => {
                let pairs = a.scalars().into_iter().zip(b.scalars());
                let products = pairs.map(|(a, b)| self.graph.binary(B::Multiply, a, b));
                let products: Vec<_> = products.collect();
                let sum = products
                    .into_iter()
                    .reduce(|a, b| self.graph.binary(B::Add, a, b));
                Ok(Value::Scalar(sum.ok_or("a vector without components")?))
            }
            (M::Unpack2x16float, [word]) => {
                let word = word.scalar()?;
                let halves = [0, 1].map(|at| {
                    let half = self.graph.node(Op::HalfOf(at), Kind::Half, vec![word]);
                    self.graph.node(Op::Convert, Kind::Float, vec![half])
                });
                Ok(Value::vector(halves.to_vec()))
            }
            (M::Pack2x16float, [pair]) => {
                let halves = pair.scalars().into_iter();
                let halves = halves.map(|v| self.graph.node(Op::Convert, Kind::Half, vec![v]));
                let halves = halves.collect();
                Ok(Value::Scalar(self.graph.node(Op::Pair, Kind::Uint, halves)))
            }
            (M::Unpack4xI8 | M::Unpack4xU8, [word]) => {
                let word = word.scalar()?;
                let signed = fun == M::Unpack4xI8;
                let kind = if signed { Kind::Sint } else { Kind::Uint };
                let bytes = (0..4).map(|at| {
                    let op = Op::Byte { signed, at };
                    self.graph.node(op, kind, vec![word])
                });
                Ok(Value::vector(bytes.collect()))
            }
            (M::Fma | M::ExtractBits | M::InsertBits | M::Mix, [first, rest @ ..]) => {
                let kind = self.graph.get(first.scalars()[0]).kind;
                let rest: Vec<_> = rest.iter().map(Value::scalars).collect();
                let mut i = 0;
                Ok(first.map(&mut |id| {
                    // Offsets and counts of bits are scalars.
                    let others = rest.iter().map(|all| all[i.min(all.len() - 1)]);
                    let operands = [id].into_iter().chain(others).collect();
                    i += 1;
                    self.graph.node(Op::Math(fun), kind, operands)
                }))
            }
            (_, [value]) => Ok(value.map(&mut |id| {
                let kind = self.graph.get(id).kind;
                self.graph.node(Op::Math(fun), kind, vec![id])
            })),
            // Whatever else: a value of the first operand's type, refused where its cost is asked for.
            (_, [first, ..]) => {
                let all = given.iter().flat_map(Value::scalars).collect::<Vec<_>>();
                Ok(first.map(&mut |id| {
                    let kind = self.graph.get(id).kind;
                    self.graph.node(Op::Math(fun), kind, all.clone())
                }))
            }
            (_, []) => Err(format!("{fun:?} without arguments")),
        }
    }
}
