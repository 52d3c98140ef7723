// Runs a kernel for a grid of threadgroups, in three orders of threads and threadgroups, and compares what it writes.
//
// Standard input: 3 words of grid, a word with the count of slots, then for each slot its number, whether it is written, its bytes (u32
// each) and its contents. Standard output: the contents of the written slots, in the order of the input.
#include "fibers.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

void *kernel_slots[32];

namespace {

[[noreturn]] void fail(const char *what, long a = 0, long b = 0, long c = 0) {
  fprintf(stderr, what, a, b, c);
  fputc('\n', stderr);
  fflush(stderr);
  _exit(3);
}

const unsigned LANES = 32, MOST = 1024;
const size_t STACK = 256 << 10;

enum Waiting { RUNS, AT_BARRIER, AT_MEETING, ENDED };

struct Fiber {
  void *sp;
  char *stack;
  Waiting waiting;
  int line;
  bool whole;
  unsigned bytes;
  unsigned char value[16];
  KernelPlace place;
};

Fiber fibers[MOST];
void *scheduler_sp;
Fiber *current;

// The values that the lanes of a simdgroup left at their last meeting.
struct Meeting {
  unsigned char values[LANES][16];
  bool here[LANES];
} meetings[MOST / LANES];

extern "C" void fibers_switch(void **save, void *to);
#if defined(__x86_64__)
asm(R"(
.text
.globl fibers_switch
.type fibers_switch,@function
fibers_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
const size_t SAVED = 6 * 8;
#elif defined(__aarch64__)
asm(R"(
.text
.globl fibers_switch
fibers_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "fibers are written for x86-64 and arm64"
#endif

void wait() { fibers_switch(&current->sp, scheduler_sp); }

void begin() {
  kernel_thread(current->place);
  current->waiting = ENDED;
  wait();
  fail("a thread that has ended was woken");
}

void prepare(Fiber &fiber) {
  uintptr_t top = (uintptr_t(fiber.stack) + STACK) & ~uintptr_t(63);
#if defined(__x86_64__)
  // The stack pointer is where it is after a call: 8 bytes off a multiple of 16.
  void **sp = (void **)(top - 8);
  *--sp = (void *)begin;
  for (int i = 0; i < 6; ++i) *--sp = 0;
  fiber.sp = sp;
#else
  char *sp = (char *)(top - 160);
  memset(sp, 0, 160);
  *(void **)(sp + 88) = (void *)begin;
  fiber.sp = sp;
#endif
  fiber.waiting = RUNS;
}

// Has the lanes meet that wait on the first line of those where lanes of this simdgroup wait, as lanes do that went other ways.
bool meet(unsigned first, unsigned count) {
  int line = 0;
  unsigned ended = 0, others = 0;
  for (unsigned t = first; t < first + count; ++t)
    if (fibers[t].waiting == AT_MEETING && (line == 0 || fibers[t].line < line)) line = fibers[t].line;
  if (line == 0) return false;
  Meeting &meeting = meetings[first / LANES];
  for (unsigned lane = 0; lane < LANES; ++lane) {
    meeting.here[lane] = false;
    if (lane >= count) continue;
    Fiber &fiber = fibers[first + lane];
    if (fiber.waiting == AT_MEETING && fiber.line == line) {
      meeting.here[lane] = true;
      memcpy(meeting.values[lane], fiber.value, sizeof fiber.value);
      fiber.waiting = RUNS;
    } else {
      ++others;
      ended += fiber.waiting == ENDED;
    }
  }
  for (unsigned lane = 0; lane < count; ++lane)
    if (meeting.here[lane] && fibers[first + lane].whole && others)
      fail("line %ld: %ld lanes of a simdgroup are not there for a matrix, %ld of them have ended", line, others, ended);
  return true;
}

// Runs `count` threads from `first` on, in this order, until each has ended or waits for the whole threadgroup.
void run_to_barrier(unsigned first, unsigned count, const unsigned *order) {
  for (;;) {
    for (unsigned i = 0; i < count; ++i) {
      Fiber &fiber = fibers[order[i]];
      if (fiber.waiting != RUNS) continue;
      current = &fiber;
      fibers_switch(&scheduler_sp, fiber.sp);
    }
    bool met = false;
    for (unsigned group = first; group < first + count; group += LANES)
      met |= meet(group, first + count - group < LANES ? first + count - group : LANES);
    if (!met) return;
  }
}

// Runs the threads of a threadgroup to their end. `apart` has each simdgroup run as far as it can before the next one begins, so that it
// meets what the others have not written yet, and overwrites what they have not read yet. Else simdgroups keep pace with each other.
void run_group(unsigned threads, const unsigned *order, bool apart) {
  for (;;) {
    for (unsigned i = 0; i < threads;) {
      unsigned first = apart ? order[i] / LANES * LANES : 0;
      unsigned count = apart && threads - first > LANES ? LANES : threads - first;
      run_to_barrier(first, count, order + i);
      i += count;
    }
    unsigned ended = 0;
    int line = 0;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibers[t].waiting == ENDED) { ++ended; continue; }
      if (line && fibers[t].line != line) fail("threads wait at two barriers, lines %ld and %ld", line, fibers[t].line);
      line = fibers[t].line;
    }
    if (ended == threads) return;
    if (ended) fail("line %ld: %ld threads wait at a barrier, and %ld have ended", line, threads - ended, ended);
    for (unsigned t = 0; t < threads; ++t) fibers[t].waiting = RUNS;
  }
}

struct Slot { uint32_t number, written, bytes; char *before, *now, *first; };

void read_all(void *to, size_t bytes) {
  if (bytes && fread(to, 1, bytes, stdin) != bytes) fail("the input ends early");
}

uint64_t random_state;
unsigned random_below(unsigned n) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return unsigned((random_state >> 33) % n);
}

// 0, 1, 2.. forwards, backwards or mixed.
void arrange(unsigned *order, unsigned count, int kind) {
  for (unsigned i = 0; i < count; ++i) order[i] = kind == 1 ? count - 1 - i : i;
  if (kind == 2)
    for (unsigned i = count; i > 1; --i) {
      unsigned j = random_below(i), kept = order[i - 1];
      order[i - 1] = order[j];
      order[j] = kept;
    }
}

void run_grid(const uint32_t *grid, unsigned threads, int kind) {
  unsigned order[MOST];
  unsigned groups = grid[0] * grid[1] * grid[2];
  unsigned *group_order = (unsigned *)malloc(groups * sizeof(unsigned));
  random_state = 1;
  arrange(group_order, groups, kind);
  for (unsigned g = 0; g < groups; ++g) {
    unsigned group = group_order[g];
    arrange(order, threads, kind);
    // Memory that nobody has written reads as NaN, and as a large number.
    for (unsigned i = 0; i < kernel_shared_count; ++i) memset(kernel_shared[i].at, 0xff, kernel_shared[i].bytes);
    for (unsigned t = 0; t < threads; ++t) {
      KernelPlace &place = fibers[t].place;
      place.workgroup[0] = group % grid[0];
      place.workgroup[1] = group / grid[0] % grid[1];
      place.workgroup[2] = group / grid[0] / grid[1];
      for (int i = 0; i < 3; ++i) place.workgroups[i] = grid[i], place.threads[i] = kernel_threads[i];
      place.index = t;
      place.lane = t % LANES;
      place.simdgroup = t / LANES;
      place.simdgroups = (threads + LANES - 1) / LANES;
      prepare(fibers[t]);
    }
    // Mixed threads keep pace, because their simdgroups do not follow each other.
    run_group(threads, order, kind != 2);
  }
  free(group_order);
}

}  // namespace

void fibers_barrier(int line) {
  current->waiting = AT_BARRIER;
  current->line = line;
  wait();
}

void fibers_meet(const void *value, unsigned bytes, int line) {
  current->waiting = AT_MEETING;
  current->line = line;
  current->whole = false;
  if (bytes) memcpy(current->value, value, bytes);
  wait();
}

void fibers_together(int line) {
  current->waiting = AT_MEETING;
  current->line = line;
  current->whole = true;
  wait();
}

bool fibers_has_lane(unsigned lane) { return lane < LANES && meetings[current->place.simdgroup].here[lane]; }

const void *fibers_of_lane(unsigned lane) {
  if (!fibers_has_lane(lane)) fail("line %ld: lane %ld reads lane %ld, which is not there", current->line, current->place.lane, lane);
  return meetings[current->place.simdgroup].values[lane];
}

unsigned fibers_lane() { return current->place.lane; }

int main(int argc, char **argv) {
  bool fast = argc > 1 && !strcmp(argv[1], "fast");
#if defined(__x86_64__)
  // Metal's fast math flushes denormal numbers to zero.
  if (fast) _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  unsigned threads = kernel_threads[0] * kernel_threads[1] * kernel_threads[2];
  if (threads > MOST) fail("%ld threads", threads);
  for (unsigned t = 0; t < threads; ++t) {
    void *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) fail("no memory for the stacks");
    fibers[t].stack = (char *)stack;
  }
  uint32_t grid[3], count;
  read_all(grid, sizeof grid);
  read_all(&count, sizeof count);
  Slot slots[32];
  if (count > 32) fail("%ld slots", count);
  for (unsigned i = 0; i < count; ++i) {
    Slot &slot = slots[i];
    uint32_t head[3];
    read_all(head, sizeof head);
    slot.number = head[0], slot.written = head[1], slot.bytes = head[2];
    slot.before = (char *)malloc(slot.bytes);
    slot.first = 0;
    read_all(slot.before, slot.bytes);
  }
  // Fast sums are compared with the twin's alone.
  int kinds = fast ? 1 : 3;
  for (int kind = 0; kind < kinds; ++kind) {
    for (unsigned i = 0; i < count; ++i) {
      // The copy has the exact size, so that the address sanitizer sees what is read or written behind it.
      Slot &slot = slots[i];
      slot.now = (char *)malloc(slot.bytes);
      memcpy(slot.now, slot.before, slot.bytes);
      kernel_slots[slot.number] = slot.now;
    }
    run_grid(grid, threads, kind);
    for (unsigned i = 0; i < count; ++i) {
      Slot &slot = slots[i];
      if (!slot.written && memcmp(slot.now, slot.before, slot.bytes)) fail("slot %ld is read only, and was written", slot.number);
      if (kind == 0) { slot.first = slot.now; continue; }
      for (unsigned at = 0; at < slot.bytes; at += 4)
        if (memcmp(slot.first + at, slot.now + at, slot.bytes - at < 4 ? slot.bytes - at : 4))
          fail("the order of the threads matters: order %ld has another word %ld in slot %ld", kind, at / 4, slot.number);
      free(slot.now);
    }
  }
  for (unsigned i = 0; i < count; ++i)
    if (slots[i].written) fwrite(slots[i].first, 1, slots[i].bytes, stdout);
  fflush(stdout);
  _exit(0);
}
