//! `glimt devices`: what there is to run on.

use std::fmt::Write;

use clap::Args;
use serde_json::json;

use super::error::CliError;
use super::output::{self, bytes, note};
use crate::engine::Products;
use crate::gpu::behind::Behind;
use crate::gpu::bus::Bus;
use crate::gpu::wait::Wait;
use crate::gpu::{self, AdapterSummary, GpuError};
use crate::plural::count;

const EXAMPLES: &str = "\
Examples:
  glimt devices
  glimt generate --device 0 \"...\"
  glimt generate --device nvidia \"...\"
  glimt generate --device cpu \"...\"

The adapters stand in the order in which --device auto prefers them; the CPU is used when it is asked for, or \
when there is no GPU: no adapter at all, or only software.";

/// List every GPU adapter, and the CPU
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Devices {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Devices {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let adapters = gpu::adapters().wait();
        if adapters.is_empty() {
            note(format_args!("{}", GpuError::NoAdapter.of_gpus_alone()));
        }
        if self.json {
            let cpu = json!({"device": "cpu", "threads": rayon::current_num_threads()});
            return output::json(&json!({"adapters": adapters, "cpu": cpu}));
        }
        output::page(&page(&adapters))
    }
}

/// The paragraphs of these adapters and of the CPU.
pub(super) fn page(adapters: &[AdapterSummary]) -> String {
    let mut text = String::new();
    for adapter in adapters {
        describe(&mut text, adapter);
    }
    text + &cpu()
}

/// The paragraph of the CPU.
pub(super) fn cpu() -> String {
    let threads = count(rayon::current_num_threads(), "thread");
    let device = Products::default().device();
    format!("cpu: {device}\n    {threads}\n")
}

/// Appends the paragraph of one adapter. Writing into a `String` cannot fail.
pub(super) fn describe(text: &mut String, adapter: &AdapterSummary) {
    let memory = match (adapter.memory, adapter.free) {
        (Some(memory), Some(free)) => format!("{}, {} of it free", bytes(memory), bytes(free)),
        (Some(memory), None) => bytes(memory),
        (None, Some(free)) => format!("{} free", bytes(free)),
        (None, None) => "not told".to_owned(),
    };
    let bus = adapter.bus.as_ref();
    let mut bus = bus.map_or_else(String::new, |bus| format!(" at {bus}"));
    if let Behind::Host(told @ Bus { assumed: false, .. }) = adapter.behind {
        bus += &format!(", {told}");
    }
    let [smallest, largest] = adapter.subgroup;
    let subgroup = if smallest == largest {
        smallest.to_string()
    } else {
        format!("{smallest} to {largest}")
    };
    let features = if adapter.features.is_empty() {
        "none".to_owned()
    } else {
        adapter.features.join(", ")
    };
    let _ = writeln!(
        text,
        "{}: {}\n    {}, {}{bus}; driver {}; tier {}\n    memory {memory}; largest buffer {}, largest binding {}\n    \
         workgroups: {} of memory, {}, subgroups of {subgroup}\n    features: {features}\n    \
         work is divided as for {}: {}, {} us for a dispatch that waits{}{}",
        adapter.index,
        adapter.name,
        adapter.backend,
        adapter.kind,
        adapter.driver,
        adapter.tier,
        bytes(adapter.max_buffer),
        bytes(adapter.max_binding),
        bytes(u64::from(adapter.workgroup_memory)),
        count(adapter.workgroup_threads, "thread"),
        adapter.machine.profile.name(),
        count(adapter.machine.cores, "core"),
        f64::from(adapter.machine.wait_ns) / 1e3,
        match adapter.machine.serial_passes {
            true => ", dispatches one after the other",
            false => "",
        },
        match adapter.machine.packed_halves {
            true => ", halves in pairs",
            false => "",
        },
    );
    if let Some(remedy) = adapter.remedy {
        let _ = writeln!(text, "    for a better tier: {remedy}");
    }
    for other in &adapter.others {
        let _ = writeln!(text, "    also by {}: {}", other.backend, other.reason);
    }
    if !adapter.cooperative_matrices.is_empty() {
        let all = adapter.cooperative_matrices.join(", ");
        let _ = writeln!(text, "    cooperative matrices: {all}");
    }
}
