//! The statements of a shader, with calls in place and branches on constants taken, as a graph.

use super::graph::{Graph, Id, Kind, Op};
use super::value::{Pointee, Pointer, Root, Step, Value};
use naga::{
    AddressSpace, Arena, Block, Expression, Function, Handle, Module, Statement, StorageAccess,
};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// A loop that was met.
pub struct Met {
    /// The function it stands in.
    pub function: String,
    /// The loop's region of the graph.
    pub region: usize,
}

/// Whether a block is left at its end.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Left,
}

/// A call under way.
pub(crate) struct Frame<'m> {
    pub expressions: &'m Arena<Expression>,
    function: Option<&'m Function>,
    arguments: Vec<Value>,
    values: HashMap<Handle<Expression>, Value>,
    locals: HashMap<Handle<naga::LocalVariable>, usize>,
    returns: Vec<Value>,
}

/// The walk through a shader.
pub struct Walk<'m> {
    pub module: &'m Module,
    pub graph: Graph,
    /// The nodes that must be computed: stored values, and the conditions of branches.
    pub roots: Vec<Id>,
    pub loops: Vec<Met>,
    /// The names of the variables that loads are of, by place.
    pub places: Vec<String>,
    known_places: HashMap<(usize, Vec<Option<u32>>), u32>,
    variables: Vec<Value>,
    privates: HashMap<Handle<naga::GlobalVariable>, usize>,
    /// The state of memory that is written.
    version: u32,
    region: usize,
    /// The variables where the loops around are left.
    breaks: Vec<Vec<Vec<Value>>>,
}

impl<'m> Walk<'m> {
    /// Walks through the entry point of a module.
    pub fn through(module: &'m Module) -> Result<Self, String> {
        let mut walk = Self {
            module,
            graph: Graph::new(),
            roots: vec![],
            loops: vec![],
            places: vec![],
            known_places: HashMap::new(),
            variables: vec![],
            privates: HashMap::new(),
            version: 0,
            region: 0,
            breaks: vec![],
        };
        for (handle, var) in module.global_variables.iter() {
            if var.space == AddressSpace::Private {
                let zero = Pointee::Type(var.ty).zero(module, &mut walk.graph)?;
                walk.privates.insert(handle, walk.variables.len());
                walk.variables.push(zero);
            }
        }
        let [entry] = module.entry_points.as_slice() else {
            return Err("more or fewer than one entry point".to_owned());
        };
        let mut arguments = vec![];
        for argument in &entry.function.arguments {
            arguments.push(walk.opaque(argument.ty)?);
        }
        walk.call(&entry.function, arguments)?;
        Ok(walk)
    }

    /// A value from outside.
    fn opaque(&mut self, ty: Handle<naga::Type>) -> Result<Value, String> {
        let (graph, region) = (&mut self.graph, self.region);
        Pointee::Type(ty).build(self.module, &mut vec![], &mut |kind, _| {
            let number = graph.unique();
            graph.node_in(region, Op::Opaque(number), kind, vec![])
        })
    }

    fn call(
        &mut self,
        function: &'m Function,
        arguments: Vec<Value>,
    ) -> Result<Option<Value>, String> {
        let mut frame = Frame {
            expressions: &function.expressions,
            function: Some(function),
            arguments,
            values: HashMap::new(),
            locals: HashMap::new(),
            returns: vec![],
        };
        let outer = self.variables.len();
        for (handle, var) in function.local_variables.iter() {
            let value = match var.init {
                Some(init) => self.value(&mut frame, init)?,
                None => Pointee::Type(var.ty).zero(self.module, &mut self.graph)?,
            };
            frame.locals.insert(handle, self.variables.len());
            self.variables.push(value);
        }
        self.block(&mut frame, &function.body)?;
        self.variables.truncate(outer);
        let mut returns = frame.returns.into_iter();
        let Some(first) = returns.next() else {
            return Ok(None);
        };
        let graph = &mut self.graph;
        returns
            .try_fold(first, |a, b| {
                a.zip(&b, &mut |a, b| joined(graph, &[], a, b))
            })
            .map(Some)
    }

    fn block(&mut self, frame: &mut Frame<'m>, block: &'m Block) -> Result<Flow, String> {
        for statement in block.iter() {
            if self.statement(frame, statement)? == Flow::Left {
                return Ok(Flow::Left);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(
        &mut self,
        frame: &mut Frame<'m>,
        statement: &'m Statement,
    ) -> Result<Flow, String> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    self.value(frame, handle)?;
                }
            }
            Statement::Block(block) => return self.block(frame, block),
            Statement::If {
                condition,
                accept,
                reject,
            } => return self.branch(frame, *condition, accept, reject),
            Statement::Loop {
                body,
                continuing,
                break_if,
            } => self.around(frame, body, continuing, *break_if)?,
            Statement::Break => {
                let now = self.variables.clone();
                self.breaks
                    .last_mut()
                    .ok_or("a break outside of a loop")?
                    .push(now);
                return Ok(Flow::Left);
            }
            Statement::Return { value } => {
                if let Some(value) = value {
                    let value = self.value(frame, *value)?;
                    frame.returns.push(value);
                }
                return Ok(Flow::Left);
            }
            Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => self.version += 1,
            Statement::Store { pointer, value } => {
                let pointer = self.value(frame, *pointer)?;
                let value = self.value(frame, *value)?;
                self.store(pointer.pointer()?, value)?;
            }
            Statement::Atomic {
                pointer,
                value,
                result,
                ..
            } => {
                let before = self.atomic(frame, *pointer, *value)?;
                frame.values.extend(result.map(|result| (result, before)));
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                let pointer = self.value(frame, *pointer)?;
                self.version += 1;
                let value = self.load(pointer.pointer()?)?;
                frame.values.insert(*result, value);
            }
            Statement::Call {
                function,
                arguments,
                result,
            } => {
                let arguments = arguments.iter().map(|a| self.value(frame, *a));
                let arguments = arguments.collect::<Result<_, _>>()?;
                let value = self.call(&self.module.functions[*function], arguments)?;
                if let Some(result) = result {
                    let value = value.ok_or("a function without the value that is used")?;
                    frame.values.insert(*result, value);
                }
            }
            other => self.across_lanes(frame, other)?,
        }
        Ok(Flow::Next)
    }

    /// A store to an atomic: what was there before, which nothing is known of.
    fn atomic(
        &mut self,
        frame: &mut Frame<'m>,
        pointer: Handle<Expression>,
        value: Handle<Expression>,
    ) -> Result<Value, String> {
        let pointer = self.value(frame, pointer)?;
        let value = self.value(frame, value)?;
        let kind = self.graph.get(value.scalar()?).kind;
        self.store(pointer.pointer()?, value)?;
        let op = Op::Opaque(self.graph.unique());
        let id = self.graph.node_in(self.region, op, kind, vec![]);
        Ok(Value::Scalar(id))
    }

    /// A statement by which the lanes of a subgroup see each other's values.
    fn across_lanes(&mut self, frame: &mut Frame<'m>, statement: &Statement) -> Result<(), String> {
        let (result, value) = match statement {
            Statement::SubgroupGather {
                mode,
                argument,
                result,
            } => {
                use naga::GatherMode as M;
                let index = match mode {
                    M::BroadcastFirst | M::QuadSwap(_) => None,
                    M::Broadcast(i)
                    | M::Shuffle(i)
                    | M::ShuffleDown(i)
                    | M::ShuffleUp(i)
                    | M::ShuffleXor(i)
                    | M::QuadBroadcast(i) => Some(self.value(frame, *i)?.scalar()?),
                };
                let value = self.value(frame, *argument)?;
                (result, self.of_lanes(&value, index, Op::Shuffle))
            }
            Statement::SubgroupCollectiveOperation {
                argument, result, ..
            } => {
                let value = self.value(frame, *argument)?;
                (result, self.of_lanes(&value, None, Op::Collective))
            }
            Statement::SubgroupBallot { result, predicate } => {
                let predicate = match predicate {
                    Some(predicate) => self.value(frame, *predicate)?.scalars(),
                    None => vec![],
                };
                let words = (0..4).map(|_| {
                    let op = Op::Collective(self.graph.unique());
                    self.graph
                        .node_in(self.region, op, Kind::Uint, predicate.clone())
                });
                (result, Value::vector(words.collect()))
            }
            other => return Err(format!("the statement {other:?}")),
        };
        frame.values.insert(*result, value);
        Ok(())
    }

    fn of_lanes(&mut self, value: &Value, index: Option<Id>, op: impl Fn(u32) -> Op) -> Value {
        let (graph, region) = (&mut self.graph, self.region);
        value.map(&mut |id| {
            let op = op(graph.unique());
            let kind = graph.get(id).kind;
            let operands = [id].into_iter().chain(index).collect();
            graph.node_in(region, op, kind, operands)
        })
    }

    /// One branch where the condition is a constant, else both.
    fn branch(
        &mut self,
        frame: &mut Frame<'m>,
        condition: Handle<Expression>,
        accept: &'m Block,
        reject: &'m Block,
    ) -> Result<Flow, String> {
        let condition = self.value(frame, condition)?.scalar()?;
        if let Some(bits) = self.graph.constant(condition) {
            return self.block(frame, if bits != 0 { accept } else { reject });
        }
        self.roots.push(condition);
        let before = self.variables.clone();
        let accepted = self.block(frame, accept)?;
        let after = std::mem::replace(&mut self.variables, before);
        let rejected = self.block(frame, reject)?;
        match (accepted, rejected) {
            (Flow::Left, rejected) => Ok(rejected),
            (Flow::Next, Flow::Left) => {
                self.variables = after;
                Ok(Flow::Next)
            }
            (Flow::Next, Flow::Next) => {
                let graph = &mut self.graph;
                for (now, accepted) in self.variables.iter_mut().zip(&after) {
                    *now = accepted.zip(now, &mut |a, b| joined(graph, &[condition], a, b))?;
                }
                Ok(Flow::Next)
            }
        }
    }

    /// A loop, whose body is gone through once.
    fn around(
        &mut self,
        frame: &mut Frame<'m>,
        body: &'m Block,
        continuing: &'m Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<(), String> {
        let outer = self.region;
        self.graph.depths.push(self.graph.depths[outer] + 1);
        self.region = self.graph.depths.len() - 1;
        let name = frame.function.and_then(|f| f.name.clone());
        self.loops.push(Met {
            function: name.unwrap_or_default(),
            region: self.region,
        });
        let mut changed = BTreeSet::new();
        for block in [body, continuing] {
            self.stored(frame, block, &mut changed)?;
        }
        let mut ins = vec![];
        for &variable in &changed {
            let (graph, region) = (&mut self.graph, self.region);
            self.variables[variable] = self.variables[variable].map(&mut |before| {
                let op = Op::LoopIn(graph.unique());
                let kind = graph.get(before).kind;
                let id = graph.node_in(region, op, kind, vec![]);
                ins.push((id, before));
                id
            });
        }
        self.version += 1;
        self.breaks.push(vec![]);
        if self.block(frame, body)? == Flow::Next {
            self.block(frame, continuing)?;
            if let Some(condition) = break_if {
                let condition = self.value(frame, condition)?.scalar()?;
                self.roots.push(condition);
            }
        }
        self.version += 1;
        self.region = outer;
        let left = self.breaks.pop().unwrap_or_default();
        // The value of a variable after a pass is its value at the beginning of the next.
        let finals: Vec<_> = changed
            .iter()
            .flat_map(|variable| self.variables[*variable].scalars())
            .collect();
        for ((id, before), last) in ins.iter().zip(finals) {
            self.graph.nodes[id.index()].operands = vec![*before, last];
        }
        let mut ins = ins.into_iter();
        for &variable in &changed {
            let mut exits: Vec<_> = left
                .iter()
                .map(|variables| variables[variable].scalars().into_iter())
                .collect();
            let graph = &mut self.graph;
            self.variables[variable] = self.variables[variable].map(&mut |last| {
                let op = Op::LoopOut(graph.unique());
                let kind = graph.get(last).kind;
                // Set afterwards: what a loop leaves behind belongs to the code around it.
                let id = graph.node_in(outer, op, kind, vec![]);
                let begin = ins.next().map(|(begin, _)| begin);
                let exits = exits.iter_mut().filter_map(Iterator::next);
                graph.nodes[id.index()].operands = begin.into_iter().chain(exits).collect();
                id
            });
        }
        Ok(())
    }

    /// The variables of the thread that a block may write.
    fn stored(
        &self,
        frame: &Frame<'m>,
        block: &Block,
        found: &mut BTreeSet<usize>,
    ) -> Result<(), String> {
        for statement in block.iter() {
            match statement {
                Statement::Store { pointer, .. } => found.extend(self.root(frame, *pointer)),
                Statement::Call { arguments, .. } => {
                    found.extend(self.privates.values());
                    found.extend(arguments.iter().filter_map(|a| self.root(frame, *a)));
                }
                Statement::Block(block) => self.stored(frame, block, found)?,
                Statement::If { accept, reject, .. } => {
                    self.stored(frame, accept, found)?;
                    self.stored(frame, reject, found)?;
                }
                Statement::Loop {
                    body, continuing, ..
                } => {
                    self.stored(frame, body, found)?;
                    self.stored(frame, continuing, found)?;
                }
                Statement::Switch { .. } => return Err("a switch".to_owned()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The variable of the thread that a pointer is of.
    fn root(&self, frame: &Frame<'m>, pointer: Handle<Expression>) -> Option<usize> {
        match &frame.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.root(frame, *base)
            }
            Expression::LocalVariable(handle) => frame.locals.get(handle).copied(),
            Expression::GlobalVariable(handle) => self.privates.get(handle).copied(),
            Expression::FunctionArgument(i) => match &frame.arguments[*i as usize] {
                Value::Pointer(pointer) => match pointer.root {
                    Root::Variable(variable) => Some(variable),
                    Root::Memory(_) => None,
                },
                _ => None,
            },
            _ => None,
        }
    }

    fn store(&mut self, pointer: &Pointer, value: Value) -> Result<(), String> {
        match pointer.root {
            Root::Variable(variable) => {
                let whole = &self.variables[variable];
                self.variables[variable] = whole.with(&pointer.path, value)?;
            }
            Root::Memory(_) => {
                self.version += 1;
                self.roots.extend(value.scalars());
                self.roots
                    .extend(pointer.path.iter().filter_map(|step| match step {
                        Step::Computed(id) => Some(*id),
                        Step::Known(_) => None,
                    }));
            }
        }
        Ok(())
    }

    pub(crate) fn load(&mut self, pointer: &Pointer) -> Result<Value, String> {
        let handle = match pointer.root {
            Root::Variable(variable) => {
                let value = self.variables[variable].clone();
                return value.at(&pointer.path, &mut self.graph);
            }
            Root::Memory(handle) => handle,
        };
        let var = &self.module.global_variables[handle];
        let written = match var.space {
            AddressSpace::WorkGroup => true,
            AddressSpace::Storage { access } => access.contains(StorageAccess::STORE),
            _ => false,
        };
        let (version, region) = match written {
            true => (self.version, self.region),
            false => (0, 0),
        };
        let mut indices = vec![];
        let mut steps = vec![];
        for step in &pointer.path {
            match step {
                Step::Known(i) => steps.push(Some(*i)),
                Step::Computed(id) => {
                    indices.push(*id);
                    steps.push(None);
                }
            }
        }
        let (graph, places, known) = (&mut self.graph, &mut self.places, &mut self.known_places);
        let name = var.name.clone().unwrap_or_default();
        pointer
            .to
            .build(self.module, &mut vec![], &mut |kind, path| {
                let rest = path.iter().map(|i| Some(*i));
                let key = (handle.index(), steps.iter().copied().chain(rest).collect());
                let place = *known.entry(key).or_insert_with(|| {
                    places.push(name.clone());
                    places.len() as u32 - 1
                });
                graph.node_in(region, Op::Load { place, version }, kind, indices.clone())
            })
    }

    /// The value of an expression, made when it is first asked for.
    pub(crate) fn value(
        &mut self,
        frame: &mut Frame<'m>,
        handle: Handle<Expression>,
    ) -> Result<Value, String> {
        if let Some(value) = frame.values.get(&handle) {
            return Ok(value.clone());
        }
        let value = self.expression(frame, &frame.expressions[handle])?;
        frame.values.insert(handle, value.clone());
        Ok(value)
    }

    pub(crate) fn argument(frame: &Frame<'m>, i: u32) -> Value {
        frame.arguments[i as usize].clone()
    }

    /// A pointer to a whole variable.
    pub(crate) fn whole(
        &self,
        frame: &Frame<'m>,
        expression: &Expression,
    ) -> Result<Value, String> {
        let (root, ty) = match expression {
            Expression::GlobalVariable(handle) => {
                let root = match self.privates.get(handle) {
                    Some(variable) => Root::Variable(*variable),
                    None => Root::Memory(*handle),
                };
                (root, self.module.global_variables[*handle].ty)
            }
            Expression::LocalVariable(handle) => {
                let function = frame.function.ok_or("a variable outside of functions")?;
                let root = Root::Variable(frame.locals[handle]);
                (root, function.local_variables[*handle].ty)
            }
            other => return Err(format!("a pointer to {other:?}")),
        };
        Ok(Value::Pointer(Rc::new(Pointer {
            root,
            path: vec![],
            to: Pointee::Type(ty),
        })))
    }

    /// The value of an expression of the module.
    pub(crate) fn global(&mut self, handle: Handle<Expression>) -> Result<Value, String> {
        let mut frame = Frame {
            expressions: &self.module.global_expressions,
            function: None,
            arguments: vec![],
            values: HashMap::new(),
            locals: HashMap::new(),
            returns: vec![],
        };
        self.value(&mut frame, handle)
    }
}

/// One of two values.
fn joined(graph: &mut Graph, condition: &[Id], a: Id, b: Id) -> Id {
    if a == b {
        return a;
    }
    let kind = graph.get(a).kind;
    let operands = condition.iter().copied().chain([a, b]).collect();
    graph.node(Op::Join, kind, operands)
}
