//! The scalar operations of a shader as a graph in which every value is there once.
//!
//! A node is made out of its operands and looked up first, so equal values are one node wherever they were written: a compiler
//! that has inlined everything merges them, too. Operations on constants are done at once.

use half::f16;
use naga::{BinaryOperator as B, MathFunction, UnaryOperator as U};
use std::collections::HashMap;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u32);

impl Id {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The type of a scalar; integers have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Bool,
    Sint,
    Uint,
    Float,
    Half,
}

impl Kind {
    pub fn is_float(self) -> bool {
        matches!(self, Self::Float | Self::Half)
    }
}

/// The operation of a node on its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The bits of a constant.
    Const(u32),
    /// A value from outside: an argument of the entry point, the result of an atomic operation. The number tells them apart.
    Opaque(u32),
    /// A variable at the begin of each pass of a loop: (before the loop, after a pass).
    LoopIn(u32),
    /// A variable after a loop: (at its begin, where it was left...).
    LoopOut(u32),
    /// A variable after a branch: (condition, accepted, rejected), or values of which one is taken.
    Join,
    /// A scalar read from memory: (indices). A place and, of memory that is written, its state.
    Load {
        place: u32,
        version: u32,
    },
    Unary(U),
    Binary(B),
    Math(MathFunction),
    /// (accepted, rejected, condition).
    Select,
    /// One of several values: (index, values...).
    Pick,
    /// To another kind, by value.
    Convert,
    /// To another kind, by its bits.
    Bits,
    /// One of the two halves of a word.
    HalfOf(u8),
    /// A word of two halves.
    Pair,
    /// A byte of a word as an integer.
    Byte {
        signed: bool,
        at: u8,
    },
    /// The value of another lane; the number keeps two apart, since lanes take part in each.
    Shuffle(u32),
    /// A value that all lanes of a subgroup make together.
    Collective(u32),
}

/// A node with what belongs to it.
#[derive(Clone, Debug)]
pub struct Node {
    pub op: Op,
    pub kind: Kind,
    pub operands: Vec<Id>,
    /// The innermost loop without which the value cannot be had; 0 is outside of all.
    pub region: usize,
}

/// Nodes, and the loops they belong to.
#[derive(Default)]
pub struct Graph {
    pub nodes: Vec<Node>,
    known: HashMap<(Op, Kind, Vec<Id>), Id>,
    /// How many loops a region lies in.
    pub depths: Vec<u32>,
    numbers: u32,
}

impl Graph {
    pub fn new() -> Self {
        Self {
            depths: vec![0],
            ..Self::default()
        }
    }

    pub fn get(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }

    /// The node at an index.
    pub fn id(&self, index: usize) -> Id {
        Id(index as u32)
    }

    /// A number that no other node has.
    pub fn unique(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// The bits, where the value is a constant.
    pub fn constant(&self, id: Id) -> Option<u32> {
        match self.get(id).op {
            Op::Const(bits) => Some(bits),
            _ => None,
        }
    }

    pub fn literal(&mut self, kind: Kind, bits: u32) -> Id {
        self.node_in(0, Op::Const(bits), kind, vec![])
    }

    /// A node that needs nothing but its operands.
    pub fn node(&mut self, op: Op, kind: Kind, mut operands: Vec<Id>) -> Id {
        let commutes = match op {
            Op::Binary(b) => matches!(
                b,
                B::Add
                    | B::Multiply
                    | B::And
                    | B::InclusiveOr
                    | B::ExclusiveOr
                    | B::Equal
                    | B::NotEqual
                    | B::LogicalAnd
                    | B::LogicalOr
            ),
            Op::Math(m) => matches!(m, MathFunction::Min | MathFunction::Max),
            _ => false,
        };
        if commutes {
            operands.sort();
        }
        match self.folded(op, kind, &operands) {
            Some(id) => id,
            None => self.node_in(0, op, kind, operands),
        }
    }

    /// A node that belongs to `region` at least.
    pub fn node_in(&mut self, region: usize, op: Op, kind: Kind, operands: Vec<Id>) -> Id {
        let key = (op, kind, operands);
        if let Some(&id) = self.known.get(&key) {
            return id;
        }
        let regions = key.2.iter().map(|id| self.get(*id).region).chain([region]);
        let region = regions.max_by_key(|r| self.depths[*r]).unwrap_or(0);
        let id = Id(u32::try_from(self.nodes.len()).expect("fewer nodes"));
        self.nodes.push(Node {
            op,
            kind,
            operands: key.2.clone(),
            region,
        });
        self.known.insert(key, id);
        id
    }

    /// Two operands.
    pub fn binary(&mut self, op: B, a: Id, b: Id) -> Id {
        let kind = match op {
            B::Equal | B::NotEqual | B::Less | B::LessEqual | B::Greater | B::GreaterEqual => {
                Kind::Bool
            }
            _ => self.get(a).kind,
        };
        self.node(Op::Binary(op), kind, vec![a, b])
    }

    /// The node that stands for one without an operation of its own: a constant or one of its operands.
    fn folded(&mut self, op: Op, kind: Kind, operands: &[Id]) -> Option<Id> {
        let bits: Option<Vec<u32>> = operands.iter().map(|id| self.constant(*id)).collect();
        if let Some(bits) = bits {
            let from = operands.first().map_or(kind, |id| self.get(*id).kind);
            if let Some(value) = constant_of(op, from, kind, &bits) {
                return Some(self.literal(kind, value));
            }
        }
        match op {
            Op::Binary(b) => self.neutral(b, kind, operands[0], operands[1]),
            Op::Select => match self.constant(operands[2]) {
                Some(0) => Some(operands[1]),
                Some(_) => Some(operands[0]),
                None if operands[0] == operands[1] => Some(operands[0]),
                None => None,
            },
            Op::Pick => {
                let at = self.constant(operands[0])? as usize;
                operands.get(1 + at).copied()
            }
            Op::Convert | Op::Bits => {
                let inner = self.get(operands[0]);
                if inner.kind == kind {
                    return Some(operands[0]);
                }
                // A half that was widened, or a value that was only looked at in another way, is itself again.
                let again = match op {
                    Op::Convert => inner.kind == Kind::Float && kind == Kind::Half,
                    _ => true,
                };
                let first = *inner.operands.first()?;
                (again && inner.op == op && self.get(first).kind == kind).then_some(first)
            }
            Op::HalfOf(at) => {
                let inner = self.get(operands[0]);
                (inner.op == Op::Pair).then(|| inner.operands[usize::from(at)])
            }
            _ => None,
        }
    }

    /// An operand, where the other one changes nothing.
    fn neutral(&mut self, op: B, kind: Kind, a: Id, b: Id) -> Option<Id> {
        let one = match kind {
            Kind::Float => 1f32.to_bits(),
            Kind::Half => u32::from(f16::ONE.to_bits()),
            _ => 1,
        };
        let [first, second] = [a, b].map(|id| self.constant(id));
        match op {
            B::Add | B::InclusiveOr | B::ExclusiveOr | B::LogicalOr if second == Some(0) => Some(a),
            B::Add | B::InclusiveOr | B::ExclusiveOr | B::LogicalOr if first == Some(0) => Some(b),
            B::Subtract | B::ShiftLeft | B::ShiftRight if second == Some(0) => Some(a),
            B::Multiply if first == Some(one) => Some(b),
            B::Multiply | B::Divide if second == Some(one) => Some(a),
            B::And if first == Some(u32::MAX) => Some(b),
            B::And if second == Some(u32::MAX) => Some(a),
            B::LogicalAnd if first == Some(1) => Some(b),
            B::LogicalAnd if second == Some(1) => Some(a),
            B::And | B::Multiply | B::LogicalAnd if first == Some(0) || second == Some(0) => {
                Some(self.literal(kind, 0))
            }
            _ => None,
        }
    }
}

/// The bits of an operation on constants of the kind `from`; none where it is left to the device.
fn constant_of(op: Op, from: Kind, to: Kind, bits: &[u32]) -> Option<u32> {
    let truth = u32::from;
    let float = |bits: u32| match from {
        Kind::Half => f16::from_bits(bits as u16).to_f32(),
        _ => f32::from_bits(bits),
    };
    let back = |value: f32| match to {
        Kind::Half => u32::from(f16::from_f32(value).to_bits()),
        _ => value.to_bits(),
    };
    match (op, bits) {
        (Op::Bits, [a]) => Some(*a),
        (Op::Convert, [a]) => Some(match (from, to) {
            (Kind::Bool | Kind::Uint, Kind::Float | Kind::Half) => back(*a as f32),
            (Kind::Sint, Kind::Float | Kind::Half) => back(*a as i32 as f32),
            (Kind::Float | Kind::Half, Kind::Sint) => float(*a) as i32 as u32,
            (Kind::Float | Kind::Half, Kind::Uint) => float(*a) as u32,
            (Kind::Float | Kind::Half, Kind::Float | Kind::Half) => back(float(*a)),
            (_, Kind::Bool) => truth(*a != 0),
            _ => *a,
        }),
        (Op::Unary(U::Negate), [a]) if from.is_float() => Some(back(-float(*a))),
        (Op::Unary(U::Negate), [a]) => Some(a.wrapping_neg()),
        (Op::Unary(U::BitwiseNot), [a]) => Some(!a),
        (Op::Unary(U::LogicalNot), [a]) => Some(truth(*a == 0)),
        (Op::Binary(b), [x, y]) if from.is_float() => {
            let (x, y) = (float(*x), float(*y));
            Some(match b {
                B::Add => back(x + y),
                B::Subtract => back(x - y),
                B::Multiply => back(x * y),
                B::Divide => back(x / y),
                B::Equal => truth(x == y),
                B::NotEqual => truth(x != y),
                B::Less => truth(x < y),
                B::LessEqual => truth(x <= y),
                B::Greater => truth(x > y),
                B::GreaterEqual => truth(x >= y),
                _ => return None,
            })
        }
        (Op::Binary(b), [x, y]) => {
            let signed = from == Kind::Sint;
            let order = match signed {
                true => (*x as i32).cmp(&(*y as i32)),
                false => x.cmp(y),
            };
            Some(match b {
                B::Add => x.wrapping_add(*y),
                B::Subtract => x.wrapping_sub(*y),
                B::Multiply => x.wrapping_mul(*y),
                B::Divide if !signed => x.checked_div(*y)?,
                B::Modulo if !signed => x.checked_rem(*y)?,
                B::And | B::LogicalAnd => x & y,
                B::InclusiveOr | B::LogicalOr => x | y,
                B::ExclusiveOr => x ^ y,
                B::ShiftLeft => x.checked_shl(*y)?,
                B::ShiftRight if !signed => x.checked_shr(*y)?,
                B::ShiftRight => (*x as i32).checked_shr(*y)? as u32,
                B::Equal => truth(x == y),
                B::NotEqual => truth(x != y),
                B::Less => truth(order.is_lt()),
                B::LessEqual => truth(order.is_le()),
                B::Greater => truth(order.is_gt()),
                B::GreaterEqual => truth(order.is_ge()),
                _ => return None,
            })
        }
        (Op::Math(m @ (MathFunction::Min | MathFunction::Max)), [x, y])
            if matches!(from, Kind::Uint) =>
        {
            Some(if m == MathFunction::Min {
                *x.min(y)
            } else {
                *x.max(y)
            })
        }
        _ => None,
    }
}
