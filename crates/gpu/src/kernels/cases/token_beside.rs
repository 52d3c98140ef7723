//! Cases of two products of one input beside each other.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::prepared::Normed;
use crate::gpu::GpuError;
use crate::kernels::token::Divided;
use crate::kernels::token_beside::{GpuTokenBeside, token_beside};
use crate::quant::GgmlType::{self, F16, IQ4_NL, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};

#[derive(Clone, Copy)]
struct Beside {
    types: [GgmlType; 2],
    rows: [usize; 2],
    cols: usize,
    /// Whether the first output is left as f32.
    y: bool,
    /// Whether the first output is left prepared, and if so whether with a norm.
    prepared: Option<bool>,
    /// Whether the case is compared in many geometries.
    many: bool,
}

impl Beside {
    fn case(self) -> Case {
        let ([ty, other], [rows, others]) = (self.types, self.rows);
        let name = format!("{ty} {rows}x{}, {other} {others} rows", self.cols);
        Case::new(name, move |lab| self.compare(lab))
    }

    fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let [rows, other_rows] = self.rows;
        let w = lab.weight(self.types[0], [1, rows, self.cols]);
        let v = lab.weight(self.types[1], [1, other_rows, self.cols]);
        let x = Normed::new(lab, 1, self.cols);
        let (values, rms) = x.token(0);
        let twin = token_beside([&w, &v], values, rms);
        let g = lab.normals(rows);
        let g = (self.prepared == Some(true)).then_some(&g[..]);
        let (w, v) = (lab.load(&w)?, lab.load(&v)?);
        let input = x.input(lab);
        let beside = || GpuTokenBeside {
            weights: [&w, &v],
            activation: lab.form(),
            x: input.clone(),
            y: self.y.then(|| lab.room(rows)),
            prepared: self.prepared.map(|_| lab.output(rows, g)),
            z: lab.room(other_rows),
        };
        let mut all = vec![];
        for geometry in lab.geometries(&beside().site(), self.many)? {
            let beside = beside();
            lab.run(beside.calls_with(lab.gpu, &geometry)?, state(1, 0))?;
            all.push(lab.floats(&beside.z, &twin[1], lab.limit())?);
            if let Some(y) = &beside.y {
                all.push(lab.floats(y, &twin[0], lab.limit())?);
            }
            if let Some(left) = &beside.prepared {
                all.extend(lab.left(left, g, &twin[0])?);
            }
        }
        Ok(all)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let of = |types, rows, cols, y, prepared| Beside {
        types,
        rows,
        cols,
        y,
        prepared,
        many: false,
    };
    let many = of([Q4_0, Q8_0], [96, 83], 1632, true, Some(true));
    vec![
        // q_a and kv_a of GLM-4.7-Flash and Youtu-LLM-2B, attn_q and kv_a of DeepSeek-V2-Lite.
        of([Q4_0, Q4_0], [768, 576], 2048, false, Some(true)).case(),
        of([Q4_K, Q8_0], [768, 576], 2048, false, Some(true))
            .case()
            .verified(),
        of([Q5_0, Q6_K], [1536, 576], 2048, false, Some(true)).case(),
        of([Q4_0, F16], [3072, 576], 2048, true, Some(false)).case(),
        of([Q6_K, Q4_0], [3072, 576], 2048, true, None).case(),
        // Rows and units that are no multiples of what a workgroup takes, more rows of the second product, and more units than a
        // thread takes at once.
        of([IQ4_NL, Q8_0], [96, 131], 352, true, Some(true)).case(),
        of([Q4_0, Q8_0], [32, 20], 8480, true, Some(true)).case(),
        Beside { many: true, ..many }.case().long(),
    ]
}
