//! Which dispatches of a step need not wait for each other, and what to tell wgpu so that they do not.
//!
//! wgpu puts a barrier before the first dispatch that reads a buffer written earlier in the pass, and a barrier on Vulkan and DX12
//! waits for everything before it. So of two dispatches side by side that read the outputs of different producers, the second
//! would wait for the first. Where that happens, all buffers that the dispatches side by side read are made readable before
//! the first of them: one barrier for all.
//!
//! Likewise before a dispatch that writes a buffer which the pass has used before, whatever for, and that cannot be told ahead: a
//! write after a write waits, even of nothing. But the first use of a buffer in a pass needs no barrier within it, since what
//! passes use is made ready between them, at once. So where such a buffer is used anew side by side with others, a new pass begins:
//! in prompts, whose layers share their buffers, one for each layer.
//!
//! A dispatch that waits for nothing joins the level before it. One that is to stand beside what follows says so, and begins a level. It
//! need not wait itself: what the dispatches beside it read is made readable before it, so that none of these waits for it.

#![expect(
    clippy::mutable_key_type,
    reason = "buffers are equal and hash by identity, whatever happens to them"
)]

use super::interface::Resolved;
use super::shader::Access;
use crate::gpu::buffer::Buffer;
use std::collections::{HashMap, HashSet};

/// The buffers that a dispatch reads and writes.
#[derive(Default)]
struct Uses<'a> {
    reads: HashSet<&'a Buffer>,
    writes: HashSet<&'a Buffer>,
}

impl<'a> Uses<'a> {
    fn of(call: &'a Resolved) -> Self {
        let mut uses = Self::default();
        let mut add = |access, buffer| match access {
            Access::Read => uses.reads.insert(buffer),
            Access::Write => uses.writes.insert(buffer),
        };
        for (access, range) in call.spec.access.iter().zip(&call.bindings) {
            add(*access, &range.buffer);
        }
        if let Some((index, ranges)) = &call.alternatives {
            for range in ranges {
                add(call.spec.access[*index], &range.buffer);
            }
        }
        uses.reads.extend(&call.counts);
        uses
    }

    /// Whether this dispatch, which is later, must wait for the `other`.
    fn waits_for(&self, other: &Self) -> bool {
        !self.reads.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.reads)
    }
}

/// A step cut into runs of dispatches that do not wait for each other.
pub(super) struct Levels {
    /// The buffers to make readable before each dispatch.
    pub readable: Vec<Vec<Buffer>>,
    /// The number of the run of each dispatch.
    pub number: Vec<usize>,
    /// The number of the pass of each dispatch.
    pub pass: Vec<usize>,
}

impl Levels {
    /// The levels of the dispatches `calls` in this order.
    pub fn of(calls: &[Resolved]) -> Self {
        let uses: Vec<_> = calls.iter().map(Uses::of).collect();
        let mut readable = vec![vec![]; calls.len()];
        let (mut number, mut pass) = (vec![], vec![]);
        let (mut count, mut passes) = (0, 0);
        // Whether the last use of a buffer in the pass was a write.
        let mut written: HashMap<&Buffer, bool> = HashMap::new();
        let mut first = 0;
        while first < calls.len() {
            let mut end = first + 1;
            let joins = |i: usize| {
                !calls[i].begins_level && !uses[first..i].iter().any(|u| uses[i].waits_for(u))
            };
            while end < calls.len() && joins(end) {
                end += 1;
            }
            let level = &uses[first..end];
            let mut others = level[1..].iter().flat_map(|u| &u.writes);
            if others.any(|buffer| written.contains_key(*buffer)) {
                passes += 1;
                written.clear();
            }
            let fresh = |buffer: &&Buffer| written.get(*buffer) == Some(&true);
            let others = level[1..].iter().flat_map(|u| &u.reads);
            let late = others
                .copied()
                .any(|buffer| fresh(&buffer) && !level[0].reads.contains(buffer));
            if late {
                let all: HashSet<_> = level.iter().flat_map(|u| &u.reads).copied().collect();
                readable[first] = all.into_iter().filter(fresh).cloned().collect();
            }
            for u in level {
                written.extend(u.reads.iter().map(|buffer| (*buffer, false)));
                written.extend(u.writes.iter().map(|buffer| (*buffer, true)));
            }
            number.extend(std::iter::repeat_n(count, end - first));
            pass.extend(std::iter::repeat_n(passes, end - first));
            count += 1;
            first = end;
        }
        Self {
            readable,
            number,
            pass,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::{Range, Role};
    use super::super::pipeline::Spec;
    use super::super::testing::gpus;
    use super::*;
    use crate::gpu::shader::Variant;
    use crate::gpu::wait::Wait;

    /// A dispatch that reads (`r`) or writes (`w`) each of `buffers`.
    fn call(access: &str, buffers: &[&Buffer]) -> Resolved {
        let access = access.bytes().map(|b| match b {
            b'w' => Access::Write,
            _ => Access::Read,
        });
        let spec = Spec {
            kernel: "none",
            source: "",
            variant: Variant::default(),
            access: access.collect(),
        };
        let ranges = buffers.iter().map(|b| Range::whole(b)).collect();
        Resolved {
            spec,
            bindings: ranges,
            alternatives: None,
            params: vec![],
            counts: None,
            begins_level: false,
        }
    }

    #[test]
    fn what_stands_side_by_side_becomes_readable_at_once() {
        let Some(gpu) = gpus().first() else { return };
        let make = || {
            gpu.storage("test", 16, Role::Floats)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let [x, a, b, q, c, d] = std::array::from_fn(|_| make());
        let calls = [
            call("rw", &[&x, &a]), // 0: a and b side by side
            call("rw", &[&x, &b]),
            call("rw", &[&a, &q]), // 2: alone, since the next reads q
            call("rw", &[&q, &c]), // 3: c from q, d from b: b must be readable before
            call("rrw", &[&q, &b, &d]),
            call("rrw", &[&c, &d, &x]), // 5: writes what all began with
        ];
        let levels = Levels::of(&calls);
        assert_eq!(levels.number, [0, 0, 1, 2, 2, 3]);
        let made: Vec<_> = levels.readable.iter().map(Vec::len).collect();
        assert_eq!(made, [0, 0, 0, 2, 0, 0]);
        assert!(levels.readable[3].contains(&q) && levels.readable[3].contains(&b));
    }

    #[test]
    fn buffers_written_anew_side_by_side_begin_a_pass() {
        let Some(gpu) = gpus().first() else { return };
        let make = || {
            gpu.storage("test", 16, Role::Floats)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let [x, a, b] = std::array::from_fn(|_| make());
        let layer = [
            call("rw", &[&x, &a]),
            call("rw", &[&x, &b]),
            call("rrw", &[&a, &b, &x]),
        ];
        let levels = Levels::of(&[&layer[..], &layer[..], &layer[2..]].concat());
        assert_eq!(levels.number, [0, 0, 1, 2, 2, 3, 4]);
        assert_eq!(levels.pass, [0, 0, 0, 1, 1, 1, 1]);
        // Buffers that a pass uses first are made ready before the pass.
        assert!(levels.readable[3].is_empty());
        assert_eq!(levels.readable[2].len(), 0, "alone in its run");
    }

    #[test]
    fn one_dispatch_after_the_other_needs_nothing() {
        let Some(gpu) = gpus().first() else { return };
        let make = || {
            gpu.storage("test", 16, Role::Floats)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let [a, b] = std::array::from_fn(|_| make());
        let levels = Levels::of(&[call("rw", &[&a, &b]), call("rw", &[&b, &a])]);
        assert_eq!(levels.number, [0, 1]);
        assert!(levels.readable.iter().all(Vec::is_empty));
        assert_eq!(levels.pass, [0, 0]);
        let same = Levels::of(&[call("w", &[&a]), call("w", &[&a])]);
        assert_eq!(
            same.number,
            [0, 1],
            "two writes of a buffer keep their order"
        );
    }

    #[test]
    fn what_begins_a_level_stands_beside_what_follows() {
        let Some(gpu) = gpus().first() else { return };
        let make = || {
            gpu.storage("test", 16, Role::Floats)
                .wait()
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let [x, a, b, host, room, counts] = std::array::from_fn(|_| make());
        let fill = call("rw", &[&host, &room]);
        let counted = Resolved {
            counts: Some(counts.clone()),
            ..call("rw", &[&a, &b])
        };
        let first = call("rww", &[&x, &a, &counts]);
        let joins = [first.clone(), fill.clone(), counted.clone()];
        assert_eq!(Levels::of(&joins).number, [0, 0, 1]);
        let begins = Resolved {
            begins_level: true,
            ..fill
        };
        let levels = Levels::of(&[first, begins, counted]);
        assert_eq!(levels.number, [0, 1, 1]);
        assert_eq!(levels.pass, [0, 0, 0]);
        let made: Vec<_> = levels.readable.iter().map(Vec::len).collect();
        assert_eq!(made, [0, 2, 0], "before the first of the level");
        assert!(levels.readable[1].contains(&a) && levels.readable[1].contains(&counts));
    }
}
