//! Protects the choice of a device: what is asked for is used or refused by name.

use wgpu::Backend;

use super::testing::adapter;
use super::*;
use crate::gpu::machine::{AMD, NVIDIA};

/// The GPU and the adapter, by index, that `--device` with this text chooses among two GPUs of a Windows machine.
fn chosen(text: &str) -> Result<(usize, usize), GpuError> {
    let all = [
        adapter("GeForce RTX 5080", Backend::Vulkan, NVIDIA, true),
        adapter("Radeon RX 9070", Backend::Vulkan, AMD, true),
        adapter("GeForce RTX 5080", Backend::Dx12, NVIDIA, true),
        adapter("Radeon RX 9070", Backend::Dx12, AMD, false),
    ];
    let choice = text.parse().expect("it is a choice");
    chosen_of(&all, &gpus(&all), &choice, false)
}

#[test]
fn a_gpu_is_one_device_and_another_backend_is_used_where_it_is_named() {
    for (text, expected) in [
        ("auto", (0, 0)),
        ("0", (0, 0)),
        ("1", (1, 1)),
        ("geforce", (0, 0)),
        ("radeon", (1, 1)),
        ("GeForce RTX 5080 (vulkan)", (0, 0)),
        ("geforce rtx 5080 (dx12)", (0, 2)),
        ("9070 (dx12)", (1, 3)),
    ] {
        assert_eq!(chosen(text).expect(text), expected, "{text}");
    }
}

#[test]
fn what_is_no_device_or_several_is_refused_by_name() {
    let refused = |text: &str| chosen(text).expect_err(text).to_string();
    let none = refused("2");
    assert!(none.contains("matches --device '2'"), "{none}");
    assert!(
        none.contains("0: GeForce RTX 5080 (vulkan), 1: Radeon RX 9070 (vulkan)"),
        "{none}"
    );
    let several = refused("dx12");
    assert!(
        several.contains("0: GeForce RTX 5080 (dx12), 1: Radeon RX 9070 (dx12)"),
        "{several}"
    );
    assert!(refused("arc").contains("matches --device 'arc'"));
    assert!(matches!(
        chosen("vulkan"),
        Err(GpuError::AdapterAmbiguous { .. })
    ));
    let none = chosen_of(&[], &[], &DeviceChoice::Auto, false);
    assert!(matches!(none, Err(GpuError::NoAdapter)));
}

#[test]
fn software_is_refused_where_hardware_is_asked_for() {
    let mut software = adapter("llvmpipe", Backend::Vulkan, 0x10005, true);
    software.info.device_type = DeviceType::Cpu;
    let all = [software];
    let refused = chosen_of(&all, &gpus(&all), &DeviceChoice::Auto, true);
    assert!(matches!(refused, Err(GpuError::OnlySoftware { .. })));
    let taken = chosen_of(&all, &gpus(&all), &DeviceChoice::Index(0), true);
    assert_eq!(taken.expect("it is asked for"), (0, 0));
}
