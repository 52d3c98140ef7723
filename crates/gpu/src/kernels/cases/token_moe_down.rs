//! Cases of the end of a layer with experts: of a decoded token with the shared expert, and of each of several tokens.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::Several;
use super::prepared::stand_for;
use crate::gpu::GpuError;
use crate::gpu::geometry::Geometry;
use crate::kernels::expert_slots::NONE;
use crate::kernels::token::Divided;
use crate::kernels::token_moe_down::{GpuTokenMoeDown, token_moe_down};
use crate::quant::GgmlType::{self, F16, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};

#[derive(Clone, Copy)]
pub(crate) struct Down {
    pub ty: GgmlType,
    /// Experts, those of a token, rows and columns.
    pub sizes: [usize; 4],
    /// The type and the columns of the shared expert.
    pub shared: Option<(GgmlType, usize)>,
    /// Whether a step has several tokens.
    pub several: bool,
    /// Whether the host multiplies some of the experts.
    pub of_host: bool,
    /// Whether the case is compared in many geometries.
    pub many: bool,
}

/// Hidden values, ids, weights and residuals of all tokens.
type Given<'a> = (&'a [f32], &'a [u32], &'a [f32], &'a [f32]);

impl Down {
    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let [count, used, rows, cols] = self.sizes;
        let several = self.several.then(|| Several::new(lab));
        let (here, most) = several.map_or((1, 1), |s| (s.here, s.most));
        let down = lab.weight(self.ty, [count, rows, cols]);
        let shared = self
            .shared
            .map(|(ty, cols)| lab.weight(ty, [1, rows, cols]));
        let width = used * cols + shared.as_ref().map_or(0, |shared| shared.cols);
        let given = lab.normals(most * width);
        let h = stand_for(lab.form(), &given);
        let mut ids = match several {
            Some(several) => several.experts(lab, [count, used]),
            None => lab.ids(used, count),
        };
        let sizes = [here * used, here * rows, rows];
        let [weights, residual, g] = sizes.map(|n| lab.normals(n));
        let down_gpu = lab.load(&down)?;
        let shared_gpu = shared.as_ref().map(|shared| lab.load(shared)).transpose()?;
        let mut given_ids = ids.clone();
        given_ids.resize(most * used, 0);
        let pieces = shared_gpu.as_ref().map_or(1, |shared| shared.pieces.len());
        let one_piece = down_gpu.pieces.len().max(pieces) == 1;
        if several.is_none() && one_piece && !self.of_host {
            // No expert has the id that the kernel is told, which stands for the last one.
            ids[used - 1] = count as u32 - 1;
            given_ids[used - 1] = u32::MAX;
        }
        let share = self.of_host.then(|| lab.normals(here * rows));
        if self.of_host {
            // From none of the experts to all.
            let first = lab.below(used + 1);
            given_ids[first..].fill(NONE);
            ids.truncate(first);
        }
        let of_token = |t: usize| {
            let (h, residual) = (&h[t * width..][..width], &residual[t * rows..][..rows]);
            if let Some(share) = &share {
                let sum: Vec<f32> = residual.iter().zip(share).map(|(a, b)| a + b).collect();
                let (routed, rest) = h.split_at(used * cols);
                let h = [&routed[..ids.len() * cols], rest].concat();
                let weights = &weights[..ids.len()];
                return token_moe_down(&down, shared.as_ref(), &h, &ids, weights, &sum);
            }
            let (ids, weights) = (&ids[t * used..][..used], &weights[t * used..][..used]);
            token_moe_down(&down, shared.as_ref(), h, ids, weights, residual)
        };
        let twin: Vec<f32> = (0..here).flat_map(of_token).collect();
        let of = || GpuTokenMoeDown {
            down: &down_gpu,
            shared: shared_gpu.as_ref(),
            activation: lab.form(),
            h: lab.prepared(&given),
            ids: lab.given(&given_ids),
            weights: lab.padded(&weights, used, most),
            used: used as u32,
            residual: lab.padded(&residual, rows, most),
            share: share.as_ref().map(|share| lab.given(share)),
            y: lab.room(most * rows),
            prepared: lab.output(most * rows, Some(&g)),
            tokens: most as u32,
        };
        let mut all = vec![];
        for geometry in lab.geometries(&of().site(), self.many)? {
            let of = of();
            let calls = of.calls_with(lab.gpu, &geometry)?;
            match several {
                Some(several) => several.run(lab, calls, most)?,
                None => lab.run(calls, state(1, 0))?,
            }
            all.push(lab.floats(&of.y, &twin, lab.limit())?);
            all.extend(lab.left(&of.prepared, Some(&g), &twin)?);
            if several.is_some() {
                let room = (&given[..], &given_ids[..], &weights[..], &residual[..]);
                all.push(self.alone(lab, &of, &geometry, (room, &g), lab.below(here))?);
            }
        }
        Ok(all)
    }

    /// Whether token t gets from the call of several what it gets alone, to the bit.
    fn alone(
        self,
        lab: &Lab<'_>,
        of: &GpuTokenMoeDown<'_>,
        geometry: &Geometry,
        ((h, ids, weights, residual), norm): (Given<'_>, &[f32]),
        t: usize,
    ) -> Result<Compared, GpuError> {
        let [_, used, rows, cols] = self.sizes;
        let width = used * cols + self.shared.map_or(0, |(_, cols)| cols);
        let own = |n: usize| t * n..(t + 1) * n;
        let alone = GpuTokenMoeDown {
            h: lab.prepared(&h[own(width)]),
            ids: lab.given(&ids[own(used)]),
            weights: lab.given(&weights[own(used)]),
            residual: lab.given(&residual[own(rows)]),
            share: None,
            y: lab.room(rows),
            prepared: lab.output(rows, Some(norm)),
            tokens: 1,
            ..*of
        };
        lab.run(alone.calls_with(lab.gpu, geometry)?, state(1, 0))?;
        let found: Vec<f32> = lab.read(&of.y, (t + 1) * rows)?;
        lab.same(&alone.y, &found[own(rows)])
    }

    pub fn case(self) -> Case {
        let [count, used, rows, cols] = self.sizes;
        let besides = match self.shared {
            Some((ty, cols)) => format!(", shared {ty} {cols}"),
            None => String::new(),
        };
        let tokens = match (self.several, self.of_host) {
            (true, _) => ", tokens",
            (_, true) => ", some of the host",
            _ => "",
        };
        let name = format!(
            "{} {used} of {count}x{rows}x{cols}{besides}{tokens}",
            self.ty
        );
        Case::new(name, move |lab| self.compare(lab))
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let of = |ty, sizes, shared| Down {
        ty,
        sizes,
        shared,
        several: false,
        of_host: false,
        many: false,
    };
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let of_types = GgmlType::ALL.iter().zip(others);
    let of_types = of_types.map(|(&ty, &other)| of(ty, [5, 3, 64, 256], Some((other, 512))).case());
    let mut all: Vec<_> = of_types.collect();
    all.extend([
        of(Q4_0, [64, 4, 64, 1536], Some((Q4_0, 1536))).case(),
        of(Q5_0, [64, 6, 32, 1408], Some((Q6_K, 2816)))
            .case()
            .verified(),
        of(Q4_0, [4, 2, 64, 96], None).case(),
        // Two runs, some lanes of which have fewer units than others.
        of(Q4_0, [5, 4, 32, 1056], Some((Q4_0, 1536))).case(),
        // More units of the shared expert than a thread requests ahead.
        of(Q4_0, [5, 3, 32, 256], Some((Q4_0, 1536))).case(),
        // Two lanes share a row. A workgroup takes 32 rows, and the last one has 16.
        of(Q4_0, [2, 1, 48, 64], Some((Q4_0, 64))).case(),
        Down {
            of_host: true,
            ..of(Q4_K, [5, 4, 64, 512], Some((Q8_0, 512)))
        }
        .case(),
        Down {
            of_host: true,
            ..of(Q6_K, [8, 3, 64, 256], None)
        }
        .case(),
        // Rows that fill no tile of 64, units that leave some lanes without.
        Down {
            many: true,
            ..of(Q8_0, [5, 3, 96, 160], Some((Q4_0, 352)))
        }
        .case()
        .long(),
    ]);
    all
}

/// Experts of each of several tokens. A test runs these on each device.
pub(crate) fn of_several() -> Vec<Case> {
    let several = |ty, sizes| Down {
        ty,
        sizes,
        shared: None,
        several: true,
        of_host: false,
        many: false,
    };
    let with = |shared, down: Down| Down {
        shared: Some(shared),
        ..down
    };
    vec![
        with((Q4_0, 1536), several(Q4_0, [64, 4, 64, 1536]))
            .case()
            .verified(),
        with((Q6_K, 1024), several(Q5_0, [8, 3, 32, 256])).case(),
        // A thread of a token alone has one unit.
        with((Q8_0, 128), several(Q8_0, [8, 2, 64, 128])).case(),
        several(Q4_0, [64, 4, 64, 1536]).case().verified(),
        several(Q5_0, [64, 6, 32, 1408]).case(),
        several(Q4_K, [8, 3, 96, 256]).case(),
        several(F16, [5, 2, 48, 96]).case(),
        // Units of a token that pass through workgroup memory.
        several(Q8_0, [8, 3, 48, 512]).case(),
        // Units of a token that are no whole blocks of halves.
        several(Q8_0, [8, 3, 48, 544]).case(),
        several(Q4_0, [64, 4, 2048, 1536]).case().long(),
        // Rows that fill no tile of 64, units that leave some lanes without.
        Down {
            many: true,
            ..several(Q8_0, [5, 3, 96, 160])
        }
        .case()
        .long(),
    ]
}
