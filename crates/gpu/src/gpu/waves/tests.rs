//! Protects emulated subgroups: they do what subgroups of their size should.

use crate::gpu::buffer::{Range, Role};
use crate::gpu::call::{Call, State};
use crate::gpu::record::Recording;
use crate::gpu::testing::{WAVE_SIZES, waves};
use crate::gpu::wait::Wait;
use crate::gpu::{Most, Step, Tier};

#[test]
fn subgroups_have_the_emulated_size_and_do_what_they_should() {
    let source = "#write data: array<vec4<u32>> @words(4 * 128)
var<workgroup> order: array<u32, 128>;
const WG = 128u;
#main
  order[t] = t;
  var sum = subgroupAdd(f32(order[t]));
  if (subgroup == 1u) {
    var i = 0u;
    loop {
      if (i >= 3u) { break; }
      sum = f32(subgroupMax(u32(sum) + lane_id));
      i += 1u;
    }
  }
  workgroupBarrier();
  var near = t;
  // Rows of 8 lanes that meet while others do not, and then all.
  if (t < 72u) { near = subgroupShuffleXor(near, 4u); }
  near += subgroupShuffleXor(t, 4u);
  let other = subgroupShuffleXor(vec2<f32>(f32(t), 0.5), 8u);
  let far = order[127u - t];
  data[t] = vec4(subgroup_size * 1000u + lane_id, u32(sum), u32(other.x) * 1000u + near, far + subgroupShuffle(t, 3u));
}";
    for gpu in waves(Tier::Subgroup, &WAVE_SIZES) {
        let size = gpu.waves.expect("it is emulated");
        let data = Range::whole(&gpu.storage("test", 128 * 16, Role::Words).wait().unwrap());
        let call = Call::inline("waves", source).bind("data", &data);
        let recording = Recording::new(&gpu, &Step::of(Most::token(1), [call]))
            .wait()
            .unwrap_or_else(|e| panic!("{e}"));
        recording.submit(&gpu, &State::default());
        let found: Vec<[u32; 4]> = gpu.read(&data.buffer, 0, 128 * 16).wait().unwrap();
        for (t, found) in (0..128).zip(found) {
            let first = t / size * size;
            let mut sum = (first..first + size).sum::<u32>();
            if first / size == 1 {
                sum += 3 * (size - 1);
            }
            let near = if t < 72 { t ^ 4 } else { t };
            let expected = [
                size * 1000 + t % size,
                sum,
                (first + ((t % size) ^ 8)) * 1000 + near + (t ^ 4),
                127 - t + first + 3,
            ];
            assert_eq!(found, expected, "thread {t} of {size}");
        }
    }
}
