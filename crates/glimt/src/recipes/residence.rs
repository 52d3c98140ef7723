//! Where the experts of a model lie: on the device, or in host memory with rooms for some of them on the device.

use super::GpuBlock;
use crate::gpu::buffer::Buffer;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::kernels::expert_slots::Table;
use crate::model::{Experts, Ffn, Mlp};
use crate::quant::GgmlType;
use crate::quant::repack::ROW_STEP;
use std::collections::HashMap;

/// Where the experts of a model lie. All other weights lie on the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Residence {
    /// All experts lie on the device.
    #[default]
    Whole,
    /// All experts lie in host memory that shaders read ([`Buffer::is_host`](crate::gpu::buffer::Buffer::is_host)), and each layer with
    /// experts has so many slots on the device, which keep experts that tokens chose. The number may be 0. If a token's experts have no room
    /// in them, there are no slots: then no expert is kept.
    Slots(u32),
}

impl Residence {
    /// Slots of each layer; `None` where all experts lie on the device.
    pub fn slots(self) -> Option<u32> {
        match self {
            Self::Whole => None,
            Self::Slots(slots) => Some(slots),
        }
    }
}

/// The rooms on the device for the experts of a layer that lie in host memory.
#[derive(Clone)]
pub struct Rooms {
    /// The slots of the layer, if it has any: each is a group of the three weights.
    pub slots: Option<Slots>,
    /// Room for all experts of a layer, which layers with weights of the same types and shapes share. A step fills it anew in each layer.
    pub staging: Mlp<GpuWeight>,
}

/// The slots of a layer.
#[derive(Clone)]
pub struct Slots {
    /// The weights, whose groups are slots.
    pub experts: Mlp<GpuWeight>,
    /// The table that tells which expert lies where.
    pub table: Table,
}

impl Rooms {
    /// The rooms of each layer; `None` for layers without experts, and nothing where no experts lie in host memory.
    ///
    /// # Errors
    /// [`GpuError::CannotReadHost`], [`GpuError::BindingTooLarge`] for experts of a layer that no binding has room for, and
    /// [`GpuError::UnsupportedSize`] for experts whose rows cannot be copied alone.
    pub(super) fn of(
        target: &Target,
        residence: Residence,
        config: Option<&Experts>,
        layers: &[GpuBlock],
    ) -> Result<Vec<Option<Self>>, GpuError> {
        let (Residence::Slots(slots), Some(config)) = (residence, config) else {
            return Ok(vec![]);
        };
        target.check_reads_host()?;
        let slots = slots.min(config.count as u32);
        let slots = (slots >= config.used as u32).then_some(slots);
        let mut staging = Staging::default();
        let rooms = layers.iter().map(|layer| match &layer.ffn {
            Ffn::Dense(_) => Ok(None),
            Ffn::Moe(moe) => {
                for weight in moe.experts.weights() {
                    check(target, weight)?;
                }
                Ok(Some(Self {
                    slots: slots.map(|n| Slots {
                        experts: rooms_of(&moe.experts, |_, w| w.room("slots of experts", n)),
                        table: Table::new(config.count as u32, n),
                    }),
                    staging: rooms_of(&moe.experts, |which, w| staging.of(which, w)),
                }))
            }
        });
        rooms.collect()
    }

    /// The weights whose groups are slots.
    pub fn slots(&self) -> impl Iterator<Item = &GpuWeight> {
        let slots = self.slots.iter();
        slots.flat_map(|slots| slots.experts.weights())
    }

    /// The buffers of all rooms.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let weights = self.slots().chain(self.staging.weights());
        weights.flat_map(GpuWeight::buffers)
    }
}

/// The room that `room` gives each of the three weights of experts, which are numbered.
fn rooms_of(
    experts: &Mlp<GpuWeight>,
    mut room: impl FnMut(usize, &GpuWeight) -> GpuWeight,
) -> Mlp<GpuWeight> {
    Mlp {
        gate: room(0, &experts.gate),
        up: room(1, &experts.up),
        down: room(2, &experts.down),
    }
}

/// Refuses experts that lie in more than one binding, or that do not begin and end with whole vectors of 16 bytes.
fn check(target: &Target, weight: &GpuWeight) -> Result<(), GpuError> {
    if weight.pieces.len() > 1 {
        return Err(GpuError::BindingTooLarge {
            what: format!("the experts of tensor {} in host memory", weight.name),
            bytes: weight.bytes(),
            adapter: target.name.clone(),
            limit: target.max_binding,
            remedy: "use another adapter, or use --device cpu",
        });
    }
    if !(weight.rows as usize).is_multiple_of(ROW_STEP) {
        return Err(GpuError::UnsupportedSize {
            key: "expert_feed_forward_length",
            found: weight.rows as usize,
            supported: format!("multiples of {ROW_STEP} for experts in host memory"),
        });
    }
    Ok(())
}

/// The rooms for all experts by weight of an expert, type and shape. Those of one layer never are one.
#[derive(Default)]
struct Staging(HashMap<(usize, GgmlType, [u32; 3]), GpuWeight>);

impl Staging {
    fn of(&mut self, which: usize, w: &GpuWeight) -> GpuWeight {
        let key = (which, w.ty, [w.groups, w.rows, w.cols]);
        let new = || w.room("experts of a step", w.groups);
        self.0.entry(key).or_insert_with(new).clone()
    }
}
