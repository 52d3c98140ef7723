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
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use web_time::{Duration, Instant};
use wgpu::{BindGroupLayout, BufferBindingType};

/// The most pipelines that are compiled at a time beside other work, so that it can be stopped soon. They take half of the threads at most.
const BESIDE: usize = 8;

impl Gpu {
    /// The pipelines of `specs`, in the same order; those not made yet are compiled in parallel.
    ///
    /// # Errors
    /// [`GpuError::Shader`] where a template is wrong or the driver refuses it.
    pub async fn pipelines(&self, specs: &[&Spec]) -> Result<Vec<Arc<Pipeline>>, GpuError> {
        let began = Instant::now();
        let missing = self.missing(specs);
        self.compile_all(&missing, compiling::tell).await?;
        let made = lock(&self.pipelines.made);
        let found = specs.iter().map(|s| made[*s].clone()).collect();
        drop(made);
        if !missing.is_empty() {
            self.save_pipelines();
            *lock(&self.pipelines.spent) += began.elapsed();
        }
        Ok(found)
    }

    /// Compiles those of `specs` that are not made yet beside other work, a few at a time until `stop` is set. Nobody is told, and nobody waits,
    /// so it adds nothing to [`compile_time`](Self::compile_time). Returned is whether all are made.
    ///
    /// # Errors
    /// The errors of [`pipelines`](Self::pipelines).
    pub async fn compile_beside(
        &self,
        specs: &[&Spec],
        stop: &AtomicBool,
    ) -> Result<bool, GpuError> {
        let missing = self.missing(specs);
        let at_once = (rayon::current_num_threads() / 2).clamp(1, BESIDE);
        for few in missing.chunks(at_once) {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.compile_all(few, |_| {}).await?;
        }
        if !missing.is_empty() {
            self.save_pipelines();
        }
        Ok(true)
    }

    /// The pipelines of `specs` that are not made yet, each once.
    fn missing<'a>(&self, specs: &[&'a Spec]) -> Vec<&'a Spec> {
        let made = lock(&self.pipelines.made);
        let mut seen = HashSet::new();
        let specs = specs.iter().copied();
        let missing = specs.filter(|s| !made.contains_key(*s) && seen.insert(*s));
        missing.collect()
    }

    /// Makes these pipelines in parallel; `told` hears of each.
    async fn compile_all(&self, missing: &[&Spec], told: fn(Compiling)) -> Result<(), GpuError> {
        let (done, of) = (AtomicUsize::new(0), missing.len());
        let compiled = missing
            .par_iter()
            .map(|spec| {
                let compiled = self.compile(spec);
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                told(Compiling { done, of });
                compiled
            })
            .collect::<Result<Vec<_>, GpuError>>()?;
        let mut fresh = vec![];
        for (spec, (pipeline, invalid)) in missing.iter().zip(compiled) {
            if let Some(error) = invalid.await {
                return Err(refused(spec, error.to_string()));
            }
            fresh.push(((*spec).clone(), Arc::new(pipeline)));
        }
        lock(&self.pipelines.made).extend(fresh);
        Ok(())
    }

    /// Keeps the compiled pipelines on disk, where there is a cache.
    fn save_pipelines(&self) {
        if let Some(disk) = &self.pipelines.disk {
            disk.save();
        }
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
