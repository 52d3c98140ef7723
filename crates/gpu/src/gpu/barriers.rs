//! The memory that barriers of subgroups order: a correction of naga's translation to SPIR-V.

use wgpu::naga::{Barrier, Block, Module, Statement};

/// Lets `subgroupBarrier()` order workgroup memory among the lanes of a subgroup: WGSL means it to, but naga 30 translates it to a
/// SPIR-V barrier without that (`write_control_barrier` of its `back/spv/writer.rs`). Its other back ends do.
pub fn order_workgroup_memory(module: &mut Module) {
    let functions = module.functions.iter_mut().map(|(_, function)| function);
    let entries = module.entry_points.iter_mut().map(|e| &mut e.function);
    for function in functions.chain(entries) {
        order(&mut function.body);
    }
}

fn order(block: &mut Block) {
    for statement in block.iter_mut() {
        match statement {
            Statement::ControlBarrier(barrier) if barrier.contains(Barrier::SUB_GROUP) => {
                barrier.insert(Barrier::WORK_GROUP);
            }
            Statement::Block(block) => order(block),
            Statement::If { accept, reject, .. } => {
                order(accept);
                order(reject);
            }
            Statement::Switch { cases, .. } => {
                for case in cases {
                    order(&mut case.body);
                }
            }
            Statement::Loop {
                body, continuing, ..
            } => {
                order(body);
                order(continuing);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::naga::front::wgsl::parse_str;

    #[test]
    fn barriers_of_subgroups_order_workgroup_memory_wherever_they_stand() {
        let source = "
fn f() { subgroupBarrier(); }
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
  f();
  loop {
    if (t < 3u) { subgroupBarrier(); } else { switch t { case 4u: { subgroupBarrier(); } default: { { subgroupBarrier(); } } } }
    continuing { subgroupBarrier(); break if t > 1u; }
  }
  workgroupBarrier();
}";
        let mut module = parse_str(source).unwrap();
        order_workgroup_memory(&mut module);
        let text = format!("{module:?}");
        let both = format!(
            "ControlBarrier({:?})",
            Barrier::SUB_GROUP | Barrier::WORK_GROUP
        );
        assert_eq!(text.matches(&both).count(), 5, "{text}");
        assert_eq!(text.matches("ControlBarrier(").count(), 6);
    }
}
