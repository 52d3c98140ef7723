//! wgpu: adapters, memory, shader templates, pipelines and recorded steps.
