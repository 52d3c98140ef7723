//! The common parts of the benches: the device and what it can do at best, arguments, timing, and how a line looks.

#![allow(dead_code, reason = "every bench uses its own part of these")]

pub mod product;

use glimt::engine::Wait;
use glimt::engine::bandwidth::read_bandwidth;
use glimt::gpu::buffer::{Buffer, Range, Role};
use glimt::gpu::call::{Call, State};
use glimt::gpu::clock;
use glimt::gpu::record::Recording;
use glimt::gpu::{Gpu, GpuError, GpuOptions, Most, Step};
use std::process::ExitCode;

/// A device to measure, and what is asked about it.
pub struct Bench {
    /// The device.
    pub gpu: Gpu,
    /// Whether few and small measurements are wanted: as asked, and always on software.
    pub quick: bool,
    filters: Vec<String>,
    /// Geometries to take, as `--set` has them.
    pub set: Vec<String>,
    /// Bytes per second of a plain read.
    bandwidth: f64,
    /// Floating-point operations per second of a large product in the best tile.
    products: f64,
}

/// The least work of a dispatch.
#[derive(Clone, Copy)]
pub struct Work {
    /// Bytes that it reads and writes at least.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

/// Runs a bench with the arguments of the command line: `--quick`, `--device D` and `--tier T` as in `glimt`, and words of which one must be
/// part of the kernel or the shape of a line. With `--set KEY=lanes,tile,at_once,unroll` sites whose key has these words take that geometry,
/// in benches of whole steps. `--set NAME=NUMBER` replaces one of the tuned numbers.
pub fn main(run: impl FnOnce(&Bench) -> Result<(), GpuError>) -> ExitCode {
    match Bench::from_arguments().and_then(|bench| run(&bench).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Bench {
    fn from_arguments() -> Result<Self, String> {
        let (mut options, mut quick, mut filters) = (GpuOptions::default(), false, vec![]);
        let mut set = vec![];
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo adds it.
                "--bench" => {}
                "--quick" => quick = true,
                "--device" => {
                    let device = arguments.next().unwrap_or_default();
                    options.device = device.parse().map_err(|e| format!("--device: {e}"))?;
                }
                "--tier" => {
                    let tier = arguments.next().unwrap_or_default();
                    let tier = tier.parse().map_err(|e| format!("--tier: {e}"))?;
                    options.tier = Some(tier);
                }
                "--set" => set.push(arguments.next().unwrap_or_default()),
                flag if flag.starts_with('-') => {
                    return Err(format!(
                        "there is no {flag}; expected --quick, --device D, --tier T, --set KEY=GEOMETRY or words of the lines wanted"
                    ));
                }
                filter => filters.push(filter.to_owned()),
            }
        }
        let mut gpu = Gpu::open(&options).wait().map_err(|e| e.to_string())?;
        let numbers = |one: &String| {
            let (name, number) = one.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        let tuned = &mut gpu.target.machine.tuned;
        *tuned = tuned
            .with(&set.iter().filter_map(numbers).collect())
            .map_err(|e| format!("--set: {e}"))?;
        set.retain(|one| numbers(one).is_none());
        quick |= gpu.info.device_type == wgpu::DeviceType::Cpu;
        let mut bench = Self {
            gpu,
            quick,
            filters,
            set,
            bandwidth: f64::INFINITY,
            products: f64::INFINITY,
        };
        bench.measure_floors().map_err(|e| e.to_string())?;
        Ok(bench)
    }

    /// Measures what times are held against, and tells it.
    fn measure_floors(&mut self) -> Result<(), GpuError> {
        self.bandwidth = read_bandwidth(&self.gpu)?;
        let (products, what) = product::fastest(self)?;
        self.products = products;
        println!("{}, tier {}", self.gpu.info.name, self.gpu.tier.name());
        println!(
            "floor: the longer of reading the bytes at {} GB/s, as a plain read does, and computing at {} TFLOP/s, as {what} does",
            digits(self.bandwidth / 1e9).trim(),
            digits(self.products / 1e12).trim(),
        );
        Ok(())
    }

    /// Words of the lines wanted.
    pub fn filters(&self) -> &[String] {
        &self.filters
    }

    /// Whether a line is wanted.
    pub fn wants(&self, kernel: &str, shape: &str) -> bool {
        let of =
            |filter: &String| kernel.contains(filter.as_str()) || shape.contains(filter.as_str());
        self.filters.is_empty() || self.filters.iter().any(of)
    }

    /// Prints a line.
    pub fn tell(&self, kernel: &str, shape: &str, us: f64, work: Work, variant: &str) {
        let reading = work.bytes as f64 / self.bandwidth;
        let computing = work.flops as f64 / self.products;
        let rate = match computing > reading {
            true => format!("{} TFLOP/s", digits(work.flops as f64 / us / 1e6)),
            false => format!("{} GB/s   ", digits(work.bytes as f64 / us / 1e3)),
        };
        let floor = reading.max(computing) * 1e6;
        println!("{kernel:<21} {shape:<52} {us:10.2} us {rate} floor {floor:10.2} us  {variant}");
    }

    /// A new buffer of zeros.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn zeros(&self, bytes: u64, role: Role) -> Result<Range, GpuError> {
        Ok(Range::whole(
            &self.gpu.storage("bench", bytes, role).wait()?,
        ))
    }

    /// Frees buffers.
    pub fn release<'a>(&self, ranges: impl IntoIterator<Item = &'a Range>) {
        let buffers = ranges.into_iter().map(|range| &range.buffer);
        buffers.for_each(|buffer: &Buffer| self.gpu.release(buffer));
    }

    /// Rounds of a measurement, of which the best counts: so many, or few where it is to be quick.
    pub fn rounds(&self, rounds: usize) -> usize {
        if self.quick { 2 } else { rounds }
    }

    /// `calls` as a step for replays of `state`.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn record(&self, calls: Vec<Call>, state: &State) -> Result<Recording, GpuError> {
        Recording::new(&self.gpu, &Step::of(Most::of(state), calls)).wait()
    }

    /// Microseconds of the fastest of several replays.
    ///
    /// # Errors
    /// The error that the device reports.
    pub fn fastest(&self, step: &Recording, state: &State, rounds: usize) -> Result<f64, GpuError> {
        let times = clock::in_turn(&self.gpu, &[(step, state)], rounds).wait()?;
        Ok(times.into_iter().flatten().fold(f64::INFINITY, f64::min))
    }
}

/// A rate with four digits, or with five decimals where it is very small.
fn digits(rate: f64) -> String {
    let whole = rate.max(1e-2).log10().floor() as i32;
    let decimals = (3 - whole).clamp(0, 5) as usize;
    format!("{rate:8.decimals$}")
}
