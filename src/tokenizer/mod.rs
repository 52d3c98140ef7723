//! Text to token ids and back, from the vocabulary in a GGUF file; chat templates.
