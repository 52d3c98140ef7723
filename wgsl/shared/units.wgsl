// The units of a row that a thread multiplies: every LANES-th from its lane on, UNROLL of them at once.
#flag RAGGED   // some threads have fewer units than others

// The thread's k-th unit from unit b on. Behind the end of the row it is the last unit.
fn unit_at(b: u32, k: u32) -> u32 {
  if (RAGGED) { return min(b + k * LANES, UNITS - 1u); }
  return b + k * LANES;
}

// Whether the thread's k-th unit from unit b on belongs to the row.
fn in_row(b: u32, k: u32) -> bool { return !RAGGED || b + k * LANES < UNITS; }
