// How threads of emulated subgroups wait for each other (waves.rs), which declares WAVE, WAVES, WAVE_THREADS and WAVE_WORDS.

// Times that a thread gives way before it gives up. What it finds is zero from then on, so that a test fails in place of hanging.
const PATIENCE = 2000u;

var<private> wave_lost: bool;
var<private> wave_t: u32;
var<private> wave_rounds: u32;
var<private> barrier_rounds: u32;
var<private> pair_rounds: vec2<u32>;
// Eight counters of a byte for each thread: how often it met the thread whose number differs by a mask. Two threads count alike for
// theirs, whomever else they meet.
var<workgroup> pair_arrived: array<atomic<u32>, WAVE_THREADS * 2u>;
// Counters of arrivals: one of each subgroup, one of the barriers of the workgroup, and one of the end.
var<workgroup> wave_arrived: array<atomic<u32>, WAVES + 2u>;
var<workgroup> wave_words: array<u32, WAVE_THREADS * WAVE_WORDS>;

fn wave_first() -> u32 { return wave_t / WAVE * WAVE; }
fn wave_lanes() -> u32 { return min(WAVE, WAVE_THREADS - wave_first()); }

fn wave_wait(counter: u32, all: u32) {
  atomicAdd(&wave_arrived[counter], 1u);
  var tries = 0u;
  loop {
    if (atomicLoad(&wave_arrived[counter]) >= all) { break; }
    if (tries > PATIENCE) { wave_lost = true; break; }
    workgroupBarrier();
    tries += 1u;
  }
}

// Workgroup memory holds anything before.
fn wave_begin(t: u32) {
  wave_t = t;
  if (t == 0u) { for (var i = 0u; i < WAVES + 2u; i += 1u) { atomicStore(&wave_arrived[i], 0u); } }
  atomicStore(&pair_arrived[t * 2u], 0u);
  atomicStore(&pair_arrived[t * 2u + 1u], 0u);
  workgroupBarrier();
}

fn wave_sync() {
  wave_rounds += 1u;
  wave_wait(wave_t / WAVE, wave_rounds * wave_lanes());
}

fn wave_barrier() {
  barrier_rounds += 1u;
  wave_wait(WAVES, barrier_rounds * WAVE_THREADS);
}

fn pair_sync(partner: u32, mask: u32) {
  let counter = select(firstTrailingBit(mask), 7u, mask == 3u);
  let word = counter / 4u;
  let shift = counter % 4u * 8u;
  let count = (extractBits(pair_rounds[word], shift, 8u) + 1u) & 255u;
  pair_rounds[word] = insertBits(pair_rounds[word], count, shift, 8u);
  atomicStore(&pair_arrived[wave_t * 2u + word], pair_rounds[word]);
  var tries = 0u;
  loop {
    // The partner may be one ahead.
    let ahead = extractBits(atomicLoad(&pair_arrived[partner * 2u + word]), shift, 8u) - count;
    if ((ahead & 255u) <= 1u) { break; }
    if (tries > PATIENCE) { wave_lost = true; break; }
    workgroupBarrier();
    tries += 1u;
  }
}
