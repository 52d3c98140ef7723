//! GGML block formats: sizes, dequantisation, quantisation and the repacking for 16-byte loads.
