//! The shaders that models can ask for, as data.

use crate::gpu::geometry::{Geometry, Site};
use crate::gpu::machine::Machine;
use crate::gpu::pipeline::Spec;
use crate::gpu::{Coop, Tier, small_halves};
use crate::kernels::rope_cache::RotationShape;
use crate::kernels::token_matvec::Source;
use crate::kernels::{
    MlaDims, attention, attention_coop, attention_heads, attention_merge, attention_short, compose,
    expand_kv, expand_kv_coop, expert_rows, gate_up, gemm, matvec, moe_combine, moe_down,
    prompt_attention, prompt_attention_coop, read, rope_cache, router, sample, token_absorb,
    token_beside, token_embed, token_gate_up, token_matvec, token_moe_down, token_queries,
    token_router, tokens_at_once,
};
use crate::model::{Experts, Gating};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use std::collections::HashSet;

/// What of a model its shaders depend on.
struct Shape {
    dims: MlaDims,
    v_head: u32,
    vocab: u32,
    /// The experts, and whether there is a bias for their choice.
    experts: Option<(Experts, bool)>,
}

fn shape(heads: usize, nope: usize, v_head: u32, vocab: u32) -> Shape {
    let dims = MlaDims {
        heads,
        nope,
        rope: 64,
        kv_lora: 512,
    };
    Shape {
        dims,
        v_head,
        vocab,
        experts: None,
    }
}

impl Shape {
    fn kv(&self) -> expand_kv::KvDims {
        expand_kv::KvDims {
            mla: self.dims,
            v: self.v_head as usize,
        }
    }

    fn experts(self, count: usize, used: usize, gating: Gating, norm: bool, bias: bool) -> Self {
        let experts = Experts {
            count,
            used,
            shared_count: 1,
            feed_forward_length: 256,
            gating,
            weights_norm: norm,
            weights_scale: 1.0,
        };
        Self {
            experts: Some((experts, bias)),
            ..self
        }
    }
}

/// GLM-4.7-Flash, DeepSeek-V2-Lite, Youtu-LLM-2B and the model inside the program.
fn models() -> [Shape; 4] {
    [
        shape(20, 192, 256, 154_880).experts(64, 4, Gating::Sigmoid, true, true),
        shape(16, 128, 128, 102_400).experts(64, 6, Gating::Softmax, false, false),
        shape(16, 128, 128, 128_256),
        shape(4, 64, 128, 4096).experts(8, 2, Gating::Sigmoid, true, true),
    ]
}

/// Every pipeline that these models can ask for, whatever the types of their weights, each once.
fn permutations() -> Vec<Spec> {
    let models = models();
    let mut specs: Vec<_> = read::AT_ONCE.map(read::spec).to_vec();
    for model in &models {
        for queries in [false, true] {
            specs.extend([false, true].map(|split| rope_cache::spec(model.dims, queries, split)));
        }
        specs.push(attention::spec(model.dims));
        specs.push(expand_kv::spec(model.kv()));
        specs.push(prompt_attention::spec(model.kv()));
        use attention_merge::Output::{Bytes, Floats, Halves};
        specs.extend([Floats, Bytes, Halves].map(|out| attention_merge::spec(model.dims, out)));
        specs.extend(sample::specs(model.vocab));
        if let Some((experts, bias)) = &model.experts {
            specs.extend([false, true].map(|split| router::spec(experts, *bias, split)));
        }
    }
    for (i, &ty) in GgmlType::ALL.iter().enumerate() {
        // A kernel that reads two types imports two modules that share no code, so a pair can only clash by names. Each
        // type with itself clashes most, and with its successor every type stands in both places: 30 pairs instead of 225.
        let successor = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
        for other in [ty, successor] {
            // Experts are not shared between tokens, so their workgroups take one at a time.
            specs.push(gate_up::spec([ty, other], 1, true));
            specs.push(compose::spec(Some(ty), other, GgmlType::Q8_0));
        }
        specs.push(compose::spec(Some(ty), successor, GgmlType::F16));
        for out in [GgmlType::Q8_0, GgmlType::F16] {
            specs.push(compose::spec(None, ty, out));
        }
        for model in &models {
            for (k_b, matrices) in [(false, false), (false, true), (true, false), (true, true)] {
                specs.push(expand_kv::weights_spec(ty, k_b, model.kv(), matrices));
            }
        }
        for max_tokens in [1, 8] {
            let at_once = tokens_at_once(max_tokens);
            for extra in [
                matvec::Extra::None,
                matvec::Extra::Norm,
                matvec::Extra::Residual,
            ] {
                specs.push(matvec::spec(ty, at_once, None, extra));
            }
            if max_tokens == 1 {
                for model in &models {
                    let rotation = RotationShape {
                        first_row: (model.dims.heads * model.dims.kv_lora) as u32,
                        rope: model.dims.rope as u32,
                    };
                    let extra = matvec::Extra::NormRotate(rotation);
                    specs.push(matvec::spec(ty, at_once, None, extra));
                }
            }
            for model in &models {
                // attn_k_b and attn_v_b.
                for rows in [model.dims.kv_lora as u32, model.v_head] {
                    specs.push(matvec::spec(ty, at_once, Some(rows), matvec::Extra::None));
                }
            }
            for other in [ty, successor] {
                specs.push(gate_up::spec([ty, other], at_once, false));
            }
        }
        for (experts, _) in models.iter().filter_map(|m| m.experts.as_ref()) {
            specs.push(moe_down::spec(ty, experts.used as u32));
        }
    }
    specs.extend(products(gemm::Form::Float { eight: false }));
    for (experts, _) in models.iter().filter_map(|m| m.experts.as_ref()) {
        let [count, used] = [experts.count, experts.used].map(|n| n as u32);
        specs.extend([false, true].map(|either| moe_combine::spec(used, either)));
        for heights in [&[16][..], &[32], &[64], &[128], &[32, 64], &[64, 128]] {
            specs.push(expert_rows::spec(count, used, heights));
        }
    }
    let mut seen = HashSet::new();
    specs.retain(|spec| seen.insert(spec.clone()));
    specs
}

/// The geometries of a product that stand for all: the defaults for subgroups of 8 lanes and of 32, and the narrowest and
/// the widest that could be chosen instead.
fn geometries(site: &Site) -> Vec<Geometry> {
    let machines = [8, 32].map(|lanes| Machine {
        lanes,
        ..Machine::H200
    });
    let mut all: Vec<_> = machines
        .iter()
        .map(|m| site.default_geometry(*m).expect("a geometry for it"))
        .collect();
    let candidates = site.candidates(machines[1]);
    all.extend(candidates.first());
    all.extend(candidates.last());
    all
}

/// The products of a prompt: every type in the largest tile, every tile with one type.
fn products(form: gemm::Form) -> Vec<Spec> {
    let mut specs = vec![];
    for pair in [false, true] {
        let tiles = [gemm::tiles, gemm::expert_tiles].map(|of| of(form, pair));
        let tiles = tiles.into_iter().flatten();
        // Where columns are no whole stages of several units.
        let tiles = tiles.flat_map(|tile| [*tile, gemm::Tile { units: 1, ..*tile }]);
        for (i, tile) in tiles.enumerate() {
            for (k, &ty) in GgmlType::ALL.iter().enumerate() {
                if i > 0 && ty != GgmlType::Q4_0 {
                    continue;
                }
                let other = GgmlType::ALL[(k + 1) % GgmlType::ALL.len()];
                let plain = gemm::Shape {
                    tile,
                    experts: None,
                    residual: false,
                    split: false,
                    vectors: matches!(form, gemm::Form::Matrix(_)),
                    exclusive: false,
                };
                let experts = gemm::Shape {
                    experts: Some((6, pair)),
                    ..plain
                };
                for up in if pair {
                    vec![Some(ty), Some(other)]
                } else {
                    vec![None]
                } {
                    specs.push(gemm::spec(form, ty, up, plain));
                    specs.push(gemm::spec(form, ty, up, experts));
                }
                if !pair {
                    let residual = gemm::Shape {
                        residual: true,
                        ..plain
                    };
                    let split = gemm::Shape {
                        split: true,
                        ..plain
                    };
                    specs.extend([residual, split].map(|s| gemm::spec(form, ty, None, s)));
                    if i == 0 && plain.vectors {
                        let others = [plain, residual].map(|shape| gemm::Shape {
                            vectors: false,
                            exclusive: true,
                            ..shape
                        });
                        specs.extend(others.map(|s| gemm::spec(form, ty, None, s)));
                    }
                }
            }
        }
    }
    specs
}

/// The pipelines of a decoded token whose products prepare their outputs so.
fn token_permutations(activation: Activation) -> Vec<Spec> {
    let mut specs = vec![];
    let models = models();
    let experts: Vec<_> = models.iter().filter_map(|m| m.experts.as_ref()).collect();
    for (i, &ty) in GgmlType::ALL.iter().enumerate() {
        specs.push(token_embed::spec(ty, 64, activation));
        let other = GgmlType::ALL[(i + 1) % GgmlType::ALL.len()];
        let plain = token_matvec::Shape {
            ty,
            groups: 1,
            rows: 576,
            units: 64,
            x_units: 0,
            activation,
            source: Source::Prepared,
            rms: true,
            residual: false,
            y: true,
            prepared: None,
            rotate: None,
            router: None,
            staged: false,
        };
        let qk = token_matvec::Shape {
            rows: 20 * 576,
            units: 24,
            rotate: Some(RotationShape {
                first_row: 20 * 512,
                rope: 64,
            }),
            ..plain
        };
        let head = token_matvec::Shape {
            rows: 154_880,
            ..plain
        };
        let q_a = token_matvec::Shape {
            rows: 768,
            y: false,
            prepared: Some(true),
            ..plain
        };
        let q_b = token_matvec::Shape {
            rows: 5120,
            units: 24,
            prepared: Some(false),
            ..plain
        };
        let k_b = token_matvec::Shape {
            groups: 20,
            rows: 512,
            units: 6,
            x_units: 8,
            rms: false,
            ..plain
        };
        let v_b = token_matvec::Shape {
            rows: 256,
            units: 16,
            x_units: 16,
            y: false,
            prepared: Some(false),
            ..k_b
        };
        let v_b_of_slices = token_matvec::Shape {
            source: Source::Slices,
            ..v_b
        };
        let output = token_matvec::Shape {
            rows: 2048,
            units: 160,
            rms: false,
            residual: true,
            prepared: Some(true),
            ..plain
        };
        let output_and_router = token_matvec::Shape {
            router: Some(64),
            ..output
        };
        let router = token_matvec::Shape {
            rows: 64,
            source: Source::Stream,
            ..plain
        };
        let stages = activation.rounds();
        let staged = |shape| token_matvec::Shape {
            staged: stages,
            ..shape
        };
        for shape in [
            plain,
            head,
            q_a,
            staged(head),
            staged(q_a),
            staged(output),
            output_and_router,
            staged(output_and_router),
            q_b,
            k_b,
            v_b,
            v_b_of_slices,
            output,
            router,
            qk,
        ] {
            let mut geometries = geometries(&shape.site());
            if let Some(experts) = shape.router {
                let bytes = |g: &Geometry| token_matvec::router_bytes(experts, g.tile);
                geometries.retain(|g| bytes(g) <= token_matvec::ROUTER_BYTES);
            }
            specs.extend(geometries.iter().map(|g| token_matvec::spec(g, &shape)));
        }
        let dense = token_gate_up::Shape {
            activation,
            units: 64,
            experts: None,
            shared: Some(([other, ty], 1536)),
            raw_logits: false,
            parts: 1,
            choice: false,
            lanes: 32,
            staged: stages,
        };
        for lanes in [8, 32] {
            let machine = Machine {
                lanes,
                ..Machine::H200
            };
            for (model, units) in [(&models[0], 24), (&models[2], 48), (&models[3], 8)] {
                let shape = token_absorb::Shape {
                    types: [ty, other],
                    units,
                    dims: model.dims,
                    activation,
                    rms: true,
                    cache: false,
                };
                for cache in [false, true] {
                    let shape = token_absorb::Shape { cache, ..shape };
                    let division = shape.division(machine).expect("it suits");
                    specs.push(token_absorb::spec(division, &shape));
                }
            }
        }
        // q_a with kv_a, attn_q with kv_a where prepared values are what it leaves and where they are not.
        for (y, prepared) in [(false, Some(true)), (true, Some(false)), (true, None)] {
            let shape = token_beside::Shape {
                types: [ty, other],
                rows: [768, 576],
                units: 64,
                activation,
                y,
                prepared,
                staged: stages,
            };
            let all = geometries(&shape.site());
            specs.extend(all.iter().map(|g| token_beside::spec(g, &shape)));
        }
        for dims in models.iter().map(|model| model.dims) {
            let shape = token_queries::Shape {
                ty,
                dims,
                activation,
            };
            let all = geometries(&shape.site());
            specs.extend(all.iter().map(|g| token_queries::spec(g, &shape)));
        }
        let mut gate_ups = vec![dense];
        for (e, bias) in &experts {
            let routed = token_gate_up::Shape {
                experts: Some(([ty, other], 1408, e, *bias)),
                choice: true,
                ..dense
            };
            // Too many experts for each lane: the whole workgroup chooses.
            let by_all = token_gate_up::Shape {
                lanes: 4,
                raw_logits: true,
                staged: false,
                ..routed
            };
            let later_part = token_gate_up::Shape {
                shared: None,
                choice: false,
                ..routed
            };
            let raw = token_gate_up::Shape {
                raw_logits: true,
                ..routed
            };
            // Of attn_output with 2048 rows, and of a tile that threads do not divide evenly.
            let in_parts = [128, 90].map(|parts| token_gate_up::Shape { parts, ..raw });
            let by_all_in_parts = token_gate_up::Shape {
                parts: 128,
                ..by_all
            };
            gate_ups.extend([routed, raw, by_all, later_part, by_all_in_parts]);
            gate_ups.extend(in_parts);
        }
        for shape in gate_ups {
            let geometries = geometries(&shape.site());
            specs.extend(geometries.iter().map(|g| token_gate_up::spec(g, &shape)));
        }
        specs.extend([true, false].map(|norm| token_router::spec(512, norm)));
        let all = Some((other, 88));
        for (shared, last, one_part) in [
            (all, true, true),
            (all, true, false),
            (None, true, true),
            (None, false, false),
        ] {
            let shape = token_moe_down::Shape {
                activation,
                ty,
                used: 6,
                rows: 2048,
                units: 44,
                shared,
                last,
                one_part,
                staged: stages,
            };
            let geometries = geometries(&shape.site());
            specs.extend(geometries.iter().map(|g| token_moe_down::spec(g, &shape)));
        }
    }
    let mut seen = HashSet::new();
    specs.retain(|spec| seen.insert(spec.clone()));
    specs
}

/// Every pipeline with a tier that runs it.
pub(super) fn all_permutations() -> Vec<(Spec, Tier)> {
    let shared = permutations();
    // The kernels of prompts are the same in both tiers with subgroups.
    let tiers = [Tier::Plain, Tier::Subgroup];
    let shared = shared
        .into_iter()
        .flat_map(|spec| tiers.map(|tier| (spec.clone(), tier)));
    let token = Tier::ALL.into_iter().flat_map(|tier| {
        // Halves one by one, and in pairs.
        let forms = HashSet::from([false, true].map(|packed| tier.activation(packed)));
        let specs = forms.into_iter().flatten().flat_map(token_permutations);
        specs.map(move |spec| (spec, tier))
    });
    let trial = [(small_halves::spec(), Tier::Subgroup)];
    let products = products(gemm::Form::Float { eight: true }).into_iter();
    let products = products.map(|spec| (spec, Tier::Subgroup));
    let attention = attention_permutations().into_iter();
    let attention = attention.map(|spec| (spec, Tier::Subgroup));
    shared
        .chain(token)
        .chain(trial)
        .chain(products)
        .chain(attention)
        .collect()
}

/// The attention of a token without matrices, on devices with much and with little workgroup memory.
fn attention_permutations() -> Vec<Spec> {
    let mut specs = vec![];
    for dims in models().map(|model| model.dims) {
        for memory in [32 << 10, 16 << 10] {
            let shape = attention_heads::Shape::of(dims, memory).expect("it suits all models");
            specs.push(shape.spec(dims));
        }
        specs.extend([8, 32].map(|lanes| attention_short::spec(dims, lanes).expect("it suits")));
    }
    specs
}

/// The pipelines for devices with cooperative matrices, and whether Metal has them in this form.
pub(super) fn coop_permutations() -> Vec<(Spec, bool)> {
    let dims = models().map(|m| m.dims);
    let each = dims
        .iter()
        .flat_map(|dims| attention_coop::SHAPES.map(|shape| (shape, *dims)));
    let mut all: Vec<_> = each
        // The shape for 8 lanes is that of software, for tests.
        .filter(|(shape, dims)| shape.coop.lanes == 32 && shape.fits(*dims))
        // Metal loads matrices through pointers to numbers.
        .map(|(shape, dims)| (shape.spec(dims), shape.coop.size == 8 && !shape.vectors))
        .collect();
    for (size, lanes) in [(16, 32), (8, 32), (8, 8)] {
        let form = gemm::Form::Matrix(Coop { size, lanes });
        let metal = (size, lanes) == (8, 32);
        all.extend(products(form).into_iter().map(|spec| (spec, metal)));
    }
    for kv in models().map(|model| model.kv()) {
        for shape in expand_kv_coop::SHAPES {
            all.push((shape.spec(kv), shape.coop.size == 8 && !shape.vectors));
        }
        for shape in prompt_attention_coop::SHAPES {
            if shape.fits(kv) {
                all.push((shape.spec(kv), shape.coop.size == 8 && !shape.vectors));
            }
        }
    }
    let mut seen = HashSet::new();
    all.retain(|(spec, _)| seen.insert(spec.clone()));
    all
}
