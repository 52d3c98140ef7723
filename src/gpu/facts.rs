//! What an adapter tells of itself, as a value: so that choosing among adapters and planning for them need none. In a browser wgpu leaves
//! some of it out, which is asked for beside it.

#[cfg(target_arch = "wasm32")]
use super::browser;
use wgpu::{Adapter, AdapterInfo, Backend, Features, Limits};

/// What an adapter tells of itself.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name, maker, kind, backend and driver.
    pub info: AdapterInfo,
    /// What it allows at most.
    pub limits: Limits,
    /// What it can do.
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
    /// Its name and backend, as `--device` matches them.
    pub fn label(&self) -> String {
        format!("{} ({})", self.info.name, self.info.backend)
    }

    /// What gives the adapter subgroups, if that is a file.
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
