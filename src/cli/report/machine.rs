//! The program, the system and the processor.

use std::env::consts::{ARCH, OS};

use sysinfo::{CpuRefreshKind, System};

use super::made::Made;
use crate::bench::build;
use crate::cli::output::bytes;
use crate::plural::count;

/// Tells them.
pub(super) fn tell(made: &mut Made) {
    let kind = match cfg!(debug_assertions) {
        true => "debug",
        false => "release",
    };
    made.text += &format!(
        "glimt {}, commit {}, {kind} build for {OS} on {ARCH}\n",
        build::VERSION,
        build::COMMIT
    );
    let unknown = || "not told".to_owned();
    made.text += &format!(
        "system: {}; kernel: {}\n",
        System::long_os_version().unwrap_or_else(unknown),
        System::kernel_version().unwrap_or_else(unknown)
    );
    let mut system = System::new();
    system.refresh_memory();
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim());
    let brand = brand.filter(|brand| !brand.is_empty());
    let cores = match System::physical_core_count() {
        Some(cores) => count(cores, "core").to_string(),
        None => "cores not told".to_owned(),
    };
    made.text += &format!(
        "processor: {}; {cores}, {} for glimt; memory {}\n",
        brand.unwrap_or("not told"),
        count(rayon::current_num_threads(), "thread"),
        bytes(system.total_memory())
    );
}
