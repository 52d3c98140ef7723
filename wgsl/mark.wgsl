// told[0] += 1. It is the last dispatch of a pass, so the host can count the passes that ran to their end.
//
// Division: one workgroup, of which one thread counts. Bound by: launching it.
#write told: array<u32> @words(1)   // (2): passes that ended, number of the submission

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) t: u32) {
  if (t == 0u) { told[0] += 1u; }
}
