//! The cost of a graph's operations on an Apple GPU.

use super::graph::{Graph, Id, Kind, Node, Op};
use super::{Cost, Region};
use naga::{BinaryOperator as B, MathFunction as M, UnaryOperator as U};

/// The graph of a shader with what of it is needed.
pub(crate) struct Costs<'a> {
    graph: &'a Graph,
    /// The nodes that need a node, once for each operand; none for a node that is not needed.
    users: Vec<Vec<Id>>,
    needed: Vec<bool>,
    /// Needed by a store or a branch.
    rooted: Vec<bool>,
    /// Products that an addition takes in.
    fused: Vec<bool>,
}

/// The name of a step in a breakdown, and its cost.
type Step = (&'static str, Cost);

const FREE: Step = ("nothing", Cost::new(0.0, 0.0));

const fn fast(what: &'static str, cycles: f64) -> Step {
    (what, Cost::new(0.0, cycles))
}

const fn slow(what: &'static str, cycles: f64) -> Step {
    (what, Cost::new(cycles, 0.0))
}

/// A function, whose operands may be constants.
fn math(function: M, constant: impl Fn(usize) -> Option<u32>) -> Result<Step, String> {
    Ok(match function {
        M::Fma => fast("floats", 1.0),
        M::Min | M::Max | M::Abs => fast("compare, select", 1.0),
        M::Mix => fast("floats", 2.0),
        M::ExtractBits if constant(2).is_some() => slow("bit extraction", 4.0),
        M::InsertBits if constant(2).is_some() => slow("bit extraction", 4.0),
        M::ExtractBits | M::InsertBits => slow("bit extraction", 8.0),
        M::CountOneBits | M::ReverseBits => slow("bit extraction", 4.0),
        M::Floor | M::Ceil | M::Round | M::Trunc | M::Fract | M::Exp2 | M::Log2 => {
            slow("special", 4.0)
        }
        M::Exp | M::Log => ("special", Cost::new(4.0, 1.0)),
        M::InverseSqrt => slow("special", 8.0),
        M::Sqrt => ("special", Cost::new(8.0, 1.0)),
        other => return Err(format!("the function {other:?}")),
    })
}

impl<'a> Costs<'a> {
    pub(crate) fn new(graph: &'a Graph, roots: &[Id]) -> Self {
        let n = graph.nodes.len();
        let mut costs = Self {
            graph,
            users: vec![vec![]; n],
            needed: vec![false; n],
            rooted: vec![false; n],
            fused: vec![false; n],
        };
        let mut open = roots.to_vec();
        for root in roots {
            costs.rooted[root.index()] = true;
        }
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut costs.needed[id.index()], true) {
                continue;
            }
            for operand in &graph.get(id).operands {
                costs.users[operand.index()].push(id);
                open.push(*operand);
            }
        }
        for node in costs.needed_nodes() {
            let adds = matches!(node.op, Op::Binary(B::Add | B::Subtract));
            if !adds || !node.kind.is_float() {
                continue;
            }
            let product = node.operands.iter().find_map(|id| costs.product(*id));
            if let Some(product) = product {
                costs.fused[product.index()] = true;
            }
        }
        costs
    }

    fn needed_nodes(&self) -> impl Iterator<Item = &'a Node> + use<'a> {
        let nodes = self.graph.nodes.iter().zip(self.needed.clone());
        nodes.filter_map(|(node, needed)| needed.then_some(node))
    }

    /// The product behind an operand that only this operand needs. The sign of an operand costs nothing.
    fn product(&self, id: Id) -> Option<Id> {
        if self.users[id.index()].len() != 1 || self.rooted[id.index()] {
            return None;
        }
        let node = self.graph.get(id);
        match node.op {
            Op::Binary(B::Multiply) if !self.fused[id.index()] => Some(id),
            Op::Unary(U::Negate) => self.product(node.operands[0]),
            _ => None,
        }
    }

    /// Whether a node takes floats as operands, of 16 or 32 bits and with their signs changed as it likes.
    fn is_arithmetic(&self, id: Id) -> bool {
        let node = self.graph.get(id);
        let takes_floats = node
            .operands
            .first()
            .is_some_and(|id| self.graph.get(*id).kind.is_float());
        let arithmetic = match node.op {
            Op::Binary(_) => true,
            Op::Math(m) => matches!(m, M::Fma | M::Min | M::Max | M::Abs),
            Op::Unary(U::Negate) => self.all_arithmetic(id),
            _ => false,
        };
        takes_floats && arithmetic
    }

    fn all_arithmetic(&self, id: Id) -> bool {
        let mut users = self.users[id.index()].iter();
        !self.rooted[id.index()] && users.all(|user| self.is_arithmetic(*user))
    }

    fn cost(&self, id: Id) -> Result<Step, String> {
        let node = self.graph.get(id);
        let of = |i: usize| self.graph.get(node.operands[i]);
        let constant = |i: usize| self.graph.constant(node.operands[i]);
        let step = match node.op {
            // Loads belong to the memory; the rest names registers or halves of them.
            Op::Const(_)
            | Op::Opaque(_)
            | Op::LoopIn(_)
            | Op::LoopOut(_)
            | Op::Join
            | Op::Load { .. }
            | Op::Bits
            | Op::HalfOf(_)
            | Op::Pair => FREE,
            Op::Binary(op) if of(0).kind.is_float() => match op {
                B::Multiply if self.fused[id.index()] => FREE,
                B::Add | B::Subtract | B::Multiply => fast("floats", 1.0),
                B::Divide => ("division", Cost::new(6.0, 1.0)),
                B::Modulo => return Err("a remainder of floats".to_owned()),
                _ => fast("compare, select", 1.0),
            },
            Op::Binary(op) => match op {
                B::Add | B::Subtract => fast("integer add", 1.0),
                B::And | B::InclusiveOr | B::ExclusiveOr | B::LogicalAnd | B::LogicalOr => {
                    fast("bits", 1.0)
                }
                B::Multiply => slow("integer multiply", 4.0),
                B::ShiftLeft => slow("shift", 4.0),
                B::ShiftRight if constant(1).is_some() => slow("shift", 4.0),
                B::ShiftRight => slow("shift", 8.0),
                B::Divide | B::Modulo => {
                    let divisor = constant(1).ok_or("a division by what is no constant")?;
                    match (divisor.is_power_of_two(), op) {
                        (true, B::Divide) => slow("shift", 4.0),
                        (true, _) => fast("bits", 1.0),
                        // The upper half of a product, shifted; of a remainder also the product to take off.
                        (false, B::Divide) => slow("integer multiply", 12.0),
                        (false, _) => slow("integer multiply", 16.0),
                    }
                }
                _ => fast("compare, select", 1.0),
            },
            Op::Unary(U::Negate) if node.kind.is_float() && self.all_arithmetic(id) => FREE,
            Op::Unary(_) => fast("bits", 1.0),
            Op::Math(M::Abs) if node.kind.is_float() && self.all_arithmetic(id) => FREE,
            Op::Math(function) => math(function, constant)?,
            Op::Select => fast("compare, select", 1.0),
            Op::Pick => fast("compare, select", 2.0 * (node.operands.len() as f64 - 2.0)),
            Op::Convert => match (of(0).kind, node.kind) {
                (Kind::Half, Kind::Float) if self.all_arithmetic(id) => FREE,
                // Arithmetic leaves its result in either width.
                (Kind::Float, Kind::Half)
                    if self.is_arithmetic(node.operands[0])
                        && self.users[node.operands[0].index()].len() == 1 =>
                {
                    FREE
                }
                (Kind::Half | Kind::Float, Kind::Half | Kind::Float) => fast("floats", 1.0),
                (Kind::Bool, _) | (_, Kind::Bool) => fast("compare, select", 1.0),
                _ => slow("conversion", 4.0),
            },
            Op::Byte { .. } => slow("bit extraction", 4.0),
            Op::Shuffle(_) => slow("lanes", 2.0),
            Op::Collective(_) => slow("lanes", 14.5),
        };
        Ok(step)
    }

    /// The cost of a region.
    pub(crate) fn region(&self, region: usize, function: &str, places: &[String]) -> Region {
        let mut found = Region {
            function: function.to_owned(),
            depth: self.graph.depths[region],
            ..Region::default()
        };
        for (i, node) in self.graph.nodes.iter().enumerate() {
            if node.region != region || !self.needed[i] {
                continue;
            }
            if let Op::Load { place, .. } = node.op {
                let name = places[place as usize].clone();
                *found.loads.entry(name).or_default() += 1;
            }
            match self.cost(self.graph.id(i)) {
                Ok((_, cost)) if cost == Cost::default() => {}
                Ok((what, cost)) => *found.steps.entry(what).or_default() += cost,
                Err(what) => found.unknown = Some(what),
            }
        }
        found
    }
}
