// Copies some parts of all experts of a weight to their places on the device, beside other dispatches: from the slots that `table` tells, else
// from host memory.
//
// The parts of all experts have numbers: first come those that experts begin with, in turn, then the next of each. So any run of them has as
// much of each expert, and takes as long whichever of them have slots. This copies those from `first` on that lie before `behind`. Where it is
// repeated for each block of the context, each time copies the share of a block.
// Division: WORKGROUPS workgroups, of which each takes every so many parts. They are no more than the bus needs, since those of other dispatches
// are to find room beside them.
// Bound by: the bytes of the bus, whose latency many loads at a time hide.
#number WORKGROUPS
#word first: u32
#word behind: u32
#word parts: u32        // of an expert
#word block_begin?: u32
#word block_rows?: u32
#word pos?: u32
#word tokens?: u32
#import expert_copy
#read table?: array<u32> @words(4 + p.experts)   // of expert_slots

// KEPT + the slot of an expert that has one, else the expert.
fn source_of(expert: u32) -> u32 {
  let slot = table_at(4u + expert);
  return select(KEPT + slot - 1u, expert, slot == 0u);
}

#main
  var i = p.first;
  var behind = min(p.behind, p.parts * p.experts);
#ifdef block_rows
  let count = behind - i;
  let context = p.pos + p.tokens;
  behind = i + count * (p.block_begin + p.block_rows) / context;
  i += count * p.block_begin / context;
#endif
  i += wid.x;
  loop {
    if (i >= behind) { break; }
    let part = i / p.experts;
    // The workgroups do not keep to the same experts, of which some come faster.
    let expert = (i + part) % p.experts;
    copy_part(source_of(expert), expert, part, t);
    i += WORKGROUPS;
  }
}
