//! Speed of quick products of one thread, by type and number of inputs.
use glimt_formats::quant::{GgmlType, dot::*, quantize_row};
use std::time::Instant;
fn main() {
    let cols: usize = std::env::args().nth(2).map_or(2048, |c| c.parse().unwrap());
    let rows: usize = std::env::args().nth(3).map_or(64, |c| c.parse().unwrap());
    let filter = std::env::args().nth(1).unwrap_or_default();
    let types = [
        GgmlType::Q4_0,
        GgmlType::Q4_K,
        GgmlType::Q6_K,
        GgmlType::Q8_0,
        GgmlType::F16,
    ];
    for set in Instructions::all().into_iter().rev() {
        if !set.name().contains(&filter) {
            continue;
        }
        for ty in types {
            let values: Vec<f32> = (0..rows * cols)
                .map(|i| ((i * 7919 % 1013) as f32 / 500.0 - 1.0) * ((i % 13) as f32))
                .collect();
            let mut bytes = vec![];
            for row in values.chunks(cols) {
                let mut q = vec![0; ty.row_bytes(cols).unwrap()];
                quantize_row(ty, row, &mut q);
                bytes.extend(q);
            }
            let mut line = format!("{:14} {:7}", set.name(), format!("{ty}"));
            for n in [1usize, 2, 4, 8] {
                let x: Vec<f32> = (0..n * cols)
                    .map(|i| ((i * 7907 % 1019) as f32 / 500.0 - 1.0))
                    .collect();
                let b = byte_blocks(cols);
                let mut xb = vec![ByteBlock::ZERO; n * b];
                for (x, to) in x.chunks(cols).zip(xb.chunks_mut(b)) {
                    set.quantize(x, to);
                }
                let inputs: Vec<Input> = (0..n)
                    .map(|i| Input {
                        floats: &x[i * cols..][..cols],
                        bytes: &xb[i * b..][..b],
                    })
                    .collect();
                let mut out = vec![0.0f32; n * rows];
                let mut best = f64::MAX;
                let began = Instant::now();
                while began.elapsed().as_secs_f64() < 0.05 {
                    let t = Instant::now();
                    let mut parts: Vec<&mut [f32]> = out.chunks_mut(rows).collect();
                    set.multiply(
                        Rows {
                            ty,
                            cols,
                            bytes: &bytes,
                        },
                        &inputs,
                        &mut parts,
                    );
                    best = best.min(t.elapsed().as_secs_f64());
                }
                let per = best * 1e9 / (rows * cols / 256 * n) as f64;
                line += &format!("  {n}:{per:6.2}");
                if n == 1 {
                    line += &format!(" ({:5.1} GB/s)", bytes.len() as f64 / best / 1e9);
                }
            }
            if takes_bytes(ty) {
                for n in [8usize, 16, 128, 256] {
                    let x: Vec<f32> = (0..n * cols)
                        .map(|i| ((i * 7907 % 1019) as f32 / 500.0 - 1.0))
                        .collect();
                    let b = byte_blocks(cols);
                    let mut xb = vec![ByteBlock::ZERO; n * b];
                    for (x, to) in x.chunks(cols).zip(xb.chunks_mut(b)) {
                        set.quantize(x, to);
                    }
                    let blocks: Vec<&[ByteBlock]> = xb.chunks(b).collect();
                    let abreast: Vec<Abreast> = blocks
                        .chunks(16)
                        .map(|some| Abreast::new(cols, some))
                        .collect();
                    let mut out = vec![0.0f32; n * rows];
                    let mut best = f64::MAX;
                    let began = Instant::now();
                    while began.elapsed().as_secs_f64() < 0.05 {
                        let t = Instant::now();
                        let mut parts: Vec<&mut [f32]> = out.chunks_mut(rows).collect();
                        set.multiply_abreast(
                            Rows {
                                ty,
                                cols,
                                bytes: &bytes,
                            },
                            &abreast,
                            &mut parts,
                        );
                        best = best.min(t.elapsed().as_secs_f64());
                    }
                    line += &format!("  a{n}:{:6.2}", best * 1e9 / (rows * cols / 256 * n) as f64);
                }
            }
            println!("{line}");
        }
    }
}
