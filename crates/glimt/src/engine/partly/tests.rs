//! Protects the number of slots at each boundary, and the line that tells of them.

use super::*;
use crate::gpu::Tier;
use crate::gpu::machine::Machine;
use std::cell::Cell;

const EXPERTS: Experts = Experts {
    count: 64,
    used: 4,
    of_token: 1_000_000_000,
    layers: 46,
};
/// Bytes of a slot in all layers, and of what else lies on the device.
const SLOT: u64 = 1000;
const REST: u64 = 5000;

/// A plan like those of a model: `end` bytes are lost at the end of a buffer.
fn plan(slots: Option<u32>, end: u64) -> MemoryPlan {
    let experts = slots.unwrap_or(EXPERTS.count);
    let room = if slots.is_some() { 3000 } else { 0 };
    MemoryPlan {
        ctx: 100,
        weights: REST + SLOT * u64::from(experts) + if experts > 0 { end } else { 0 },
        host: slots.map_or(0, |_| SLOT * u64::from(EXPERTS.count)),
        file: 0,
        slots,
        cache: 100,
        cache_per_token: 1,
        ubatch: 1,
        scratch: 200 + room,
    }
}

/// The slots that are found in `has` bytes.
fn found(has: u64, end: u64) -> Option<u32> {
    let tries = Cell::new(0);
    let planned = |slots| {
        tries.set(tries.get() + 1);
        Ok(plan(Some(slots), end))
    };
    let found = EXPERTS.most_slots(&plan(None, end), has, &planned);
    assert!(tries.get() <= 5, "{} plans", tries.get());
    let found = found.expect("it is planned")?;
    assert!(found.total() <= has);
    found.slots
}

#[test]
fn there_are_as_many_slots_as_have_room() {
    let least = plan(Some(0), 0).total();
    assert_eq!(found(least - 1, 0), None);
    assert_eq!(found(least, 0), Some(0));
    // As many slots as a token uses experts are the first that keep any.
    assert_eq!(found(least + 4 * SLOT - 1, 0), Some(0));
    assert_eq!(found(least + 4 * SLOT, 0), Some(4));
    for slots in [5, 31, 62] {
        let has = least + u64::from(slots) * SLOT;
        assert_eq!(found(has - 1, 0), Some(slots - 1));
        assert_eq!(found(has, 0), Some(slots));
        assert_eq!(found(has + SLOT - 1, 0), Some(slots));
        // A buffer's end takes the room of the last of them.
        assert_eq!(found(has, 10), Some(if slots == 5 { 4 } else { slots - 1 }));
        assert_eq!(found(has + 10, 10), Some(slots));
    }
    assert_eq!(found(u64::MAX, 0), Some(63));
}

/// An outcome with so many slots on a device of this name, whose token takes 2 ms beside what it reads.
fn partly(name: &str, slots: u32) -> Partly {
    let target = Target::new(name, Machine::H200, Tier::Int8);
    let expected = Expected::of_waiting(0.002);
    let bus = "5x16".parse().expect("it is a bus");
    let way = Way::Bus(bus);
    Partly::new(&target, EXPERTS, &plan(Some(slots), 0), &expected, way)
}

#[test]
fn a_token_waits_for_the_experts_that_are_missing() {
    // PCIe 5 x16 brings 50.4 GB in a second, so a token without any of its 1 GB waits for 19.8 ms.
    for (slots, expected) in [(0, 45.8), (16, 59.3), (32, 83.9), (60, 309.4)] {
        let found = partly("NVIDIA H200", slots).tokens_per_s;
        assert!((found / expected - 1.0).abs() < 0.01, "{slots}: {found}");
    }
}

#[test]
fn a_token_waits_for_the_disk_and_for_answers() {
    let target = Target::new("NVIDIA H200", Machine::H200, Tier::Int8);
    let expected = Expected::of_waiting(0.002);
    // A disk of 2 GB/s reads a token's experts in 500 ms, and 46 answers take 2.7 ms.
    for (slots, speed) in [(0, 1.98), (32, 3.93), (60, 27.8)] {
        let way = Way::Disk("2".parse().expect("it is a speed"));
        let found = Partly::new(&target, EXPERTS, &plan(Some(slots), 0), &expected, way);
        let line = found.to_string();
        let found = found.tokens_per_s;
        assert!((found / speed - 1.0).abs() < 0.01, "{slots}: {found}");
        assert!(
            line.contains("stay in the file, and missing ones are read from the file (2.0 GB/s)"),
            "{line}"
        );
    }
}

#[test]
fn the_line_tells_what_lies_where_and_how_fast_it_should_be() {
    let line = |name, slots| {
        Partly {
            resident: 5 << 30,
            host: 15 << 30,
            ..partly(name, slots)
        }
        .to_string()
    };
    assert_eq!(
        line("NVIDIA H200", 16),
        "5.0 GiB of the weights lie on the GPU, with 16 of 64 experts of each layer; all experts, 15.0 GiB, lie in the machine's memory \
         and come over the bus (PCIe 5 x16); computed: at least 59 tokens/s"
    );
    let unknown = line("llvmpipe", 0);
    assert!(unknown.contains("with 0 of 64 experts"), "{unknown}");
    assert!(
        unknown.ends_with(
            "46 tokens/s for the bus and the dispatches alone, since the speed of the GPU's memory is not known"
        ),
        "{unknown}"
    );
}

#[test]
fn a_share_of_the_cpu_is_computed_for_experts_that_come_over_a_bus() {
    let cpu = Processor::ASSUMED;
    let by = |way, slots| Partly {
        way,
        // Without any of its 1 GB a token waits for the bus for 79 ms.
        tokens_per_s: 10.0,
        ..partly("NVIDIA H200", slots)
    };
    let slow = Way::Bus("4x8".parse().expect("it is a bus"));
    let found = by(slow, 0).share(cpu).expect("it pays");
    assert!(found.experts > 0 && found.tokens_per_s > 12.0, "{found}");
    // Nearly all have slots.
    assert_eq!(by(slow, 63).share(cpu), None);
    let disk = Way::Disk("3".parse().expect("it is a speed"));
    assert_eq!(by(disk, 0).share(cpu), None);
}
