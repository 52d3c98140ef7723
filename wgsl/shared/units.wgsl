// Which units of a row a thread multiplies: from the one of its lane on every LANES-th, UNROLL of them at once.
#flag RAGGED   // some threads have fewer units than others

// Unit number k of those from b on; behind the end of the row its last one.
fn unit_at(b: u32, k: u32) -> u32 {
  if (RAGGED) { return min(b + k * LANES, UNITS - 1u); }
  return b + k * LANES;
}

// Whether unit number k of those from b on belongs to the row.
fn in_row(b: u32, k: u32) -> bool { return !RAGGED || b + k * LANES < UNITS; }
