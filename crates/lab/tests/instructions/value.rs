//! Values of any type as trees of scalar nodes.

use super::graph::{Graph, Id, Kind, Op};
use naga::{ArraySize, Handle, Module, Scalar, ScalarKind, Type, TypeInner};
use std::rc::Rc;

/// A value of a shader.
#[derive(Clone, Debug)]
pub enum Value {
    Scalar(Id),
    /// The parts of a vector, a struct or an array.
    Parts(Rc<[Value]>),
    Pointer(Rc<Pointer>),
}

/// Where a pointer leads.
#[derive(Clone, Debug)]
pub struct Pointer {
    pub root: Root,
    pub path: Vec<Step>,
    pub to: Pointee,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A variable of the thread.
    Variable(usize),
    /// A buffer or workgroup memory.
    Memory(Handle<naga::GlobalVariable>),
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
    Known(u32),
    Computed(Id),
}

#[derive(Clone, Copy, Debug)]
pub enum Pointee {
    Type(Handle<Type>),
    Scalar(Scalar),
}

impl Value {
    pub fn scalar(&self) -> Result<Id, String> {
        match self {
            Self::Scalar(id) => Ok(*id),
            other => Err(format!("a scalar was expected, found {other:?}")),
        }
    }

    pub fn parts(&self) -> Result<&[Value], String> {
        match self {
            Self::Parts(parts) => Ok(parts),
            other => Err(format!("parts were expected, found {other:?}")),
        }
    }

    pub fn pointer(&self) -> Result<&Rc<Pointer>, String> {
        match self {
            Self::Pointer(pointer) => Ok(pointer),
            other => Err(format!("a pointer was expected, found {other:?}")),
        }
    }

    pub fn of(parts: Vec<Value>) -> Self {
        Self::Parts(parts.into())
    }

    pub fn vector(components: Vec<Id>) -> Self {
        Self::of(components.into_iter().map(Self::Scalar).collect())
    }

    /// All its scalars in order.
    pub fn scalars(&self) -> Vec<Id> {
        let mut all = vec![];
        self.add_scalars(&mut all);
        all
    }

    fn add_scalars(&self, all: &mut Vec<Id>) {
        match self {
            Self::Scalar(id) => all.push(*id),
            Self::Parts(parts) => parts.iter().for_each(|part| part.add_scalars(all)),
            Self::Pointer(_) => {}
        }
    }

    /// This tree with other scalars.
    pub fn map(&self, change: &mut impl FnMut(Id) -> Id) -> Self {
        match self {
            Self::Scalar(id) => Self::Scalar(change(*id)),
            Self::Parts(parts) => Self::of(parts.iter().map(|part| part.map(change)).collect()),
            Self::Pointer(_) => self.clone(),
        }
    }

    /// Two trees of one type as one. Where there is one scalar it stands for all components.
    pub fn zip(&self, other: &Self, join: &mut impl FnMut(Id, Id) -> Id) -> Result<Self, String> {
        Ok(match (self, other) {
            (Self::Scalar(a), Self::Scalar(b)) => Self::Scalar(join(*a, *b)),
            (Self::Parts(a), Self::Parts(b)) if a.len() == b.len() => {
                let pairs = a.iter().zip(b.iter());
                Self::of(
                    pairs
                        .map(|(a, b)| a.zip(b, join))
                        .collect::<Result<_, _>>()?,
                )
            }
            (Self::Parts(a), Self::Scalar(_)) => Self::of(
                a.iter()
                    .map(|a| a.zip(other, join))
                    .collect::<Result<_, _>>()?,
            ),
            (Self::Scalar(_), Self::Parts(b)) => Self::of(
                b.iter()
                    .map(|b| self.zip(b, join))
                    .collect::<Result<_, _>>()?,
            ),
            (Self::Pointer(_), Self::Pointer(_)) => self.clone(),
            _ => return Err(format!("{self:?} and {other:?} do not belong together")),
        })
    }

    /// The part at the end of a path.
    pub fn at(&self, path: &[Step], graph: &mut Graph) -> Result<Self, String> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(self.clone());
        };
        let parts = self.parts()?;
        match first {
            Step::Known(i) => parts[*i as usize].at(rest, graph),
            Step::Computed(index) => {
                let ends: Vec<_> = parts
                    .iter()
                    .map(|part| part.at(rest, graph)?.scalar())
                    .collect::<Result<_, String>>()?;
                let kind = graph.get(ends[0]).kind;
                let operands = [*index].into_iter().chain(ends).collect();
                Ok(Self::Scalar(graph.node(Op::Pick, kind, operands)))
            }
        }
    }

    /// This value with the part at the end of a path replaced.
    pub fn with(&self, path: &[Step], new: Value) -> Result<Self, String> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(new);
        };
        let Step::Known(i) = first else {
            return Err("a component chosen while running is written".to_owned());
        };
        let mut parts = self.parts()?.to_vec();
        parts[*i as usize] = parts[*i as usize].with(rest, new)?;
        Ok(Self::of(parts))
    }
}

impl Pointee {
    /// The part that a step leads to.
    pub fn step(self, module: &Module, known: Option<u32>) -> Result<Self, String> {
        let Self::Type(ty) = self else {
            return Err("a component of a scalar".to_owned());
        };
        match (&module.types[ty].inner, known) {
            (TypeInner::Struct { members, .. }, Some(i)) => Ok(Self::Type(members[i as usize].ty)),
            (TypeInner::Array { base, .. }, _) => Ok(Self::Type(*base)),
            (TypeInner::Vector { scalar, .. }, _) => Ok(Self::Scalar(*scalar)),
            (other, _) => Err(format!("a step into {other:?}")),
        }
    }

    /// A value of this type, its scalars made by `leaf` of their kinds and their places.
    pub fn build(
        self,
        module: &Module,
        path: &mut Vec<u32>,
        leaf: &mut impl FnMut(Kind, &[u32]) -> Id,
    ) -> Result<Value, String> {
        let ty = match self {
            Self::Scalar(scalar) => return Ok(Value::Scalar(leaf(kind(scalar)?, path))),
            Self::Type(ty) => ty,
        };
        let count = match &module.types[ty].inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => {
                return Ok(Value::Scalar(leaf(kind(*scalar)?, path)));
            }
            TypeInner::Vector { size, .. } => *size as usize,
            TypeInner::Struct { members, .. } => members.len(),
            TypeInner::Array {
                size: ArraySize::Constant(n),
                ..
            } => n.get() as usize,
            other => return Err(format!("a value of {other:?}")),
        };
        let mut parts = Vec::with_capacity(count);
        for i in 0..count as u32 {
            path.push(i);
            parts.push(self.step(module, Some(i))?.build(module, path, leaf)?);
            path.pop();
        }
        Ok(Value::of(parts))
    }

    /// Zeros.
    pub fn zero(self, module: &Module, graph: &mut Graph) -> Result<Value, String> {
        self.build(module, &mut vec![], &mut |kind, _| graph.literal(kind, 0))
    }
}

/// The kind of a scalar type.
pub fn kind(scalar: Scalar) -> Result<Kind, String> {
    Ok(match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => Kind::Bool,
        (ScalarKind::Sint, 4) => Kind::Sint,
        (ScalarKind::Uint, 4) => Kind::Uint,
        (ScalarKind::Float, 4) => Kind::Float,
        (ScalarKind::Float, 2) => Kind::Half,
        _ => return Err(format!("numbers of {scalar:?}")),
    })
}
