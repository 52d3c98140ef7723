// The threads of a threadgroup as fibers: each runs until it waits for others.
#pragma once

// Waits for all threads of the threadgroup, which must come to the same line.
void fibers_barrier(int line);
// Leaves some bytes, at most 16, for the lanes of the own simdgroup that come to the same line, and waits for them.
void fibers_meet(const void *value, unsigned bytes, int line);
// Waits for the lanes of the own simdgroup, all of which must come to the same line.
void fibers_together(int line);
// The value of a lane that was there at the last meeting. A lane that was not there ends the program.
const void *fibers_of_lane(unsigned lane);
bool fibers_has_lane(unsigned lane);
unsigned fibers_lane();

// The place of a thread in the grid, as its kernel is told it.
struct KernelPlace {
  unsigned workgroup[3], workgroups[3], threads[3];
  unsigned index, lane, simdgroup, simdgroups;
};
// Written for each kernel: a thread of it at a place, its threads, and the memory that a threadgroup shares.
void kernel_thread(const KernelPlace &place);
struct KernelShared { void *at; unsigned long bytes; };
extern const unsigned kernel_threads[3];
extern KernelShared kernel_shared[];
extern const unsigned kernel_shared_count;
// The memory that is bound to each slot.
extern void *kernel_slots[32];
