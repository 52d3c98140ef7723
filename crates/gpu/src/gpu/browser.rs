//! Facts that a browser tells and wgpu leaves out: the name of the adapter's maker, and subgroups, which wgpu 30 neither tells of nor asks
//! for.

use super::machine::{AMD, INTEL, NVIDIA};
use std::borrow::Cow;
use wasm_bindgen::prelude::*;
use wgpu::{Adapter, AdapterInfo, Backend, Features, Limits, ShaderSource};

#[wasm_bindgen(inline_js = r#"
let adapter = null;

export function watch() {
  if (!globalThis.GPUAdapter || GPUAdapter.prototype.watchedByGlimt) return;
  GPUAdapter.prototype.watchedByGlimt = true;
  const choose = GPU.prototype.requestAdapter;
  GPU.prototype.requestAdapter = async function (options) {
    const chosen = await choose.call(this, options);
    adapter = chosen ?? adapter;
    return chosen;
  };
  const open = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = function (wanted = {}) {
    const more = this.features.has("subgroups") ? ["subgroups"] : [];
    return open.call(this, { ...wanted, requiredFeatures: [...(wanted.requiredFeatures ?? []), ...more] });
  };
}

export function told(what) {
  return String(adapter?.info?.[what] ?? "");
}

export function subgroups() {
  return Boolean(adapter?.features.has("subgroups") && navigator.gpu.wgslLanguageFeatures.has("subgroup_id"));
}
"#)]
extern "C" {
    /// Has the adapter that is chosen next be known to the functions below, and its device be opened with subgroups if it has them.
    pub(super) fn watch();
    /// A text that the adapter tells of itself; empty where it does not.
    fn told(what: &str) -> String;
    /// Whether shaders may use subgroups and ask for the number of their own.
    fn subgroups() -> bool;
}

/// The adapter's name, maker, kind and backend.
pub(super) fn info(adapter: &Adapter) -> AdapterInfo {
    let mut info = adapter.get_info();
    let maker = told("vendor");
    info.vendor = match maker.as_str() {
        "nvidia" => NVIDIA,
        "amd" => AMD,
        "intel" => INTEL,
        _ => 0,
    };
    if info.name.is_empty() {
        let names = [maker.as_str(), &told("architecture"), &told("device")];
        let names: Vec<_> = names
            .into_iter()
            .filter(|name| !name.is_empty())
            .map(|name| match name {
                "apple" => "Apple",
                other => other,
            })
            .collect();
        info.name = match names.is_empty() {
            true => "a GPU without a name".to_owned(),
            false => names.join(" "),
        };
    }
    if maker == "apple" {
        // Browsers tell a range that holds for all that Metal runs on. Apple's GPUs have 32.
        (info.subgroup_min_size, info.subgroup_max_size) = (32, 32);
    }
    info
}

/// The features of `adapter`, subgroups included.
pub(super) fn features(adapter: &Adapter) -> Features {
    let mut features = adapter.features();
    features.set(Features::SUBGROUP, subgroups());
    features
}

/// A shader's text as browsers want it: they ask for a line that naga refuses. That all lanes of a subgroup are there wherever they
/// tell each other something holds by how work is divided, which they cannot see.
///
/// # Errors
/// None here: the device tells what is wrong with it.
pub(super) fn source(
    text: String,
    _: Backend,
    subgroups: bool,
    _: &Limits,
) -> Result<ShaderSource<'static>, String> {
    let head = match subgroups {
        true => "enable subgroups;\ndiagnostic(off, subgroup_uniformity);\n",
        false => "",
    };
    Ok(ShaderSource::Wgsl(Cow::Owned(head.to_owned() + &text)))
}
