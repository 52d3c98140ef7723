//! Where the experts of a model lie: on the device, or in host memory with rooms for some of them on the device.

use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::Call;
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Target};
use crate::kernels::expert_fill::GpuExpertFill;
use crate::kernels::expert_places::{GpuExpertPlaces, most_chosen};
use crate::kernels::expert_slots::{Routing, Table};
use crate::kernels::expert_sources::{ChosenBy, GpuExpertSources};
use crate::model::{Experts, Mlp};
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
    /// in them, there are no slots: then no expert is kept. Steps of few tokens whose experts surely have room in them keep them there. Others
    /// leave the slots as they are.
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
    /// A trace of choices that decoded tokens take instead of their own, to measure by.
    pub routing: Option<Routing>,
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
    /// The rooms of each layer, of which these are the experts if it has some; nothing where no experts lie in host memory.
    ///
    /// # Errors
    /// [`GpuError::CannotReadHost`], [`GpuError::BindingTooLarge`] for experts of a layer that no binding has room for, and
    /// [`GpuError::UnsupportedSize`] for experts whose rows cannot be copied alone.
    pub(super) fn of(
        target: &Target,
        residence: Residence,
        config: Option<&Experts>,
        layers: &[Option<&Mlp<GpuWeight>>],
    ) -> Result<Vec<Option<Self>>, GpuError> {
        let (Residence::Slots(slots), Some(config)) = (residence, config) else {
            return Ok(vec![]);
        };
        target.check_reads_host()?;
        let slots = slots.min(config.count as u32);
        let slots = (slots >= config.used as u32).then_some(slots);
        let mut staging = Staging::default();
        let rooms = layers.iter().map(|experts| {
            let Some(experts) = experts else {
                return Ok(None);
            };
            for weight in experts.weights() {
                check(target, weight)?;
            }
            Ok(Some(Self {
                slots: slots.map(|n| Slots {
                    experts: rooms_of(experts, |_, w| w.room("slots of experts", n)),
                    table: Table::new(config.count as u32, n),
                }),
                staging: rooms_of(experts, |which, w| staging.of(which, w)),
                routing: None,
            }))
        });
        rooms.collect()
    }

    /// The table of the layer's slots.
    pub fn table(&self) -> Option<&Table> {
        self.slots.as_ref().map(|slots| &slots.table)
    }

    /// The slots, where all experts that a step of up to `most` tokens may choose have one at once.
    fn slots_for(&self, config: &Experts, most: u32) -> Option<&Slots> {
        let chosen = most_chosen(most, [config.count, config.used].map(|n| n as u32));
        let slots = self.slots.as_ref();
        slots.filter(|slots| slots.table.slots >= chosen)
    }

    /// The places of the experts that the products of a step of few tokens read, up to `most`: slots, if all of them have one at once.
    pub(super) fn read_by(&self, config: &Experts, most: u32) -> &Mlp<GpuWeight> {
        let slots = self.slots_for(config, most);
        slots.map_or(&self.staging, |slots| &slots.experts)
    }

    /// The copies that fill the slots in the beginning: each gets the expert of its number, as the table has it.
    pub(crate) fn first_fill(&self, host: &Mlp<GpuWeight>) -> Vec<Call> {
        let Some(Slots { experts, table }) = &self.slots else {
            return vec![];
        };
        let pairs: Vec<u32> = (0..table.slots).flat_map(|slot| [slot, slot]).collect();
        let copies = Copies {
            fills: &Range::whole(&Buffer::with("first experts", &pairs)),
            entries: table.slots,
            expected: f64::from(table.slots),
        };
        copies.calls(host, None, experts)
    }

    /// The copies of the experts of one token that lie in host memory alone, as `fills` has them.
    pub(super) fn fill_of_token(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        fills: &Range,
    ) -> Vec<Call> {
        let slots = self.table().map_or(0, |table| table.slots);
        let copies = Copies {
            fills,
            entries: config.used as u32,
            expected: expected(config, 1, slots),
        };
        copies.calls(host, None, self.read_by(config, 1))
    }

    /// The copies of the experts that a step of few tokens, up to `most`, reads: those without slots, where all that it may choose have one at
    /// once, and the `chosen` ones become places among the slots. Else they are those of [`fill`](Self::fill).
    pub(super) fn fill_of_few(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        chosen: ChosenBy,
        most: u32,
    ) -> Vec<Call> {
        let Some(Slots { experts, table }) = self.slots_for(config, most) else {
            return self.fill(host, config, chosen, most);
        };
        let of = [config.count, config.used].map(|n| n as u32);
        let entries = most_chosen(most, of);
        let fills = Range::words("fills of experts", u64::from(2 * entries));
        let places = GpuExpertPlaces {
            chosen,
            experts: of,
            most,
            table,
            fills: fills.clone(),
        };
        let copies = Copies {
            fills: &fills,
            entries,
            expected: expected(config, most, table.slots),
        };
        let mut calls = vec![places.call()];
        calls.extend(copies.calls(host, None, experts));
        calls
    }

    /// The copies of all experts that tokens of a step of up to `most` tokens chose to their places among all experts: from the slots that keep
    /// them, else from host memory. The slots stay as they are, so that a prompt forgets none of what tokens chose before.
    pub(super) fn fill(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        chosen: ChosenBy,
        most: u32,
    ) -> Vec<Call> {
        let [count, used] = [config.count, config.used].map(|n| n as u32);
        let fills = Range::words("sources of experts", u64::from(2 * count));
        let sources = GpuExpertSources {
            chosen,
            experts: count,
            used,
            table: self.table(),
            fills: fills.clone(),
        };
        let copies = Copies {
            fills: &fills,
            entries: count,
            expected: expected(config, most, 0),
        };
        let slots = self.slots.as_ref().map(|slots| &slots.experts);
        let mut calls = vec![sources.call()];
        calls.extend(copies.calls(host, slots, &self.staging));
        calls
    }

    /// The weights whose groups are slots.
    pub fn slots(&self) -> impl Iterator<Item = &GpuWeight> {
        let slots = self.slots.iter();
        slots.flat_map(|slots| slots.experts.weights())
    }

    /// The buffers of all rooms.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let weights = self.slots().chain(self.staging.weights());
        let tables = self.table().map(|table| &table.words.buffer);
        weights.flat_map(GpuWeight::buffers).chain(tables)
    }
}

/// The experts without one of `slots` slots that a step of `most` tokens chooses, if all experts are chosen alike often.
fn expected(config: &Experts, most: u32, slots: u32) -> f64 {
    let [count, used] = [config.count, config.used].map(|n| n as f64);
    let chosen = count * (1.0 - (1.0 - used / count).powi(most as i32));
    chosen * (1.0 - f64::from(slots) / count)
}

/// Copies of the same experts of all three weights, which do not wait for each other.
struct Copies<'a> {
    fills: &'a Range,
    entries: u32,
    /// Entries that copy something if all experts are chosen alike often: which ones do is known on the device alone.
    expected: f64,
}

impl Copies<'_> {
    fn calls(
        &self,
        host: &Mlp<GpuWeight>,
        kept: Option<&Mlp<GpuWeight>>,
        to: &Mlp<GpuWeight>,
    ) -> Vec<Call> {
        let kept = kept.map(Mlp::weights);
        let both = host.weights().into_iter().zip(to.weights());
        let call = |(i, (host, to))| GpuExpertFill {
            host,
            kept: kept.map(|weights| weights[i]),
            to,
            fills: self.fills.clone(),
            entries: self.entries,
            expected: self.expected,
        };
        both.enumerate().map(|each| call(each).call()).collect()
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
