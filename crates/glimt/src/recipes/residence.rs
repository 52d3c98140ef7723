//! Where the experts of a model lie: on the device, or in host memory or in the file with rooms for some of them on the device.

use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, When};
use crate::gpu::memory::{Fill, GpuWeight, Lies};
use crate::gpu::question::Question;
use crate::gpu::{GpuError, Target};
use crate::kernels::expert_fill::GpuExpertFill;
use crate::kernels::expert_part::GpuExpertParts;
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
    /// All experts stay in the file, and each layer with experts has so many slots on the device, as with [`Slots`](Self::Slots). The host reads
    /// missing experts from the file, for which each step is cut at every layer.
    File(u32),
    /// As with [`File`](Self::File), but tokens are computed one by one, prompts too. So no room for all experts of a layer is needed: those of a
    /// token come to slots, or to a room that all layers share if there are none.
    OneByOne(u32),
}

impl Residence {
    /// Slots of each layer; `None` where all experts lie on the device.
    pub fn slots(self) -> Option<u32> {
        match self {
            Self::Whole => None,
            Self::Slots(slots) | Self::File(slots) | Self::OneByOne(slots) => Some(slots),
        }
    }

    /// Whether there are steps of one token alone.
    pub fn is_one_by_one(self) -> bool {
        matches!(self, Self::OneByOne(_))
    }

    /// Where the experts lie.
    pub(super) fn lies(self) -> Lies {
        match self {
            Self::Whole => Lies::Device,
            Self::Slots(_) => Lies::Host,
            Self::File(_) | Self::OneByOne(_) => Lies::File,
        }
    }
}

/// The memory on the device that takes experts of one layer, if these lie in host memory or in the file.
#[derive(Clone)]
pub struct Rooms {
    /// The number of the layer.
    layer: usize,
    /// The experts in the file, if they are read from there; else they lie in host memory.
    pub file: Option<Mlp>,
    /// The slots of the layer, if it has any: each is a group of the three weights.
    pub slots: Option<Slots>,
    /// Room for all experts of a layer, or for those of a token where tokens come one by one. Layers with weights of the same types and shapes
    /// share it. A step fills it anew in each layer.
    pub staging: Mlp<GpuWeight>,
    /// Whether no step needs `staging`.
    is_staging_idle: bool,
    /// The host's share of the missing experts of a decoded token, if it has one.
    pub share: Option<HostShare>,
    /// A trace of choices that decoded tokens take instead of their own, to measure by.
    pub routing: Option<Routing>,
}

/// The host's share of the missing experts of a decoded token.
#[derive(Clone)]
pub struct HostShare {
    /// The number of experts that the host multiplies if n of a layer are missing, for n of 0 to `used`, (used + 1) u32.
    pub split: Range,
    /// The sum of these experts, which the host writes for each layer, (embedding_length) f32.
    pub sum: Range,
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
    /// The rooms of each layer, of which these are the experts if it has some, as they lie and in the file; nothing where all lie on the device.
    ///
    /// # Errors
    /// [`GpuError::CannotReadHost`], [`GpuError::BindingTooLarge`] for experts of a layer that no binding has room for, and
    /// [`GpuError::UnsupportedSize`] for experts whose rows cannot be copied alone.
    pub(super) fn of(
        target: &Target,
        residence: Residence,
        config: Option<&Experts>,
        layers: &[Option<(&Mlp<GpuWeight>, &Mlp)>],
    ) -> Result<Vec<Option<Self>>, GpuError> {
        let (Some(slots), Some(config)) = (residence.slots(), config) else {
            return Ok(vec![]);
        };
        let of_file = residence.lies() == Lies::File;
        match of_file {
            true => target.check_brings_experts()?,
            false => target.check_reads_host()?,
        }
        let slots = slots.min(config.count as u32);
        let slots = (slots >= config.used as u32).then_some(slots);
        let mut staging = Staging::default();
        let staged = match residence.is_one_by_one() {
            true => config.used as u32,
            false => config.count as u32,
        };
        let rooms = layers.iter().enumerate().map(|(layer, experts)| {
            let Some((experts, file)) = *experts else {
                return Ok(None);
            };
            let is_staging_idle = residence.is_one_by_one() && slots.is_some();
            let most = match (of_file, is_staging_idle) {
                (true, true) => slots.unwrap_or(staged),
                (true, false) => slots.unwrap_or(staged).max(staged),
                (false, _) => config.count as u32,
            };
            for weight in experts.weights() {
                check(target, weight, most)?;
            }
            Ok(Some(Self {
                layer,
                file: of_file.then(|| file.clone()),
                slots: slots.map(|n| Slots {
                    experts: rooms_of(experts, |_, w| w.room("slots of experts", n)),
                    table: Table::new(config.count as u32, n),
                }),
                staging: rooms_of(experts, |which, w| staging.of((which, w), staged)),
                is_staging_idle,
                share: None,
                routing: None,
            }))
        });
        rooms.collect()
    }

    /// Whether a step asks the host for experts, which it reads from the file.
    pub(super) fn asks_for_experts(&self) -> bool {
        self.file.is_some()
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

    /// The copies from host memory that fill the slots in the beginning: each gets the expert of its number, as the table has it.
    pub(crate) fn first_fill(&self, host: &Mlp<GpuWeight>) -> Vec<Call> {
        let (Some(Slots { experts, table }), None) = (&self.slots, &self.file) else {
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

    /// The reads from the file that fill the slots in the beginning, likewise.
    pub(crate) fn first_reads(&self) -> Vec<Fill<'_>> {
        let (Some(Slots { experts, table }), Some(file)) = (&self.slots, &self.file) else {
            return vec![];
        };
        let both = file.weights().into_iter().zip(experts.weights());
        let reads = both.flat_map(|(from, to)| {
            (0..table.slots).map(move |slot| Fill {
                from: (from, slot),
                to: (to, slot),
                read: None,
            })
        });
        reads.collect()
    }

    /// Bytes of the slots that are read from the file in the beginning.
    pub(crate) fn first_bytes(&self) -> u64 {
        match self.file {
            Some(_) => self.slots().map(GpuWeight::bytes).sum(),
            None => 0,
        }
    }

    /// Brings the experts of one token that lie elsewhere alone, as `fills` has them.
    pub(super) fn fill_of_token(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        fills: &Range,
    ) -> Brought {
        if self.file.is_some() {
            return self.ask(vec![], fills, config.used, self.read_by(config, 1));
        }
        let slots = self.table().map_or(0, |table| table.slots);
        let copies = Copies {
            fills,
            entries: config.used as u32,
            expected: expected(config, 1, slots),
        };
        Brought::by(copies.calls(host, None, self.read_by(config, 1)))
    }

    /// The copies of the experts that a step of few tokens, up to `most`, reads: those without slots, where all that it may choose have one at
    /// once, and the `chosen` ones become places among the slots. Else they are those of [`fill`](Self::fill).
    pub(super) fn fill_of_few(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        chosen: ChosenBy,
        most: u32,
    ) -> Brought {
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
        if self.file.is_some() {
            return self.ask(calls, &fills, entries as usize, experts);
        }
        calls.extend(copies.calls(host, None, experts));
        Brought::by(calls)
    }

    /// Brings all experts that tokens of a step of up to `most` tokens chose to their places among all experts: from the slots that keep
    /// them, else from where they lie. The slots stay as they are, so that a prompt forgets none of what tokens chose before.
    pub(super) fn fill(
        &self,
        host: &Mlp<GpuWeight>,
        config: &Experts,
        chosen: ChosenBy,
        most: u32,
    ) -> Brought {
        let [count, used] = [config.count, config.used].map(|n| n as u32);
        let fills = Range::words("sources of experts", u64::from(2 * count));
        let sources = GpuExpertSources {
            chosen,
            experts: count,
            used,
            table: self.table(),
            fills: fills.clone(),
        };
        if self.file.is_some() {
            return self.ask(vec![sources.call()], &fills, config.count, &self.staging);
        }
        let copies = Copies {
            fills: &fills,
            entries: count,
            expected: expected(config, most, 0),
        };
        let slots = self.slots.as_ref().map(|slots| &slots.experts);
        let mut calls = vec![sources.call()];
        calls.extend(copies.calls(host, slots, &self.staging));
        Brought::by(calls)
    }

    /// The question for the sum of the experts that the host multiplies, behind the dispatches that leave `tells`.
    pub(super) fn ask_for_sum(
        &self,
        config: &Experts,
        asked: usize,
        tells: Vec<Range>,
    ) -> Question {
        Question {
            layer: self.layer,
            asked,
            due: asked,
            tells,
            kept: None,
            to: self.read_by(config, 1).clone(),
        }
    }

    /// Copies of the last `count` experts from host memory to the room that each step fills anew, to time them.
    pub(crate) fn copies_to_time(&self, host: &Mlp<GpuWeight>, count: u32) -> Vec<Call> {
        let experts = host.gate.groups;
        let pairs: Vec<u32> = (experts - count..experts).flat_map(|e| [e, e]).collect();
        let copies = Copies {
            fills: &Range::whole(&Buffer::with("experts to time", &pairs)),
            entries: count,
            expected: f64::from(count),
        };
        copies.calls(host, None, &self.staging)
    }

    /// The question for the experts of a list of `entries` entries, which `calls` leave.
    fn ask(&self, calls: Vec<Call>, fills: &Range, entries: usize, to: &Mlp<GpuWeight>) -> Brought {
        let tells = Range {
            size: 8 * entries as u64,
            ..fills.clone()
        };
        let question = Question {
            layer: self.layer,
            asked: calls.len(),
            due: calls.len(),
            tells: vec![tells],
            kept: self.slots.as_ref().map(|slots| slots.experts.clone()),
            to: to.clone(),
        };
        Brought {
            calls,
            question: Some(question),
        }
    }

    /// The copies of all experts to the staging, whichever tokens chose, in parts.
    pub(super) fn parts<'a>(&'a self, host: &'a Mlp<GpuWeight>) -> [GpuExpertParts<'a>; 3] {
        let kept = |i: usize| {
            let Slots { experts, table } = self.slots.as_ref()?;
            Some((experts.weights()[i], table))
        };
        let (host, to) = (host.weights(), self.staging.weights());
        std::array::from_fn(|i| GpuExpertParts {
            host: host[i],
            kept: kept(i),
            to: to[i],
        })
    }

    /// The weights whose groups are slots.
    pub fn slots(&self) -> impl Iterator<Item = &GpuWeight> {
        let slots = self.slots.iter();
        slots.flat_map(|slots| slots.experts.weights())
    }

    /// The buffers of all rooms.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let staging = self.staging.weights().into_iter();
        let staging = staging.filter(|_| !self.is_staging_idle);
        let weights = self.slots().chain(staging);
        let tables = self.table().map(|table| &table.words.buffer);
        weights.flat_map(GpuWeight::buffers).chain(tables)
    }
}

/// The dispatches that bring experts to their places, and the question to the host that does, if the experts are read from the file.
pub(super) struct Brought {
    calls: Vec<Call>,
    question: Option<Question>,
}

impl Brought {
    fn by(calls: Vec<Call>) -> Self {
        Self {
            calls,
            question: None,
        }
    }

    /// These dispatches in the replays of `when` alone.
    pub(super) fn only(self, when: When) -> Self {
        let calls = self.calls.into_iter().map(|call| call.only(when));
        Self {
            calls: calls.collect(),
            ..self
        }
    }

    /// Adds them to those of a step.
    pub(super) fn record(self, calls: &mut Vec<Call>, questions: &mut Vec<Question>) {
        let question = self.question.map(|question| question.behind(calls.len()));
        questions.extend(question);
        calls.extend(self.calls);
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

/// Refuses experts of which so many lie in more than one binding, or that do not begin and end with whole vectors of 16 bytes.
fn check(target: &Target, weight: &GpuWeight, most: u32) -> Result<(), GpuError> {
    let room = weight.room("experts", most);
    let planes = room.pieces.iter();
    let planes = planes.flat_map(|piece| [piece.quants.size, piece.scales.size]);
    let widest = planes.max().unwrap_or(0);
    if widest > target.max_binding {
        return Err(GpuError::BindingTooLarge {
            what: format!("{most} experts of tensor {} in one room", weight.name),
            bytes: widest,
            adapter: target.name.clone(),
            limit: target.max_binding,
            remedy: "use another adapter, or use --device cpu",
        });
    }
    if !(weight.rows as usize).is_multiple_of(ROW_STEP) {
        return Err(GpuError::UnsupportedSize {
            key: "expert_feed_forward_length",
            found: weight.rows as usize,
            supported: format!("multiples of {ROW_STEP} for experts that do not lie on the device"),
        });
    }
    Ok(())
}

/// The rooms that layers share, by weight of an expert, type and shape. Those of one layer never are one.
#[derive(Default)]
struct Staging(HashMap<(usize, GgmlType, [u32; 3]), GpuWeight>);

impl Staging {
    /// The room for `groups` groups.
    fn of(&mut self, (which, w): (usize, &GpuWeight), groups: u32) -> GpuWeight {
        let key = (which, w.ty, [groups, w.rows, w.cols]);
        let new = || w.room("experts of a step", groups);
        self.0.entry(key).or_insert_with(new).clone()
    }
}
