//! The supported models: configuration from GGUF keys, weights by name, rotation table.
