//! Experts that are read from the file before a layer asks for them. A long chunk of a prompt asks for nearly all experts in each layer, so those
//! of the next one are known before it has chosen any. Threads read them while the device computes.

use crate::gpu::memory::reading;
use crate::model::{Mlp, Weight};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// The most bytes of the host's memory that such experts take.
const MOST_BYTES: u64 = 256 << 20;
/// The share of the experts without slots that a layer has to ask for, so that those of the next one are read ahead.
const LEAST_SHARE: [usize; 2] = [3, 4];

/// A weight of a layer, of the three that experts have, and a group of it.
type Key = (usize, u32);
/// The bytes of experts, as the file has them.
pub(super) type Bytes = HashMap<Key, Vec<u8>>;

/// Reads that nobody has asked for yet.
#[derive(Default)]
pub(super) struct Ahead {
    reading: Option<Reading>,
    /// Buffers of earlier reads, since fresh memory costs page faults.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The reads for a layer.
struct Reading {
    layer: usize,
    /// Whether reads that have not begun are to be left out.
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Bytes>,
}

/// Whether so many asked experts are nearly all of those without slots.
pub(super) fn are_nearly_all(asked: usize, without_slots: usize) -> bool {
    asked > 0 && asked * LEAST_SHARE[1] >= without_slots * LEAST_SHARE[0]
}

impl Ahead {
    /// Begins to read `groups` of the experts of `layer`, as many as there is room for. Where no thread can be started nothing is read.
    pub(super) fn begin(&mut self, layer: usize, experts: &Mlp, groups: impl Iterator<Item = u32>) {
        let weights = experts.weights();
        let bytes = |weight: &&Weight| weight.byte_len() / (weight.groups as u64).max(1);
        let of_expert: u64 = weights.iter().map(bytes).sum();
        let most = (MOST_BYTES / of_expert.max(1)) as usize;
        let one = |group| (0..weights.len()).map(move |which| (which, group));
        let reads: Vec<Key> = groups.take(most).flat_map(one).collect();
        if reads.is_empty() {
            return;
        }
        let weights = weights.map(Weight::clone);
        let (stop, spare) = (Arc::default(), Arc::clone(&self.spare));
        let stopped: Arc<AtomicBool> = Arc::clone(&stop);
        let read = move |(which, group): Key| {
            if stopped.load(Ordering::Relaxed) {
                return None;
            }
            let weight: &Weight = &weights[which];
            let mut bytes = lock(&spare).pop().unwrap_or_default();
            let rows = group as usize * weight.rows..(group as usize + 1) * weight.rows;
            let length = weight.rows * weight.row_bytes();
            // A read that fails is tried again when it is asked for, and tells its error then.
            let at = weight.read_rows(rows, &mut bytes).ok()?.as_ptr();
            // Bytes in the program's own memory need no reading.
            let was_read = at == bytes.as_ptr();
            bytes.truncate(length);
            was_read.then_some(((which, group), bytes))
        };
        let work = move || reading(|| reads.into_par_iter().filter_map(read).collect());
        let thread = thread::Builder::new().name("read ahead".to_owned());
        self.reading = thread.spawn(work).ok().map(|thread| Reading {
            layer,
            stop,
            thread,
        });
    }

    /// Ends what is read, and returns it if it is for this layer.
    pub(super) fn take(&mut self, layer: usize) -> Bytes {
        let Some(reading) = self.reading.take() else {
            return Bytes::new();
        };
        reading.stop.store(true, Ordering::Relaxed);
        let read = reading.thread.join().unwrap_or_default();
        match reading.layer == layer {
            true => read,
            false => Bytes::new(),
        }
    }

    /// Keeps the buffers of what was read for later reads.
    pub(super) fn keep(&mut self, read: Bytes) {
        lock(&self.spare).extend(read.into_values());
    }

    /// Gives the memory of earlier reads back.
    pub(super) fn forget(&mut self) {
        lock(&self.spare).clear();
    }

    /// Waits until all is read.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        while let Some(reading) = &self.reading
            && !reading.thread.is_finished()
        {
            thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.take(usize::MAX);
    }
}

fn lock(spare: &Mutex<Vec<Vec<u8>>>) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
    spare.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;

    #[test]
    fn a_layer_that_asks_for_most_of_what_has_no_slot_is_followed() {
        for (asked, without, expected) in
            [(48, 64, true), (47, 64, false), (4, 4, true), (0, 0, false)]
        {
            assert_eq!(
                are_nearly_all(asked, without),
                expected,
                "{asked} of {without}"
            );
        }
    }

    #[test]
    fn what_is_in_memory_or_of_another_layer_is_not_kept() {
        let weight = || Weight::from_bytes("w", GgmlType::F32, 4, 1, 32, vec![0; 512]);
        let experts = Mlp {
            gate: weight(),
            up: weight(),
            down: weight(),
        };
        let mut ahead = Ahead::default();
        ahead.begin(3, &experts, 0..4);
        ahead.settle();
        // The bytes of such weights need no reading.
        assert!(ahead.take(3).is_empty());
        assert!(ahead.take(3).is_empty(), "nothing is read twice");
    }
}
