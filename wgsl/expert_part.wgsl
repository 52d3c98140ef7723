// Copies some parts of all experts of a weight to their places on the device, beside other dispatches: from the slots that `table` tells, else
// from host memory.
//
// The parts of all experts have numbers: first come those that experts begin with, in turn, then the next of each. So any run of them has as
// much of each expert, and takes as long whichever of them have slots. This copies those from `first` on that lie before `behind`. Where it is
// repeated for each block of the context, each time copies the share of a block.
// Division: MISSING workgroups share the experts that have no slot, and KEEPING others those that have. So each copies as much over the bus as
// the others do. They are no more than the bus needs, since those of other dispatches are to find room beside them.
// Bound by: the bytes of the bus, whose latency many loads at a time hide.
#number MISSING KEEPING EXPERTS  // workgroups for either, experts of the layer
#word first: u32
#word behind: u32
#word block_begin?: u32
#word block_rows?: u32
#word pos?: u32
#word tokens?: u32
#import expert_copy
#read table?: array<u32> @words(4 + EXPERTS)   // of expert_slots

var<workgroup> slot_of: array<u32, EXPERTS>;   // 1 + the slot of an expert, or 0
var<workgroup> own: array<u32, EXPERTS>;       // the experts of the workgroup
var<workgroup> owned: atomic<u32>;

// The number of experts before this one that have a slot, or have none.
fn alike_before(expert: u32, keeps: bool) -> u32 {
  var before = 0u;
  var other = 0u;
  loop {
    if (other >= expert) { break; }
    before += select(0u, 1u, (slot_of[other] != 0u) == keeps);
    other += 1u;
  }
  return before;
}

#main
  var begin = p.first;
  var end = p.behind;
#ifdef block_rows
  let count = end - begin;
  let context = p.pos + p.tokens;
  end = begin + count * (p.block_begin + p.block_rows) / context;
  begin += count * p.block_begin / context;
#endif
  var e = t;
  loop {
    if (e >= EXPERTS) { break; }
    slot_of[e] = table_at(4u + e);
    e += WG;
  }
  if (t == 0u) { atomicStore(&owned, 0u); }
  workgroupBarrier();
  let keeps = wid.x >= MISSING;
  e = t;
  loop {
    if (e >= EXPERTS) { break; }
    if ((slot_of[e] != 0u) == keeps) {
      own[alike_before(e, keeps)] = e;
      atomicAdd(&owned, 1u);
    }
    e += WG;
  }
  workgroupBarrier();
  let experts = atomicLoad(&owned);
  if (experts == 0u) { return; }
  var i = begin / EXPERTS * experts + select(wid.x, wid.x - MISSING, keeps);
  loop {
    let part = i / experts;
    if (part * EXPERTS >= end) { break; }
    let expert = own[i % experts];
    let number = part * EXPERTS + expert;
    if (number >= begin && number < end) {
      copy_part(select(expert, KEPT + slot_of[expert] - 1u, keeps), expert, part, t);
    }
    i += select(MISSING, KEEPING, keeps);
  }
}
