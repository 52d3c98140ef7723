//! The description of a call, for those who measure it.

use super::call::{About, Call};
use super::interface;
use crate::quant::GgmlType;
use crate::quant::repack::shader_module;
use std::collections::BTreeSet;

impl Call {
    /// The call's description, for those who measure it.
    pub fn about(&self) -> About {
        let mut label = self.kernel.to_owned();
        // The types of its weights; other modules follow from them and from the flags.
        let modules: BTreeSet<_> = self.variant.modules.values().collect();
        let types = GgmlType::ALL.iter().map(|ty| shader_module(*ty));
        let types = types.filter(|name| modules.contains(name));
        for ty in types {
            label += &format!(" {}", ty.to_uppercase());
        }
        if !self.shape.is_empty() {
            label += &format!(" {}", self.shape);
        }
        // With the names of what it may do without and does not.
        let flags = interface::spec(self)
            .map_or_else(|_| self.variant.flags.clone(), |spec| spec.variant.flags);
        for flag in &flags {
            label += &format!(" +{}", flag.to_lowercase());
        }
        About {
            kernel: self.kernel,
            label,
            sublayer: self.sublayer,
            bytes: self.bytes,
            bytes_per_row: self.bytes_per_row,
            bytes_of_blocks: self.bytes_of_blocks,
            flops: self.flops,
        }
    }
}
