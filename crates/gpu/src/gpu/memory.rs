//! Weights on the device: what goes where in a few large buffers.
//!
//! Every tensor is repacked into two planes ([`crate::quant::repack`]) and bound by offset. One whose planes exceed the
//! adapter's binding limit is cut into row ranges, each with planes of its own, and kernels run once per range.

use super::buffer::{Buffer, Range, Role};
pub use super::upload::{reading, write_head};
use super::{Gpu, GpuError, Target, upload};
use crate::model::Weight;
use crate::quant::repack::Sections;
use crate::quant::{GgmlType, repack};

/// The largest buffer to allocate: a little under the 2 GiB that 32-bit offsets and several drivers allow.
const MAX_BUFFER: u64 = 1900 << 20;

/// The name of buffers in host memory, by which an error tells that the system gives no more of it.
pub const EXPERTS_OF_HOST: &str = "experts in host memory";

/// A weight tensor on the device, of shape (groups, rows, cols).
#[derive(Debug, Clone)]
pub struct GpuWeight {
    /// Name in the file, for messages.
    pub name: String,
    /// The type of its weights; the planes hold exactly its bits.
    pub ty: GgmlType,
    /// Experts or heads, 1 otherwise.
    pub groups: u32,
    /// Output rows of each group.
    pub rows: u32,
    /// Weights of a row.
    pub cols: u32,
    /// The row ranges in order; one unless the adapter's binding limit forces more.
    pub pieces: Vec<Piece>,
}

/// Consecutive rows of a tensor that are bound at once.
#[derive(Debug, Clone)]
pub struct Piece {
    /// First row, counted over all groups.
    pub first_row: u32,
    /// Rows in this piece.
    pub rows: u32,
    /// The plane of quants.
    pub quants: Range,
    /// The plane of scales.
    pub scales: Range,
    /// The offset of the sub-plane of the scales, in words of 4 bytes.
    pub sub: u32,
}

impl GpuWeight {
    /// Room on the device for `groups` of the groups of a weight like this one, in one piece whose planes are buffers of their own. The plane
    /// of scales begins as that of all weights of the type does ([`repack::head`]).
    pub fn room(&self, name: &str, groups: u32) -> Self {
        let rows = groups * self.rows;
        let (height, cols) = (rows as usize, self.cols as usize);
        let (quants, scales) = repack::plane_bytes(self.ty, height, cols);
        let plane = |bytes: usize, role, head: &[u8]| {
            let buffer = Buffer::beginning(name, bytes as u64, Role::Words, head);
            Range::whole(&buffer).holding(role)
        };
        let piece = Piece {
            first_row: 0,
            rows,
            quants: plane(quants, Role::Codes(self.ty), &[]),
            scales: plane(scales, Role::Scales(self.ty), repack::head(self.ty)),
            sub: repack::sub_plane_words(self.ty, height, cols) as u32,
        };
        Self {
            name: name.to_owned(),
            groups,
            pieces: vec![piece],
            ..self.clone()
        }
    }

    /// The buffers of its planes, in order and not each once.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let planes = self.pieces.iter().flat_map(|p| [&p.quants, &p.scales]);
        planes.map(|range| &range.buffer)
    }

    /// Whether it lies in host memory.
    pub fn is_host(&self) -> bool {
        self.buffers().any(Buffer::is_host)
    }

    /// Whether it stays in its file.
    pub fn is_file(&self) -> bool {
        self.buffers().any(Buffer::is_file)
    }

    /// Copies group `group` of `from`, which is of the same type and shape, to the place of number `place`. Both lie in one piece, as
    /// [rooms](Self::room) do.
    pub fn copy_group(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        (from, group): (&Self, u32),
        place: u32,
    ) {
        let (to, from_planes) = (&self.pieces[0], &from.pieces[0]);
        let sections = [from.sections(group), self.sections(place)];
        for (plane, part) in [(0, 0), (1, 1), (1, 2)] {
            let [a, b] = [from_planes, to].map(|piece| [&piece.quants, &piece.scales][plane]);
            let [read, write] = sections.each_ref().map(|of| of.in_order()[part].clone());
            // Padding stands behind the last group alone.
            let bytes = read.len().min(write.len()) as u64;
            if bytes > 0 {
                let [read, write] = [a.offset + read.start as u64, b.offset + write.start as u64];
                let [a, b] = [a, b].map(|plane| plane.buffer.made());
                encoder.copy_buffer_to_buffer(a, read, b, write, bytes);
            }
        }
    }

    /// The bytes of a group in the planes of the only piece.
    fn sections(&self, group: u32) -> Sections {
        let [rows, cols, total] = [self.rows, self.cols, self.total_rows()].map(|n| n as usize);
        let first = group as usize * rows;
        repack::sections(self.ty, total, cols, first..first + rows)
    }

    /// Rows over all groups.
    pub fn total_rows(&self) -> u32 {
        self.groups * self.rows
    }

    /// Bytes of its planes.
    pub fn bytes(&self) -> u64 {
        self.pieces
            .iter()
            .map(|p| p.quants.size + p.scales.size)
            .sum()
    }

    /// The weight's shape, such as `2048x5120`, or `20x512x192` where it has groups.
    pub fn shape(&self) -> String {
        self.shape_of(self.groups)
    }

    /// The shape of a weight that is like this one but has `groups` groups.
    pub fn shape_of(&self, groups: u32) -> String {
        match groups {
            1 => format!("{}x{}", self.rows, self.cols),
            groups => format!("{groups}x{}x{}", self.rows, self.cols),
        }
    }

    /// Bytes that reading `rows` of its rows takes.
    pub fn bytes_of_rows(&self, rows: u64) -> u64 {
        self.bytes() * rows / u64::from(self.total_rows())
    }
}

/// A place that planes will have.
struct Planned {
    first_row: u32,
    rows: u32,
    /// The buffer's index, the offset and the bytes of quants and scales.
    quants: (usize, u64, u64),
    scales: (usize, u64, u64),
}

/// Where weights lie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lies {
    /// On the device.
    #[default]
    Device,
    /// In host memory that shaders read ([`Buffer::is_host`]).
    Host,
    /// In their file alone ([`Buffer::is_file`]).
    File,
}

/// A buffer that is planned: its bytes, and where they lie.
struct Planning {
    bytes: u64,
    lies: Lies,
}

/// Plans the placement of all tensors, then fills them.
pub struct Loader<'a> {
    target: Target,
    weights: Vec<(&'a Weight, Vec<Planned>)>,
    buffers: Vec<Planning>,
    /// Where weights that are added lie.
    lies: Lies,
    total: u64,
}

impl<'a> Loader<'a> {
    /// An empty plan.
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            weights: vec![],
            buffers: vec![],
            lies: Lies::Device,
            total: 0,
        }
    }

    /// Has weights that are added from now on lie there. Without this they lie on the device.
    pub fn to(&mut self, lies: Lies) {
        self.lies = lies;
    }

    /// Adds a tensor and returns its number. Pieces are cut between groups where there are several (experts, heads).
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] where a single row or group exceeds the binding limit.
    pub fn add(&mut self, weight: &'a Weight) -> Result<usize, GpuError> {
        Ok(self.add_alike(&[weight])?[0])
    }

    /// Adds tensors of one shape, cut into the same pieces whatever their types are.
    pub fn add_alike(&mut self, weights: &[&'a Weight]) -> Result<Vec<usize>, GpuError> {
        let mut most = usize::MAX;
        for weight in weights {
            most = most.min(self.rows_at_once(weight)?);
        }
        Ok(weights
            .iter()
            .map(|weight| self.plan(weight, most))
            .collect())
    }

    /// The most rows of a weight that fit one binding, in whole groups where there are several.
    fn rows_at_once(&self, weight: &Weight) -> Result<usize, GpuError> {
        let step = if weight.groups > 1 { weight.rows } else { 1 };
        let total = weight.groups * weight.rows;
        let bytes = |rows: usize| {
            let (q, s) = repack::plane_bytes(weight.ty, rows, weight.cols);
            q.max(s) as u64
        };
        // The largest number of steps that fits, by bisection: plane sizes grow with the rows.
        let (mut low, mut high) = (0, total / step);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if bytes(middle * step) <= self.target.max_binding {
                low = middle
            } else {
                high = middle - 1
            }
        }
        if low == 0 {
            return Err(GpuError::BindingTooLarge {
                what: format!("{} rows of tensor {}", step, weight.name),
                bytes: bytes(step),
                adapter: self.target.name.clone(),
                limit: self.target.max_binding,
                remedy: "use another adapter, or use --device cpu",
            });
        }
        let most = low * step;
        // Whole records of rows, or whole halves of one, as the kernels that leave bytes want them.
        let whole = [32, 16].into_iter().find(|n| *n <= most);
        Ok(match whole {
            Some(whole) if step == 1 && most < total => most - most % whole,
            _ => most,
        })
    }

    fn plan(&mut self, weight: &'a Weight, most: usize) -> usize {
        let total = weight.groups * weight.rows;
        let mut pieces = vec![];
        let mut first = 0;
        while first < total {
            let rows = most.min(total - first);
            let (q, s) = repack::plane_bytes(weight.ty, rows, weight.cols);
            pieces.push(Planned {
                first_row: first as u32,
                rows: rows as u32,
                quants: self.place(q as u64),
                scales: self.place(s as u64),
            });
            first += rows;
        }
        self.weights.push((weight, pieces));
        self.weights.len() - 1
    }

    fn place(&mut self, bytes: u64) -> (usize, u64, u64) {
        let align = self.target.offset_alignment;
        let limit = MAX_BUFFER.min(self.target.max_buffer).max(bytes);
        let lies = self.lies;
        let last = self.buffers.iter().rposition(|of| of.lies == lies);
        let has_room = |i: &usize| self.buffers[*i].bytes.next_multiple_of(align) + bytes <= limit;
        let index = last.filter(has_room).unwrap_or_else(|| {
            self.buffers.push(Planning { bytes: 0, lies });
            self.buffers.len() - 1
        });
        let used = &mut self.buffers[index].bytes;
        let offset = used.next_multiple_of(align);
        *used = offset + bytes;
        if lies != Lies::File {
            self.total += bytes;
        }
        (index, offset, bytes)
    }

    /// Bytes of all planes that are filled, on the device and in host memory.
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// The place of each tensor, by its number, in buffers that no device has made yet.
    pub fn places(&self) -> Vec<GpuWeight> {
        let make = |Planning { bytes, lies }: &Planning| match lies {
            Lies::Host => Buffer::of_host(EXPERTS_OF_HOST, *bytes, Role::Words),
            Lies::Device => Buffer::new("weights", *bytes, Role::Words),
            Lies::File => Buffer::of_file("experts in the file", *bytes, Role::Words),
        };
        let buffers: Vec<_> = self.buffers.iter().map(make).collect();
        let range = |(index, offset, size): (usize, u64, u64), role| Range {
            buffer: buffers[index].clone(),
            offset,
            size,
            role,
        };
        let place = |(weight, pieces): &(&Weight, Vec<Planned>)| GpuWeight {
            name: weight.name.clone(),
            ty: weight.ty,
            groups: weight.groups as u32,
            rows: weight.rows as u32,
            cols: weight.cols as u32,
            pieces: pieces
                .iter()
                .map(|p| Piece {
                    first_row: p.first_row,
                    rows: p.rows,
                    quants: range(p.quants, Role::Codes(weight.ty)),
                    scales: range(p.scales, Role::Scales(weight.ty)),
                    sub: repack::sub_plane_words(weight.ty, p.rows as usize, weight.cols) as u32,
                })
                .collect(),
        };
        self.weights.iter().map(place).collect()
    }

    /// [`places`](Self::places), [filled](Self::fill).
    ///
    /// # Errors
    /// As for [`fill`](Self::fill).
    pub async fn load(
        self,
        gpu: &Gpu,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Vec<GpuWeight>, GpuError> {
        let places = self.places();
        self.fill(gpu, &places, progress).await?;
        Ok(places)
    }

    /// Makes the buffers of `places` and streams every tensor into them that does not stay in the file. `progress` is told the bytes done. Where weights have no
    /// bytes ([`Weight::has_data`]) the buffers are only made: the caller knows with what to fill them.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::ReadWeights`] or what the device reports.
    pub async fn fill(
        &self,
        gpu: &Gpu,
        places: &[GpuWeight],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), GpuError> {
        let buffers = places.iter().flat_map(GpuWeight::buffers);
        for buffer in buffers.filter(|buffer| !buffer.is_file()) {
            gpu.realise(buffer).await?;
        }
        if !self.weights.iter().all(|(weight, _)| weight.has_data()) {
            return Ok(());
        }
        let targets: Vec<_> = self
            .weights
            .iter()
            .zip(places)
            .filter(|(_, place)| !place.is_file())
            .flat_map(|((weight, _), place)| place.pieces.iter().map(move |piece| (weight, piece)))
            .map(|(weight, piece)| upload::Target {
                weight,
                first_row: piece.first_row as usize,
                rows: piece.rows as usize,
                place: 0,
                of: piece.rows as usize,
                read: None,
                quants: (&piece.quants.buffer, piece.quants.offset),
                scales: (&piece.scales.buffer, piece.scales.offset),
            })
            .collect();
        upload::stream(gpu, &targets, upload::SLOT, progress).await
    }
}

/// A group of a weight in the file, and its place among the groups of another one in one piece.
#[derive(Debug, Clone, Copy)]
pub struct Fill<'a> {
    /// The weight in the file, and the group.
    pub from: (&'a Weight, u32),
    /// The weight on the device, and the place.
    pub to: (&'a GpuWeight, u32),
    /// The bytes of the group, as the file has them, if they were read before.
    pub read: Option<&'a [u8]>,
}

impl<'a> Fill<'a> {
    fn target(self) -> upload::Target<'a> {
        let ((weight, group), (to, place)) = (self.from, self.to);
        let piece = &to.pieces[0];
        upload::Target {
            weight,
            first_row: group as usize * weight.rows,
            rows: weight.rows,
            place: place as usize * weight.rows,
            of: to.total_rows() as usize,
            read: self.read,
            quants: (&piece.quants.buffer, piece.quants.offset),
            scales: (&piece.scales.buffer, piece.scales.offset),
        }
    }
}

/// The way of single groups from the file to the device. Its buffers stay.
pub struct Filler(upload::Ring);

impl Default for Filler {
    fn default() -> Self {
        Self(upload::Ring::new(upload::SLOT))
    }
}

impl Filler {
    /// Reads groups from their file on several threads at once, and sends them to their places, which what is submitted next finds filled.
    /// `progress` is told the bytes on their way.
    ///
    /// # Errors
    /// [`GpuError::ReadWeights`], [`GpuError::OutOfMemory`] or what the device reports.
    pub async fn fill(
        &mut self,
        gpu: &Gpu,
        fills: &[Fill<'_>],
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), GpuError> {
        let targets: Vec<_> = fills.iter().map(|fill| fill.target()).collect();
        self.0.send(gpu, &targets, progress).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;
    use crate::gpu::wait::Wait;
    use crate::kernels::testing::{Rng, random_weight};
    use crate::quant::GgmlType;
    use crate::quant::repack::Planes;

    #[test]
    fn groups_come_to_any_place_from_the_file_and_from_each_other() {
        let mut rng = Rng::fresh();
        let gpu = &Gpu::open(&GpuOptions::default())
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        let (groups, rows, cols) = (5, 32, 512);
        let mut filler = Filler::default();
        for &ty in GgmlType::ALL {
            let weight = random_weight(&mut rng, ty, groups, rows, cols);
            let mut loader = Loader::new(gpu);
            loader.add(&weight).unwrap_or_else(|e| panic!("{e}"));
            let like = loader.places().remove(0);
            let rooms = [3, 7].map(|groups| like.room("a room", groups));
            for buffer in rooms.iter().flat_map(GpuWeight::buffers) {
                gpu.realise(buffer).wait().unwrap_or_else(|e| panic!("{e}"));
            }
            // What lies in each place: read groups, the last place among them, then copies of them.
            let all: Vec<u32> = (0..3).map(|_| rng.below(groups) as u32).collect();
            let reads = all.iter().zip(0..).map(|(group, place)| Fill {
                from: (&weight, *group),
                to: (&rooms[0], place),
                // The bytes of one of them were read before.
                read: (place == 1).then(|| weight.rows_bytes(*group as usize, 0..rows)),
            });
            let reads: Vec<_> = reads.collect();
            let mut ignore = |_| {};
            let filled = filler.fill(gpu, &reads, &mut ignore);
            filled.wait().unwrap_or_else(|e| panic!("{e}"));
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let places = [[0, 6], [1, 0], [2, 3]];
            for [slot, place] in places {
                rooms[1].copy_group(&mut encoder, (&rooms[0], slot), place);
            }
            gpu.queue.submit([encoder.finish()]);
            let held = |room: usize, place: u32| {
                let group = match room {
                    0 => Some(place),
                    _ => places.iter().find(|p| p[1] == place).map(|p| p[0]),
                };
                group.map(|slot| all[slot as usize] as usize)
            };
            for (i, room) in rooms.iter().enumerate() {
                let piece = &room.pieces[0];
                let planes = [&piece.quants, &piece.scales].map(|plane| {
                    let read = gpu.read::<u8>(&plane.buffer, plane.offset, plane.size);
                    read.wait().unwrap_or_else(|e| panic!("{e}"))
                });
                let rows_of = |group: usize| weight.rows_bytes(group, 0..rows);
                for place in 0..room.groups {
                    let Some(group) = held(i, place) else {
                        continue;
                    };
                    // The planes of a room with this group everywhere.
                    let bytes: Vec<u8> = (0..room.groups)
                        .flat_map(|_| rows_of(group))
                        .copied()
                        .collect();
                    let expected = Planes::new(ty, rows * room.groups as usize, cols, &bytes);
                    let sections = room.sections(place);
                    for (plane, expected, range) in [
                        (&planes[0], &expected.quants, &sections.quants),
                        (&planes[1], &expected.scales, &sections.records),
                        (&planes[1], &expected.scales, &sections.subs),
                    ] {
                        let same = plane[range.clone()] == expected[range.clone()];
                        assert!(
                            same,
                            "{ty}: group {group} in place {place} of {}",
                            room.groups
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn rows_are_cut_where_a_binding_ends_only_and_then_between_records() {
        let (rows, cols) = (77, 256);
        let weight = random_weight(&mut Rng::fresh(), GgmlType::Q8_0, 1, rows, cols);
        let bytes = |rows| {
            let (q, s) = repack::plane_bytes(weight.ty, rows, cols);
            q.max(s) as u64
        };
        for (binding, expected) in [
            (None, vec![77]),
            (Some(bytes(77)), vec![77]),
            (Some(bytes(76)), vec![64, 13]),
            (Some(bytes(40)), vec![32, 32, 13]),
            (Some(bytes(31)), vec![16, 16, 16, 16, 13]),
        ] {
            let gpu = Gpu::open(&GpuOptions {
                max_binding: binding,
                ..GpuOptions::default()
            })
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
            let mut loader = Loader::new(&gpu);
            loader.add(&weight).unwrap_or_else(|e| panic!("{e}"));
            let pieces = loader.weights[0].1.iter();
            let found: Vec<_> = pieces.map(|p| p.rows).collect();
            assert_eq!(found, expected, "{binding:?}");
        }
    }
}
