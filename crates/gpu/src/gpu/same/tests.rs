//! Protects the choice between the backends of a GPU: no GPU is shown twice, none is lost, and the better tier wins.

use wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

use super::*;
use crate::gpu::adapter::testing::adapter;
use crate::gpu::machine::{AMD, INTEL, NVIDIA};
use crate::gpu::tier::{MAX_PARAMS, SUBGROUP_BUFFERS};

const WITH_SUBGROUPS: bool = true;

fn list(adapters: &[Facts]) -> Vec<(usize, Vec<usize>)> {
    let gpus = gpus(adapters).into_iter();
    gpus.map(|gpu| (gpu.best, gpu.others)).collect()
}

#[test]
fn vulkan_is_preferred_where_both_backends_run_the_same_tier() {
    let all = [
        adapter("GeForce", Backend::Dx12, NVIDIA, WITH_SUBGROUPS),
        adapter("GeForce", Backend::Vulkan, NVIDIA, WITH_SUBGROUPS),
    ];
    assert_eq!(list(&all), [(1, vec![0])]);
    let reason = reason(&all[1], &all[0]);
    assert!(
        reason.starts_with("tier int8; it runs the same tier"),
        "{reason}"
    );
    assert!(reason.contains("vulkan"), "{reason}");
}

#[test]
fn the_better_tier_wins_whatever_the_backend() {
    let mut old_driver = adapter("Radeon", Backend::Vulkan, AMD, WITH_SUBGROUPS);
    old_driver.limits.max_storage_buffers_per_shader_stage = 8;
    let all = [
        old_driver,
        adapter("Radeon", Backend::Dx12, AMD, WITH_SUBGROUPS),
    ];
    assert_eq!(list(&all), [(1, vec![0])]);
    let reason = reason(&all[1], &all[0]);
    assert!(
        reason.starts_with("tier plain; it lacks 16 storage buffers"),
        "{reason}"
    );
}

#[test]
fn dx12_without_its_compiler_has_no_subgroups_and_says_what_to_install() {
    let all = [
        adapter("Arc", Backend::Vulkan, INTEL, WITH_SUBGROUPS),
        adapter("Arc", Backend::Dx12, INTEL, !WITH_SUBGROUPS),
    ];
    assert_eq!(list(&all), [(0, vec![1])]);
    let reason = reason(&all[0], &all[1]);
    assert!(
        reason.starts_with("tier plain; it lacks subgroups (DX12"),
        "{reason}"
    );
    assert!(
        reason.contains("dxcompiler.dll, version 1.8.2502 or newer"),
        "{reason}"
    );
    // Where there is no Vulkan, the same is said of the only adapter.
    assert_eq!(Tier::best(&all[1]), Tier::Plain);
    assert!(all[1].remedy().is_some());
    assert_eq!(all[0].remedy(), None);
}

#[test]
fn equal_cards_are_told_apart_by_their_bus_and_else_by_their_order() {
    let card = |backend, bus: &str| {
        let mut card = adapter("GeForce", backend, NVIDIA, WITH_SUBGROUPS);
        bus.clone_into(&mut card.info.device_pci_bus_id);
        card
    };
    let (vulkan, dx12) = (Backend::Vulkan, Backend::Dx12);
    let in_order = [
        card(vulkan, ""),
        card(vulkan, ""),
        card(dx12, ""),
        card(dx12, ""),
    ];
    assert_eq!(list(&in_order), [(0, vec![2]), (1, vec![3])]);
    let (a, b) = ("0000:01:00.0", "0000:41:00.0");
    let crossed = [
        card(vulkan, a),
        card(vulkan, b),
        card(dx12, b),
        card(dx12, a),
    ];
    assert_eq!(list(&crossed), [(0, vec![3]), (1, vec![2])]);
}

#[test]
fn other_gpus_and_software_are_devices_of_their_own() {
    let mut warp = adapter(
        "Microsoft Basic Render Driver",
        Backend::Dx12,
        0x1414,
        WITH_SUBGROUPS,
    );
    warp.info.device_type = DeviceType::Cpu;
    let mut integrated = adapter("Iris Xe", Backend::Dx12, INTEL, WITH_SUBGROUPS);
    integrated.info.device_type = DeviceType::IntegratedGpu;
    integrated.info.device = 7;
    // Metal tells no maker's number, and two GPUs of one backend are never the same.
    let metal = || adapter("Apple M3", Backend::Metal, 0, WITH_SUBGROUPS);
    let all = [
        warp,
        integrated,
        adapter("Arc", Backend::Vulkan, INTEL, WITH_SUBGROUPS),
        metal(),
        metal(),
    ];
    let expected = [
        (2, vec![]),
        (3, vec![]),
        (4, vec![]),
        (1, vec![]),
        (0, vec![]),
    ];
    assert_eq!(list(&all), expected);
}

#[test]
fn an_adapter_of_the_tests_has_just_what_the_tiers_need() {
    let facts = Facts {
        info: AdapterInfo::new(DeviceType::DiscreteGpu, Backend::Vulkan),
        limits: Limits::default(),
        features: Features::empty(),
    };
    let missing = Tier::Int8.missing(&facts);
    let expected = format!(
        "subgroups and immediates of {MAX_PARAMS} bytes and {SUBGROUP_BUFFERS} storage buffers in a shader (it has 8)"
    );
    assert_eq!(missing, expected);
    let whole = adapter("GeForce", Backend::Vulkan, NVIDIA, WITH_SUBGROUPS);
    assert_eq!(Tier::Int8.missing(&whole), "");
}
