//! Weights on the device: what goes where in a few large buffers.
//!
//! Every tensor is repacked into two planes ([`crate::quant::repack`]) and bound by offset. One whose planes exceed the
//! adapter's binding limit is cut into row ranges, each with planes of its own, and kernels run once per range.

use super::buffer::{Buffer, Range, Role};
pub use super::upload::write_head;
use super::{Gpu, GpuError, Target, upload};
use crate::model::Weight;
use crate::quant::{GgmlType, repack};

/// The largest buffer to allocate: a little under the 2 GiB that 32-bit offsets and several drivers allow.
const MAX_BUFFER: u64 = 1900 << 20;

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

/// A buffer that is planned: its bytes, and whether they lie in host memory.
struct Planning {
    bytes: u64,
    host: bool,
}

/// Plans the placement of all tensors, then fills them.
pub struct Loader<'a> {
    target: Target,
    weights: Vec<(&'a Weight, Vec<Planned>)>,
    buffers: Vec<Planning>,
    /// Whether weights that are added lie in host memory.
    host: bool,
    total: u64,
}

impl<'a> Loader<'a> {
    /// An empty plan.
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            weights: vec![],
            buffers: vec![],
            host: false,
            total: 0,
        }
    }

    /// Has weights that are added from now on lie in host memory ([`Buffer::is_host`]), or on the device, as they do else.
    pub fn to_host(&mut self, host: bool) {
        self.host = host;
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
        let host = self.host;
        let last = self.buffers.iter().rposition(|of| of.host == host);
        let has_room = |i: &usize| self.buffers[*i].bytes.next_multiple_of(align) + bytes <= limit;
        let index = last.filter(has_room).unwrap_or_else(|| {
            self.buffers.push(Planning { bytes: 0, host });
            self.buffers.len() - 1
        });
        let used = &mut self.buffers[index].bytes;
        let offset = used.next_multiple_of(align);
        *used = offset + bytes;
        self.total += bytes;
        (index, offset, bytes)
    }

    /// Bytes of all planes, on the device and in host memory.
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// The place of each tensor, by its number, in buffers that no device has made yet.
    pub fn places(&self) -> Vec<GpuWeight> {
        let make = |planned: &Planning| match planned.host {
            true => Buffer::of_host("experts in host memory", planned.bytes, Role::Words),
            false => Buffer::new("weights", planned.bytes, Role::Words),
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

    /// Makes the buffers of `places` and streams every tensor into them. `progress` is told the bytes done. Where weights have no
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
        for buffer in places.iter().flat_map(GpuWeight::buffers) {
            gpu.realise(buffer).await?;
        }
        if !self.weights.iter().all(|(weight, _)| weight.has_data()) {
            return Ok(());
        }
        let targets: Vec<_> = self
            .weights
            .iter()
            .zip(places)
            .flat_map(|((weight, _), place)| place.pieces.iter().map(move |piece| (weight, piece)))
            .map(|(weight, piece)| upload::Target {
                weight,
                first_row: piece.first_row as usize,
                rows: piece.rows as usize,
                quants: (&piece.quants.buffer, piece.quants.offset),
                scales: (&piece.scales.buffer, piece.scales.offset),
            })
            .collect();
        upload::stream(gpu, &targets, upload::SLOT, progress).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuOptions;
    use crate::gpu::wait::Wait;
    use crate::kernels::testing::{Rng, random_weight};
    use crate::quant::GgmlType;

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
