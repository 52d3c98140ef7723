//! Synthetic models: the exact shapes and type mixes of real ones, with random weights.
