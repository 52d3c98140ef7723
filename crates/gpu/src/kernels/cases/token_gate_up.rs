//! Cases of the experts' first product of a decoded token, in every way in which logits come, and of each of several tokens.

use super::Case;
use super::lab::{Compared, Lab, state};
use super::places::Several;
use super::prepared::Normed;
use super::router::{Choice, experts};
use crate::gpu::GpuError;
use crate::gpu::buffer::Range;
use crate::kernels::router::{GpuRouter, logit_stride, strided};
use crate::kernels::token::Divided;
use crate::kernels::token_gate_up::{GpuTokenGateUp, token_gate_up};
use crate::model::{Experts, Gating, Weight};
use crate::quant::GgmlType::{self, Q4_0, Q4_K, Q6_K, Q8_0};

/// How the experts' logits come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Logits {
    /// Divided by the root mean square of the input.
    Whole,
    /// Not divided yet.
    Raw,
    /// Neither divided nor added up, as `attn_output` leaves them; of a number of experts that is no multiple of 4 as `Raw`.
    InParts,
}

const LOGITS: [Logits; 3] = [Logits::Whole, Logits::Raw, Logits::InParts];

/// Experts and a shared one, of one token.
#[derive(Clone, Copy)]
pub(crate) struct GateUp {
    pub cols: usize,
    /// Types of the experts' weights and their number, chosen ones and rows.
    pub experts: Option<([GgmlType; 2], [usize; 3])>,
    /// Types and rows of the shared expert.
    pub shared: Option<([GgmlType; 2], usize)>,
    /// How the logits come, or any way.
    pub logits: Option<Logits>,
    /// Bits that say how experts are chosen, or any.
    pub flags: Option<usize>,
    /// Whether the case is compared in many geometries.
    pub many: bool,
}

/// Logits of one token, of which the bits of `flags` say how they choose.
pub(super) fn choice_of_one(lab: &Lab<'_>, [count, used, _]: [usize; 3], flags: usize) -> Choice {
    let gating = [Gating::Sigmoid, Gating::Softmax][flags & 1];
    let config = experts(count, used, gating, flags & 2 != 0);
    let mut logits = lab.distinct(count);
    // The flags mean a sigmoid, a norm and no bias. Then all probabilities may be small. The norm divides by no less than MIN_WEIGHT_SUM.
    if flags == 2 && lab.below(2) == 0 {
        logits.iter_mut().for_each(|logit| *logit -= 16.0);
    }
    // A bias that moves whole ranks, and not towards ties.
    let bias = (flags & 4 != 0).then(|| logits.iter().map(|v| -2.0 * v).collect());
    Choice::of(config, logits, bias)
}

/// Logits in partial sums. The last one has all of each logit, except for numbers that cancel.
pub(super) fn in_parts(lab: &Lab<'_>, logits: &[f32], partial_sums: usize) -> Vec<f32> {
    let count = logits.len();
    let last = (partial_sums - 1) * count;
    let mut all = vec![0.0; last];
    all.extend(logits);
    for (i, v) in lab.normals(count).iter().enumerate() {
        all[i] += v;
        all[last + i] -= v;
    }
    all
}

impl GateUp {
    pub fn compare(self, lab: &Lab<'_>) -> Result<Vec<Compared>, GpuError> {
        let come = self.logits.unwrap_or_else(|| lab.one_of(&LOGITS));
        let flags = self.flags.unwrap_or_else(|| lab.below(8));
        let x = Normed::new(lab, 1, self.cols);
        let weights = |types: [GgmlType; 2], groups, rows| {
            types.map(|ty| lab.weight(ty, [groups, rows, self.cols]))
        };
        let experts = self.experts.map(|(types, sizes)| {
            let pair = weights(types, sizes[0], sizes[2]);
            (pair, choice_of_one(lab, sizes, flags))
        });
        let shared = self.shared.map(|(types, rows)| weights(types, 1, rows));
        let (values, rms) = x.token(0);
        let of_twin = experts.as_ref();
        let of_twin = of_twin.map(|(pair, choice)| (pair.each_ref(), &choice.ids[..]));
        let twin = token_gate_up(
            of_twin,
            shared.as_ref().map(<[_; 2]>::each_ref),
            values,
            rms,
        );
        let load = |pair: &[Weight; 2]| lab.load_alike(&pair.each_ref());
        let on_gpu = experts.as_ref().map(|(pair, _)| load(pair)).transpose()?;
        let shared = shared.as_ref().map(load).transpose()?;
        let factor = if come == Logits::Whole {
            1.0
        } else {
            x.root(0)
        };
        let router = |choice: &Choice| -> (Vec<f32>, usize) {
            let logits: Vec<f32> = choice.logits.iter().map(|logit| logit * factor).collect();
            if come != Logits::InParts || !logits.len().is_multiple_of(4) {
                return (logits, 1);
            }
            let partial_sums = 2 + lab.below(140);
            (in_parts(lab, &logits, partial_sums), partial_sums)
        };
        let logits = experts.as_ref().map(|(_, choice)| router(choice));
        // If nobody cares how logits come, a dispatch before may have chosen.
        let given = self.logits.is_none() && lab.below(3) == 0;
        let gate_up = |h: Range| GpuTokenGateUp {
            tokens: 1,
            experts: experts
                .as_ref()
                .zip(on_gpu.as_ref())
                .zip(logits.as_ref())
                .map(|(((_, choice), w), (logits, partial_sums))| {
                    let mut router = GpuRouter {
                        partial_sums: *partial_sums as u32,
                        ..choice.given(lab, logits, 1)
                    };
                    if given {
                        router.ids = lab.given(&choice.ids);
                    }
                    ([&w[0], &w[1]], router)
                }),
            given,
            raw_logits: come != Logits::Whole,
            shared: shared.as_ref().map(|w| [&w[0], &w[1]]),
            activation: lab.form(),
            x: x.input(lab),
            h,
        };
        let mut all = vec![];
        let site = gate_up(lab.room(0)).site();
        for geometry in lab.geometries(&site, self.many)? {
            let h = lab.output(twin.len(), None);
            let gate_up = gate_up(h.values.clone());
            lab.run(gate_up.calls_with(lab.gpu, &geometry)?, state(1, 0))?;
            all.extend(lab.left(&h, None, &twin)?);
            if let Some(((_, choice), (_, found))) = experts.as_ref().zip(gate_up.experts.as_ref())
                && !given
            {
                all.extend(choice.compared(lab, found)?);
            }
        }
        Ok(all)
    }

    pub fn case(self) -> Case {
        let beside = match self.experts {
            Some(_) => "shared",
            None => "dense",
        };
        let experts = self.experts.map(|([ty, _], [count, used, rows])| {
            format!("{ty} {used} of {count}x{rows}x{}", self.cols)
        });
        let shared = self
            .shared
            .map(|([ty, _], rows)| format!("{beside} {ty} {rows} rows"));
        let parts = [
            experts,
            shared,
            self.logits.map(|logits| format!("{logits:?}")),
        ];
        let name = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        Case::new(name, move |lab| self.compare(lab))
    }
}

/// Experts that each of several tokens chooses.
#[derive(Clone, Copy)]
pub(crate) struct OfSeveral {
    pub types: [GgmlType; 2],
    pub used: usize,
    /// Experts, rows and columns.
    pub sizes: [usize; 3],
    /// Rows of the shared expert.
    pub shared: Option<usize>,
    /// Whether the case is compared in many geometries.
    pub many: bool,
}

impl OfSeveral {
    pub fn weights(self, lab: &Lab<'_>) -> [Weight; 2] {
        self.types.map(|ty| lab.weight(ty, self.sizes))
    }

    /// The experts' logits of each of `here` tokens, in `parts`, with room for `most`.
    fn logits(
        lab: &Lab<'_>,
        logits: &[f32],
        choice: &Choice,
        [parts, most]: [usize; 2],
    ) -> Vec<f32> {
        let count = choice.config.count;
        let (mut all, width) = match parts {
            1 => (
                strided(logits, &choice.config),
                logit_stride(&choice.config) as usize,
            ),
            _ => {
                let tokens = logits.chunks_exact(count);
                let all = tokens.flat_map(|own| in_parts(lab, own, parts)).collect();
                (all, parts * count)
            }
        };
        all.resize(most * width, f32::NAN);
        all
    }

    /// Each token chooses other experts, or in another order, than the ones before. The second one shares one with the first.
    fn choose(self, lab: &Lab<'_>, tokens: usize) -> Choice {
        let (flags, count) = (lab.below(8), self.sizes[0]);
        let gating = [Gating::Sigmoid, Gating::Softmax][flags & 1];
        let config = Experts {
            shared_count: 0,
            ..experts(count, self.used, gating, flags & 2 != 0)
        };
        // All tokens have the same bias, which decides no more than their logits do.
        let size = [0.1, 1.0 / count as f32][flags & 1];
        let bias = lab.distinct(count).into_iter().map(|v| size * v);
        let bias: Option<Vec<f32>> = (flags & 4 != 0).then(|| bias.collect());
        let accepts = |before: &[u32], ids: &[u32]| {
            let own = before.chunks_exact(ids.len()).all(|other| other != ids);
            own && (before.len() != ids.len() || before.iter().any(|id| ids.contains(id)))
        };
        Choice::new(
            &config,
            tokens,
            bias.as_deref(),
            || lab.distinct(count),
            accepts,
        )
    }

    pub fn compare(self, lab: &Lab<'_>, pair: &[Weight; 2]) -> Result<Vec<Compared>, GpuError> {
        let several = Several::new(lab);
        let Several { here, most } = several;
        let ([count, rows, cols], used) = (self.sizes, self.used);
        let x = Normed::new(lab, most, cols);
        let choice = self.choose(lab, here);
        let shared = self
            .shared
            .map(|rows| self.types.map(|ty| lab.weight(ty, [1, rows, cols])));
        let raw_logits = lab.below(2) == 0;
        let parts = match raw_logits && count.is_multiple_of(4) && lab.below(2) == 0 {
            true => 2 + lab.below(140),
            false => 1,
        };
        let (mut logits, mut twin) = (choice.logits.clone(), vec![]);
        for t in 0..here {
            let (values, rms) = x.token(t);
            let chosen = Some((pair.each_ref(), &choice.ids[t * used..][..used]));
            let shared = shared.as_ref().map(<[_; 2]>::each_ref);
            twin.extend(token_gate_up(chosen, shared, values, rms));
            if raw_logits {
                let own = &mut logits[t * count..][..count];
                own.iter_mut().for_each(|logit| *logit *= x.root(t));
            }
        }
        let logits = Self::logits(lab, &logits, &choice, [parts, most]);
        let on_gpu = lab.load_alike(&pair.each_ref())?;
        let load = |pair: &[Weight; 2]| lab.load_alike(&pair.each_ref());
        let shared = shared.as_ref().map(load).transpose()?;
        let given = lab.below(3) == 0;
        let router = || {
            let mut router = choice.given(lab, &logits, most);
            router.partial_sums = parts as u32;
            if given {
                let behind = vec![u32::MAX; (most - here) * used];
                router.ids = lab.given(&[&choice.ids[..], &behind].concat());
            }
            router
        };
        let gate_up = |h: Range| GpuTokenGateUp {
            experts: Some(([&on_gpu[0], &on_gpu[1]], router())),
            given,
            raw_logits,
            shared: shared.as_ref().map(|w| [&w[0], &w[1]]),
            activation: lab.form(),
            x: x.input(lab),
            h,
            tokens: most as u32,
        };
        let mut all = vec![];
        let site = gate_up(lab.room(0)).site();
        for geometry in lab.geometries(&site, self.many)? {
            let h = lab.output(most * (used * rows + self.shared.unwrap_or(0)), None);
            let gate_up = gate_up(h.values.clone());
            several.run(lab, gate_up.calls_with(lab.gpu, &geometry)?, most)?;
            all.extend(lab.left(&h, None, &twin)?);
            if let Some((_, found)) = &gate_up.experts
                && !given
            {
                all.extend(choice.compared(lab, found)?);
            }
        }
        Ok(all)
    }

    pub fn case(self) -> Case {
        let ([ty, _], [count, rows, cols]) = (self.types, self.sizes);
        let shared = self
            .shared
            .map_or(String::new(), |rows| format!(", shared {rows}"));
        let name = format!(
            "{ty} {} of {count}x{rows}x{cols}{shared}, tokens",
            self.used
        );
        Case::new(name, move |lab| self.compare(lab, &self.weights(lab)))
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let of = |cols, experts, shared| GateUp {
        cols,
        experts,
        shared,
        logits: None,
        flags: None,
        many: false,
    };
    let others = GgmlType::ALL.iter().cycle().skip(1);
    let of_types = GgmlType::ALL.iter().zip(others).map(|(&ty, &other)| {
        let case = of(
            256,
            Some(([ty, other], [5, 2, 96])),
            Some(([other, ty], 192)),
        )
        .case();
        case.verified_if(ty == Q4_K)
    });
    let mut all: Vec<_> = of_types.collect();
    // Rows have two units. A workgroup takes 32 rows, and the last one has 16.
    all.push(of(64, None, Some(([Q4_0; 2], 400))).case().verified());
    all.extend(in_parts_of_models());
    let models = [
        (Some(([Q4_0; 2], [64, 4, 1536])), Some(([Q4_0; 2], 1536))),
        (Some(([Q4_K; 2], [7, 6, 1408])), Some(([Q4_K; 2], 2816))),
        (Some(([Q4_0; 2], [4, 1, 96])), None),
        (Some(([Q4_0; 2], [256, 8, 32])), Some(([Q4_0; 2], 48))),
    ];
    for (experts, shared) in models {
        let logits = LOGITS.map(Some);
        all.extend(logits.map(|logits| {
            GateUp {
                logits,
                ..of(2048, experts, shared)
            }
            .case()
            .long()
        }));
    }
    all.push(of(2048, None, Some(([Q4_K; 2], 6144))).case().long());
    // 36 units leave some lanes without, 48 rows some tiles unfilled.
    let pair = [Q4_0, Q8_0];
    let many = [
        of(1152, Some((pair, [68, 3, 48])), Some((pair, 80))),
        of(64, None, Some((pair, 48))),
    ];
    all.extend(many.map(|gate_up| {
        GateUp {
            many: true,
            ..gate_up
        }
        .case()
        .long()
    }));
    all.extend(of_several());
    all
}

/// Logits in parts, which a workgroup adds up. A test runs these on each device.
pub(crate) fn in_parts_of_models() -> Vec<Case> {
    // The threads of a workgroup share the 16 columns of 64 experts evenly, and the 3 columns of 12 experts not.
    let of = |count| GateUp {
        cols: 256,
        experts: Some(([Q4_0; 2], [count, 4, 96])),
        shared: None,
        logits: Some(Logits::InParts),
        flags: None,
        many: false,
    };
    [64, 12].map(|count| of(count).case()).into()
}

fn of_several() -> Vec<Case> {
    let of = |types, used, sizes| OfSeveral {
        types,
        used,
        sizes,
        shared: None,
        many: false,
    };
    let with = |rows, of: OfSeveral| OfSeveral {
        shared: Some(rows),
        ..of
    };
    vec![
        of([Q4_0; 2], 4, [64, 32, 2048]).case().verified(),
        with(96, of([Q4_0; 2], 4, [64, 32, 2048])).case().verified(),
        with(80, of([Q8_0, Q4_0], 3, [8, 48, 1152])).case(),
        // So many that all threads choose.
        of([Q4_0; 2], 8, [256, 16, 256]).case(),
        of([Q4_K, Q6_K], 6, [64, 16, 256]).case(),
        of([Q8_0, Q4_0], 3, [8, 48, 1152]).case(),
        // Units of a token that pass through workgroup memory.
        of([Q4_0, Q8_0], 3, [8, 48, 1792]).case(),
        // Units of a token that are no whole blocks of halves.
        of([Q4_0, Q8_0], 3, [8, 48, 1632]).case(),
        of([Q4_0; 2], 4, [64, 1536, 2048]).case().long(),
        // 36 units leave some lanes without, 48 rows some tiles unfilled.
        OfSeveral {
            many: true,
            ..of([Q4_0, Q8_0], 3, [68, 48, 1152])
        }
        .case()
        .long(),
    ]
}
