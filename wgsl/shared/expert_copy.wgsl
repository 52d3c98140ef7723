// Copies of parts of an expert to its place on the device, from host memory or from a slot that keeps it.
//
// The planes are vectors of 16 bytes, whatever the type of the weight is: an expert is `quants` of them in one plane, `records` in the other
// behind its `head`, and `subs` in its sub-plane, which begins at vector `host_sub`, `kept_sub` or `to_sub`. The head is a grid, which every
// weight of the type begins with: it is not copied. A part is LOADS vectors of each thread of a workgroup, which requests all of them before it
// stores one. The first `quant_parts` parts are of the plane of quants.
#number WG LOADS  // threads of a workgroup, vectors of a thread
#word quants: u32
#word head: u32
#word records: u32
#word subs: u32
#word quant_parts: u32
#word experts: u32      // in host memory
#word places: u32
#word host_sub: u32
#word to_sub: u32
#word slots?: u32
#word kept_sub?: u32
#read host_q: array<vec4<u32>> @words(4 * p.experts * p.quants)                                          // (experts, quants)
#read host_s: array<vec4<u32>> @words(4 * max(p.head + p.experts * p.records, p.host_sub + p.experts * p.subs))   // (experts, records), (experts, subs)
#write to_q: array<vec4<u32>> @words(4 * p.places * p.quants)                                            // (places, quants)
#write to_s: array<vec4<u32>> @words(4 * max(p.head + p.places * p.records, p.to_sub + p.places * p.subs))        // (places, records), (places, subs)
#read kept_q?: array<vec4<u32>> @words(4 * p.slots * p.quants)                                           // (slots, quants)
#read kept_s?: array<vec4<u32>> @words(4 * max(p.head + p.slots * p.records, p.kept_sub + p.slots * p.subs))      // (slots, records), (slots, subs)
#each k LOADS
const NONE = 0xffffffffu;
const KEPT = 0x80000000u;
const PART = WG * LOADS;

// The vector i of an expert in a plane of scales.
fn scale_at(expert: u32, i: u32, sub: u32) -> u32 {
  return select(sub + expert * p.subs + i - p.records, p.head + expert * p.records + i, i < p.records);
}

// Copies `part` of an expert of host memory, or of KEPT + a slot, to `place`.
fn copy_part(from_expert: u32, place: u32, part: u32, t: u32) {
  let source = from_expert & ~KEPT;
  if (part < p.quant_parts) {
    let i = part * PART + t;
    let end = p.quants - 1u;
#ifdef kept_q
    if (from_expert >= KEPT) {
      let kept$k = kept_q[source * p.quants + min(i + $ku * WG, end)];
      if (i + $ku * WG <= end) { to_q[place * p.quants + i + $ku * WG] = kept$k; }
      return;
    }
#endif
    let host$k = host_q[source * p.quants + min(i + $ku * WG, end)];
    if (i + $ku * WG <= end) { to_q[place * p.quants + i + $ku * WG] = host$k; }
    return;
  }
  let i = (part - p.quant_parts) * PART + t;
  let end = p.records + p.subs - 1u;
#ifdef kept_q
  if (from_expert >= KEPT) {
    let kept$k = kept_s[scale_at(source, min(i + $ku * WG, end), p.kept_sub)];
    if (i + $ku * WG <= end) { to_s[scale_at(place, i + $ku * WG, p.to_sub)] = kept$k; }
    return;
  }
#endif
  let host$k = host_s[scale_at(source, min(i + $ku * WG, end), p.host_sub)];
  if (i + $ku * WG <= end) { to_s[scale_at(place, i + $ku * WG, p.to_sub)] = host$k; }
}
