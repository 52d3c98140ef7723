//! Facts that an adapter tells of itself, as a value: so that choosing among adapters and planning for them need none. In a browser wgpu
//! leaves some of them out, and the browser is asked for these.

#[cfg(target_arch = "wasm32")]
use super::browser;
use wgpu::{Adapter, AdapterInfo, Backend, Features, Limits};

/// The facts that an adapter tells of itself.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The adapter's name, maker, kind, backend and driver.
    pub info: AdapterInfo,
    /// The limits of the adapter.
    pub limits: Limits,
    /// The features of the adapter.
    pub features: Features,
}

impl From<&Adapter> for Facts {
    fn from(adapter: &Adapter) -> Self {
        #[cfg(not(target_arch = "wasm32"))]
        let (info, features) = (adapter.get_info(), adapter.features());
        #[cfg(target_arch = "wasm32")]
        let (info, features) = (browser::info(adapter), browser::features(adapter));
        Self {
            info,
            limits: adapter.limits(),
            features,
        }
    }
}

impl Facts {
    /// The adapter's name and backend, as `--device` matches them.
    pub fn label(&self) -> String {
        format!("{} ({})", self.info.name, self.info.backend)
    }

    /// Advice on how to get subgroups, if a missing file is the reason for their absence.
    ///
    /// wgpu compiles for DX12 with dxcompiler.dll if it finds a version that can sign what it compiles. Otherwise it takes the older compiler
    /// of Windows, which knows no subgroups.
    pub fn remedy(&self) -> Option<&'static str> {
        let lacks = !self.features.contains(Features::SUBGROUP);
        (self.info.backend == Backend::Dx12 && lacks).then_some(
            "DX12 has subgroups only with dxcompiler.dll, version 1.8.2502 or newer: put it beside glimt.exe",
        )
    }
}
