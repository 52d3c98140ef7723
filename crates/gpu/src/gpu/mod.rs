//! wgpu: adapters, memory, shader templates, pipelines and recorded steps.
//!
//! Nothing of it blocks: what is awaited of a device is a future made of `pending`. `wait` holds what native builds block with.

pub mod adapter;
#[cfg(not(target_arch = "wasm32"))]
pub mod barriers;
pub mod behind;
#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
pub mod budget;
pub mod buffer;
pub mod bus;
pub mod call;
pub mod clock;
pub mod compiling;
pub mod coop;
pub mod device;
pub mod error;
pub mod facts;
pub mod geometry;
mod heap;
pub mod host_memory;
pub mod interface;
mod label;
mod levels;
pub mod machine;
pub mod memory;
pub mod on_host;
pub mod open;
pub mod pending;
pub mod pipeline;
pub mod question;
pub mod record;
mod same;
pub mod shader;
pub(crate) mod small_halves;
pub mod stamps;
pub mod step;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tier;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod translate;
pub mod tuning;
mod upload;
#[cfg(not(any(target_arch = "wasm32", target_vendor = "apple")))]
mod vulkan;
#[cfg(not(target_arch = "wasm32"))]
pub mod wait;

pub use adapter::{AdapterSummary, DeviceChoice, adapters, chosen, lacks};
pub use call::Most;
pub use coop::Coop;
pub use device::Gpu;
pub use error::{ANOTHER_TIER, GpuError};
pub use open::GpuOptions;
pub use step::Step;
pub use target::Target;
pub use tier::Tier;
