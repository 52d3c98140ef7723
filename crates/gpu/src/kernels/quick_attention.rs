//! Attention by the instructions that the processor has, for all families: queries that share keys and values attend to them together.
//!
//! The context is cut into slices that begin at the same rows for every token. The sums of a slice are joined to those of the slices before
//! it. So the values of a token are the same sequence of operations among any other tokens, and however many threads share the work.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use half::f16;

use crate::quant::dot::{Apart, Input, Instructions};
use crate::team::Team;

/// Rows of a slice: keys and values of 128 each fill 128 KiB.
pub(super) const SLICE: usize = 256;
/// Queries of a task at most.
const QUERIES: usize = 64;
/// Queries whose sums are made at once. A task has fewer only if threads would have nothing to do.
const FEW: usize = 8;

/// The heads of a layer, and where their keys and values lie in a row of the cache: the keys of all key heads behind each other, and the
/// values likewise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key heads, a divisor of the query heads. Query head h attends to key head h * kv_heads / heads.
    pub kv_heads: usize,
    /// Values of a key.
    pub key: usize,
    /// Values of a value.
    pub value: usize,
    /// Values of a row.
    pub row: usize,
    /// The place of the first key head's value in a row. Its key is at 0.
    pub first_value: usize,
}

impl Heads {
    /// The widths of keys and of values in whole vectors of 32.
    fn widths(&self) -> [usize; 2] {
        [self.key, self.value].map(|n| n.next_multiple_of(32))
    }

    /// The places of the key and of the value of a key head in a row.
    fn places(&self, head: usize) -> [usize; 2] {
        [head * self.key, self.first_value + head * self.value]
    }

    /// The keys and the values of a key head in rows of the cache: there, where it is the only one, or copied to `scratch`. Copies lie beside
    /// each other, and are filled up with zeros to whole vectors. They are read once for every few queries. In the cache of the model they
    /// would often lie a power of two apart, for which a processor's caches have few places.
    fn find<'a>(&self, head: usize, rows: &'a [f16], scratch: &'a mut Vec<f16>) -> [Apart<'a>; 2] {
        let places @ [of_key, of_value] = self.places(head);
        let widths @ [key, value] = self.widths();
        if self.kv_heads == 1 && widths == [self.key, self.value] {
            return places.map(|first| Apart {
                values: &rows[first..],
                stride: self.row,
            });
        }
        let stride = key + value;
        scratch.resize(rows.len() / self.row * stride, f16::ZERO);
        let both = rows.chunks_exact(self.row);
        for (row, to) in both.zip(scratch.chunks_exact_mut(stride)) {
            to[..self.key].copy_from_slice(&row[of_key..][..self.key]);
            to[key..][..self.value].copy_from_slice(&row[of_value..][..self.value]);
        }
        [0, key].map(|first| Apart {
            values: &scratch[first..],
            stride,
        })
    }
}

/// A query of one token and head.
#[derive(Clone, Copy)]
struct Query<'a> {
    /// Its values, filled up with zeros to whole vectors.
    floats: &'a [f32],
    /// The rows that it attends to.
    seen: usize,
}

impl Query<'_> {
    /// The rows of a slice that it attends to.
    fn seen_of(&self, slice: usize) -> usize {
        self.seen.saturating_sub(slice * SLICE).min(SLICE)
    }
}

/// Queries that attend to one key head, in the order of their tokens.
struct Set<'a> {
    head: usize,
    queries: Vec<Query<'a>>,
}

impl Set<'_> {
    /// The slices that its last query attends to.
    fn slices(&self) -> Range<usize> {
        0..self.queries.last().map_or(0, |q| q.seen.div_ceil(SLICE))
    }
}

/// The sums of queries over some rows.
struct Sums {
    /// The values with their weights, (queries, width).
    values: Vec<f32>,
    /// The greatest score of each query, and the sum of its weights, which are e^(score - greatest).
    stats: Vec<[f32; 2]>,
}

impl Sums {
    /// Adds the sums over the rows behind.
    fn join(&mut self, behind: &Self) {
        let width = self.values.len() / self.stats.len();
        let own = self.values.chunks_exact_mut(width).zip(&mut self.stats);
        let others = behind.values.chunks_exact(width).zip(&behind.stats);
        for ((values, [most, sum]), (more, [other, weights])) in own.zip(others) {
            if *weights == 0.0 {
                // The query attends to none of them.
                continue;
            }
            let greatest = most.max(*other);
            let [own, others] = [*most, *other].map(|most| (most - greatest).exp());
            let pairs = values.iter_mut().zip(more);
            pairs.for_each(|(value, more)| *value = *value * own + more * others);
            (*most, *sum) = (greatest, *sum * own + weights * others);
        }
    }
}

/// The values of queries, from the sums over all slices in order.
fn finish(mut slices: impl Iterator<Item = Sums>, out: Vec<&mut [f32]>) {
    let Some(mut all) = slices.next() else {
        return;
    };
    slices.for_each(|behind| all.join(&behind));
    let width = all.values.len() / all.stats.len();
    let sums = all.values.chunks_exact(width).zip(&all.stats);
    for (out, (values, [_, sum])) in out.into_iter().zip(sums) {
        let norm = 1.0 / sum;
        let pairs = out.iter_mut().zip(values);
        pairs.for_each(|(out, value)| *out = value * norm);
    }
}

/// The heads, the cache and the factor of scores, which the sums of all slices share.
struct Context<'a> {
    heads: Heads,
    cache: &'a [f16],
    scale: f32,
    instructions: Instructions,
}

impl Context<'_> {
    /// The sums of a set over the rows of a slice. `scratch` keeps its memory from one to the next of the same set.
    fn sums(&self, set: &Set<'_>, slice: usize, scratch: &mut Vec<f16>) -> Sums {
        let (heads, queries) = (self.heads, &set.queries);
        let n = queries.iter().map(|q| q.seen_of(slice)).max();
        let n = n.unwrap_or_default();
        let rows = &self.cache[slice * SLICE * heads.row..][..n * heads.row];
        let [keys, values] = heads.find(set.head, rows, scratch);
        let mut weights = vec![0.0; queries.len() * n];
        let inputs = queries
            .iter()
            .map(|Query { floats, .. }| Input { floats, bytes: &[] });
        let inputs: Vec<Input<'_>> = inputs.collect();
        let mut scores: Vec<&mut [f32]> = weights.chunks_exact_mut(n).collect();
        self.instructions.multiply_apart(keys, &inputs, &mut scores);
        let stats = queries.iter().zip(scores).map(|(query, scores)| {
            let seen = &mut scores[..query.seen_of(slice)];
            self.instructions.exponentials(seen, self.scale)
        });
        let stats = stats.collect();
        let weights = queries.iter().zip(weights.chunks_exact(n));
        let weights = weights.map(|(query, weights)| &weights[..query.seen_of(slice)]);
        let weights: Vec<&[f32]> = weights.collect();
        let [_, value] = heads.widths();
        let mut sums = vec![0.0; queries.len() * value];
        let mut places: Vec<&mut [f32]> = sums.chunks_exact_mut(value).collect();
        let mut places = &mut places[..];
        for weights in weights.chunk_by(|a, b| a.len() == b.len()) {
            let (these, others) = places.split_at_mut(weights.len());
            places = others;
            self.instructions.add_rows(values, weights, these);
        }
        Sums {
            values: sums,
            stats,
        }
    }
}

/// Causal attention of T tokens at positions `pos..pos + T` over the `cache` (n_ctx, row). `queries` is (T, heads, key) and `out` (T, heads,
/// value).
///
/// # Panics
/// If a size does not fit the others or the cache ends before `pos + T`.
pub(super) fn attend(
    queries: &[f32],
    cache: &[f16],
    pos: usize,
    heads: Heads,
    scale: f32,
    out: &mut [f32],
) {
    attend_by(Team::all(), queries, cache, pos, heads, scale, out);
}

/// [`attend`] by the threads of a team.
fn attend_by(
    team: &Team,
    queries: &[f32],
    cache: &[f16],
    pos: usize,
    heads: Heads,
    scale: f32,
    out: &mut [f32],
) {
    let count = queries.len() / heads.key;
    assert_eq!(out.len(), count * heads.value, "{count} queries");
    let n_tokens = count / heads.heads;
    let wanted = 2 * team.threads();
    let slices = (pos + n_tokens).div_ceil(SLICE);
    let at_once = match count / wanted {
        0..FEW => (count * slices / wanted).clamp(1, FEW),
        many => many.min(QUERIES) / FEW * FEW,
    };
    let filled = filled(queries, heads);
    let mut sets = sets(&filled, pos, heads, at_once, out);
    // The longest first.
    sets.sort_by_key(|(set, _)| Reverse(set.slices().end));
    let context = &Context {
        heads,
        cache,
        scale,
        instructions: Instructions::best(),
    };
    if slices == 1 || sets.len() >= wanted {
        team.each(sets, |(set, out)| {
            let mut scratch = vec![];
            let sums = set.slices().map(|i| context.sums(&set, i, &mut scratch));
            finish(sums, out);
        });
        return;
    }
    let each = (sets.len() * slices).div_ceil(wanted);
    let sums = sets.iter().map(|(set, _)| set.slices().map(|_| None));
    let mut sums: Vec<Vec<Option<Sums>>> = sums.map(Iterator::collect).collect();
    let parts = sets.iter().zip(&mut sums).flat_map(|((set, _), sums)| {
        let parts = sums.chunks_mut(each).enumerate();
        parts.map(move |(i, sums)| (set, i * each, sums))
    });
    team.each(parts.collect(), |(set, first, sums)| {
        let mut scratch = vec![];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = Some(context.sums(set, first + i, &mut scratch));
        }
    });
    let whole = sets.into_iter().zip(sums).collect();
    team.each(whole, |((_, out), sums)| {
        finish(sums.into_iter().flatten(), out);
    });
}

/// The queries, each filled up with zeros to whole vectors.
fn filled(queries: &[f32], heads: Heads) -> Cow<'_, [f32]> {
    let [width, _] = heads.widths();
    if width == heads.key {
        return Cow::Borrowed(queries);
    }
    let mut filled = vec![0.0; queries.len() / heads.key * width];
    let both = queries.chunks_exact(heads.key);
    for (query, to) in both.zip(filled.chunks_exact_mut(width)) {
        to[..heads.key].copy_from_slice(query);
    }
    Cow::Owned(filled)
}

/// Sets of up to `at_once` queries (T, heads, width), with the places of their values.
fn sets<'a>(
    queries: &'a [f32],
    pos: usize,
    heads: Heads,
    at_once: usize,
    out: &'a mut [f32],
) -> Vec<(Set<'a>, Vec<&'a mut [f32]>)> {
    let group = heads.heads / heads.kv_heads;
    let [width, _] = heads.widths();
    let mut of_heads: Vec<Vec<_>> = (0..heads.kv_heads).map(|_| vec![]).collect();
    let both = queries.chunks_exact(width);
    let both = both.zip(out.chunks_exact_mut(heads.value));
    for (i, (floats, out)) in both.enumerate() {
        let seen = pos + i / heads.heads + 1;
        of_heads[i % heads.heads / group].push((Query { floats, seen }, out));
    }
    let mut sets = vec![];
    for (head, queries) in of_heads.into_iter().enumerate() {
        let mut queries = queries.into_iter();
        loop {
            let (queries, out): (Vec<_>, Vec<_>) = queries.by_ref().take(at_once).unzip();
            if queries.is_empty() {
                break;
            }
            sets.push((Set { head, queries }, out));
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Rng, assert_close};
    use half::vec::HalfFloatVecExt;

    /// The definition in f64.
    fn exact(q: &[f32], cache: &[f16], pos: usize, heads: Heads, scale: f32) -> Vec<f64> {
        let mut all = vec![];
        for (i, q) in q.chunks_exact(heads.key).enumerate() {
            let head = i % heads.heads / (heads.heads / heads.kv_heads);
            let rows = cache
                .chunks_exact(heads.row)
                .take(pos + i / heads.heads + 1);
            let [of_key, of_value] = heads.places(head);
            let weights = rows.clone().map(|row| {
                let terms = q.iter().zip(&row[of_key..]);
                let score: f64 = terms.map(|(q, k)| f64::from(*q) * k.to_f64()).sum();
                (score * f64::from(scale)).exp()
            });
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            for j in 0..heads.value {
                let terms = rows.clone().zip(&weights);
                let terms = terms.map(|(row, w)| w / sum * row[of_value + j].to_f64());
                all.push(terms.sum());
            }
        }
        all
    }

    /// Heads of grouped-query attention, or of latent attention, whose values are the beginning of its keys.
    fn any_heads(rng: &mut Rng) -> Heads {
        let widths = [12, 32, 64, 80, 96, 128];
        let [key, value] = [(); 2].map(|()| widths[rng.below(6)]);
        let kv_heads = [1, 2, 3][rng.below(3)];
        let heads = kv_heads * [1, 3, 4, 6, 7, 8, 16][rng.below(7)];
        let (row, first_value) = match kv_heads {
            1 => (key.max(value), 0),
            _ => (kv_heads * (key + value), kv_heads * key),
        };
        Heads {
            heads,
            kv_heads,
            key,
            value,
            row,
            first_value,
        }
    }

    #[test]
    fn values_are_those_of_the_definition_by_any_threads_in_any_split() {
        let mut rng = Rng::fresh();
        let teams = [1, 2, 5, 40].map(Team::new);
        for _ in 0..6 {
            let heads = any_heads(&mut rng);
            // Slices are begun, full, and ended by tokens of one call.
            let pos = [0, rng.below(40), SLICE - 2, 3 * SLICE + rng.below(40)][rng.below(4)];
            let n_tokens = [1, 2 + rng.below(8), 40][rng.below(3)];
            let q = rng.normals(n_tokens * heads.heads * heads.key);
            let mut cache = Vec::from_f32_slice(&rng.normals((pos + n_tokens) * heads.row));
            // Nobody reads rows of tokens that are not there.
            cache.resize(cache.len() + 3 * heads.row, f16::NAN);
            let attended = |team: &Team, first: usize, tokens: usize| {
                let (query, width) = (heads.heads * heads.key, heads.heads * heads.value);
                let mut out = vec![f32::NAN; tokens * width];
                let q = &q[first * query..][..tokens * query];
                attend_by(team, q, &cache, pos + first, heads, 0.1, &mut out);
                out
            };
            let whole = attended(&teams[0], 0, n_tokens);
            assert_close(&whole, &exact(&q, &cache, pos, heads, 0.1), 1e-12, "values");
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for team in &teams {
                let first = rng.below(n_tokens);
                let mut parts = attended(team, 0, first);
                parts.extend(attended(team, first, n_tokens - first));
                assert!(bits(&parts) == bits(&whole), "{heads:?} {pos} {n_tokens}");
            }
        }
    }

    #[test]
    fn values_behind_what_is_no_number_are_none() {
        let heads = Heads {
            heads: 1,
            kv_heads: 1,
            key: 32,
            value: 32,
            row: 64,
            first_value: 32,
        };
        for broken in [0, SLICE - 1, SLICE + 3] {
            let mut cache = vec![f16::ONE; 2 * SLICE * heads.row];
            cache[broken * heads.row] = f16::NAN;
            let mut out = vec![0.0; 2 * 32];
            // The first of two tokens ends before the row, or sees it.
            let pos = broken.saturating_sub(1);
            attend(&[1.0; 64], &cache, pos, heads, 1.0, &mut out);
            assert_eq!(out[0].is_nan(), broken == 0, "{broken}");
            assert!(out[32].is_nan(), "{broken}");
        }
    }
}
