//! The GGUF container: metadata, tensor table and tensor bytes, memory-mapped.
