//! Activations as signed bytes (temporary).
#![allow(missing_docs)]
use bytemuck::{Pod, Zeroable};
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Q8Unit {
    pub bytes: [i8; 32],
    pub scales: [f32; 2],
    pub scaled_sums: [f32; 2],
}
pub fn quantize_activation(x: &[f32]) -> Vec<Q8Unit> {
    x.chunks_exact(32)
        .map(|c| {
            let mut u = Q8Unit::zeroed();
            for h in 0..2 {
                let v = &c[h * 16..][..16];
                let m = v.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                let s = m / 127.0;
                let inv = if s > 1e-30 { 1.0 / s } else { 0.0 };
                let mut sum = 0i32;
                for (i, x) in v.iter().enumerate() {
                    let q = (x * inv).round_ties_even() as i8;
                    u.bytes[h * 16 + i] = q;
                    sum += q as i32;
                }
                u.scales[h] = s;
                u.scaled_sums[h] = s * sum as f32;
            }
            u
        })
        .collect()
}
pub fn dequantize_activation(x: &[Q8Unit]) -> Vec<f32> {
    x.iter()
        .flat_map(|u| (0..32).map(move |i| u.scales[i / 16] * u.bytes[i] as f32))
        .collect()
}
pub fn squares(x: &[f32]) -> Vec<f32> {
    x.chunks_exact(16)
        .map(|c| c.iter().map(|v| v * v).sum())
        .collect()
}
