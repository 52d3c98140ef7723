//! The cost of the inner loops of a decoded token's kernels on an Apple GPU, counted in what naga makes of them.
//!
//! A shader is expanded and parsed as for a device, and its entry point becomes a graph of scalar operations: calls in place,
//! vectors by components, branches on constants taken, equal values once, what nobody needs left out, what no pass of a loop
//! changes outside of it. The Metal compiler does the same. Of a branch that is decided while running both sides count.
//!
//! An operation costs cycles of a core for 128 threads on one of two pipes that run beside each other, as measured on M1 and M2
//! (philipturner/metal-benchmarks, "Instruction Throughputs" and "ALU Layout"):
//!
//! | pipe | operation | cycles |
//! |---|---|---|
//! | fast | FMA, add, subtract, multiply of floats (f16 as f32), integer add, AND, OR, XOR, NOT, compare, select, min, max | 1 |
//! | slow | integer to float and back, left shift, right shift by a constant, bit extraction, integer multiply, exp2, log2, rounding | 4 |
//! | slow | right shift by what is not known | 8 |
//! | slow | reciprocal; inverse root | 6; 8 |
//! | slow | shuffle; sum of a subgroup | 2; 14.5 |
//!
//! A product that only one addition reads is counted with it, as one FMA. Arithmetic reads halves, writes halves and negates operands
//! at no cost. A bitcast costs nothing. Loads are not counted, since the memory bounds them; the integer operations of their
//! addresses are counted as they are written.
//!
//! Assumed, not measured: a byte that `unpack4xI8` gives costs a bit extraction, and its way to a float a conversion; compare and
//! select are two steps, although there is one instruction for both; the two pipes never wait for each other. Whatever has no
//! cost here is an error where it is met, not nothing.

mod cost;
mod expression;
mod graph;
mod value;
mod walk;

mod caps;
mod kernels;
mod others;
mod tests;

use std::collections::BTreeMap;

/// Cycles of a core for 128 threads, on each of the two pipes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Conversions, shifts, bit extraction, integer multiplication and what is rarer.
    pub slow: f64,
    /// Arithmetic of floats, integer addition, bits, compare and select.
    pub fast: f64,
}

impl Cost {
    const fn new(slow: f64, fast: f64) -> Self {
        Self { slow, fast }
    }

    /// Cycles where the pipes run beside each other. A core begins one instruction a cycle for 128 threads, of either pipe, and those
    /// of the slow one take 4.
    pub fn cycles(self) -> f64 {
        self.slow.max(self.fast + self.slow / 4.0)
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.slow += other.slow;
        self.fast += other.fast;
    }
}

impl std::ops::Div<f64> for Cost {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self::new(self.slow / by, self.fast / by)
    }
}

/// Costs by what is done.
pub type Steps = BTreeMap<&'static str, Cost>;

/// The sum of all steps.
pub fn sum(steps: &Steps) -> Cost {
    let mut sum = Cost::default();
    steps.values().for_each(|cost| sum += *cost);
    sum
}

/// One pass of a loop, without the loops in it; or what stands outside of all loops.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// The function that the loop stands in.
    pub function: String,
    /// Loops around it, with itself.
    pub depth: u32,
    /// The cost of its operations, except those of unknown cost.
    pub steps: Steps,
    /// Scalars loaded, by variable.
    pub loads: BTreeMap<String, u32>,
    /// An operation whose cost is not known.
    pub unknown: Option<String>,
}

impl Region {
    /// The costs of all its operations.
    ///
    /// # Errors
    /// The name of an operation whose cost is not known.
    pub fn known(&self) -> Result<&Steps, String> {
        match &self.unknown {
            Some(what) => Err(format!("no cost is known for {what}")),
            None => Ok(&self.steps),
        }
    }

    /// The sum of what it costs.
    ///
    /// # Errors
    /// The errors of [`known`](Self::known).
    pub fn cost(&self) -> Result<Cost, String> {
        self.known().map(sum)
    }
}

/// The cost of a shader.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Outside of all loops.
    pub outside: Region,
    /// Every loop in the order of the text, with calls in place.
    pub loops: Vec<Region>,
}

/// Counts the operations of a shader with one entry point.
///
/// # Errors
/// The part of the module that this does not know.
pub fn count(module: &naga::Module) -> Result<Counted, String> {
    let walk = walk::Walk::through(module)?;
    let costs = cost::Costs::new(&walk.graph, &walk.roots);
    let loops = walk.loops.iter();
    Ok(Counted {
        outside: costs.region(0, "", &walk.places),
        loops: loops
            .map(|met| costs.region(met.region, &met.function, &walk.places))
            .collect(),
    })
}
