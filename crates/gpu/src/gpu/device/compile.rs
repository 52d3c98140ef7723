//! Compiling pipelines: in parallel, each variant once.

#[cfg(target_arch = "wasm32")]
use crate::gpu::browser as translate;
use crate::gpu::compiling::{self, Compiling};
use crate::gpu::pipeline::{Pipeline, Spec, layout_entry};
use crate::gpu::shader::{self, Access};
use crate::gpu::tier::MAX_PARAMS;
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::translate;
use crate::gpu::{Gpu, GpuError, Tier};
use rayon::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use web_time::{Duration, Instant};
use wgpu::{BindGroupLayout, BufferBindingType};

impl Gpu {
    /// The pipelines of `specs`, in the same order; those not made yet are compiled in parallel.
    ///
    /// # Errors
    /// [`GpuError::Shader`] where a template is wrong or the driver refuses it.
    pub async fn pipelines(&self, specs: &[&Spec]) -> Result<Vec<Arc<Pipeline>>, GpuError> {
        let began = Instant::now();
        let missing: Vec<&Spec> = {
            let made = lock(&self.pipelines.made);
            let mut seen = std::collections::HashSet::new();
            specs
                .iter()
                .copied()
                .filter(|s| !made.contains_key(*s) && seen.insert(*s))
                .collect()
        };
        let (done, of) = (AtomicUsize::new(0), missing.len());
        let compiled = missing
            .par_iter()
            .map(|spec| {
                let compiled = self.compile(spec);
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                compiling::tell(Compiling { done, of });
                compiled
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        let mut fresh = vec![];
        for (spec, (pipeline, invalid)) in missing.into_iter().zip(compiled) {
            if let Some(error) = invalid.await {
                return Err(refused(spec, error.to_string()));
            }
            fresh.push((spec.clone(), Arc::new(pipeline)));
        }
        let any = !fresh.is_empty();
        let mut made = lock(&self.pipelines.made);
        made.extend(fresh);
        let found = specs.iter().map(|s| made[*s].clone()).collect();
        drop(made);
        if any {
            if let Some(disk) = &self.pipelines.disk {
                disk.save();
            }
            *lock(&self.pipelines.spent) += began.elapsed();
        }
        Ok(found)
    }

    /// The time that compiling pipelines took so far.
    pub fn compile_time(&self) -> Duration {
        *lock(&self.pipelines.spent)
    }

    /// A pipeline, and what the device has against it.
    fn compile(
        &self,
        spec: &Spec,
    ) -> Result<(Pipeline, impl Future<Output = Option<wgpu::Error>> + use<>), GpuError> {
        let vulkan = self.info.backend == wgpu::Backend::Vulkan;
        // Elsewhere a way out of some subgroups before a barrier may be refused.
        let fetches = vulkan && self.tier != Tier::Plain;
        #[cfg(any(test, feature = "testing"))]
        let fetches = fetches && self.waves.is_none();
        let variant = spec.variant.clone().flag(shader::FETCHES, fetches);
        let variant = variant.flag(shader::UNIFORMS, !self.has_immediates());
        let source = shader::expand(spec.kernel, spec.source, &variant, self.tier)?.text;
        #[cfg(any(test, feature = "testing"))]
        let source = match self.waves {
            Some(size) => crate::gpu::testing::waves::emulated(&source, size),
            None => source,
        };
        let limits = self.limits.clone();
        #[cfg(any(test, feature = "testing"))]
        let limits = wgpu::Limits {
            max_compute_workgroup_storage_size: limits.max_compute_workgroup_storage_size
                + self.waves.map_or(0, |_| crate::gpu::testing::waves::ROOM),
            ..limits
        };
        let subgroups = self.tier != Tier::Plain;
        let source = translate::source(source, self.info.backend, subgroups, &limits)
            .map_err(|reason| refused(spec, reason))?;
        let (layout, pipeline_layout) = self.layout(&spec.access);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(spec.kernel),
            source,
        };
        let checks = match self.checked {
            true => wgpu::ShaderRuntimeChecks::checked(),
            false => wgpu::ShaderRuntimeChecks::unchecked(),
        };
        // SAFETY: unchecked shaders must not index out of bounds, loop forever or divide by zero. Every kernel declares how far it
        // reaches into each binding, and `interface::resolve` lets no step be recorded whose buffers are shorter, for the largest
        // replay; loops count up to parameters; no kernel divides by a variable.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let pipeline = self
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(spec.kernel),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.pipelines.disk.as_ref().map(|d| &d.cache),
            });
        Ok((Pipeline { pipeline, layout }, scope.pop()))
    }

    fn layout(&self, access: &[Access]) -> (BindGroupLayout, wgpu::PipelineLayout) {
        let mut layouts = lock(&self.pipelines.layouts);
        if let Some(known) = layouts.get(access) {
            return known.clone();
        }
        let entries: Vec<_> = (0..)
            .zip(access)
            .map(|(binding, access)| {
                let read_only = *access == Access::Read;
                layout_entry(binding, BufferBindingType::Storage { read_only }, 16)
            })
            .collect();
        let layout = self
            .device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
        let immediates = self.has_immediates();
        let groups = [Some(&layout), Some(&self.pipelines.uniform_layout)];
        let pipeline_layout = self
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &groups[..if immediates { 1 } else { 2 }],
                immediate_size: if immediates { MAX_PARAMS as u32 } else { 0 },
            });
        let made = (layout, pipeline_layout);
        layouts.insert(access.to_vec(), made.clone());
        made
    }
}

/// The error of a kernel that cannot be compiled.
fn refused(spec: &Spec, reason: String) -> GpuError {
    GpuError::Shader {
        kernel: spec.kernel.to_owned(),
        reason,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
