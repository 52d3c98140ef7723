// The sums of a tile, of which the first $W_FM matrices of each subgroup along tokens hold any.
#each i $W_FM
#each k STEPS
#each l $W_X_LOADS
#each w W_LOADS

// Columns `step` on of a stage. Matrices of W one by one: few are held at once.
fn $W_multiply(t: u32, own_x: u32, own_w: u32, sums: ptr<function, Sums>) {
  let a$i = coopLoadT<cLeft>(&xs[own_x + $iu * (SM * MAT * PITCH)], PITCH);
#for j W_FN
  let b$j = coopLoad<cRight>(&ws[own_w + ($ju / WEIGHTS * MAT + $ju % WEIGHTS * BN) * PITCH], PITCH);
  (*sums)[$i * W_FN + $j] = coopMultiplyAdd(a$i, b$j, (*sums)[$i * W_FN + $j]);
#endfor
}

fn $W_stages(at: Place, t: u32, sums: ptr<function, Sums>) {
  let column = t % COLUMNS;
  // Threads that share a row lie side by side, each with a fraction of a unit.
  let fraction = t % FRACTIONS;
  let in_stage = t / FRACTIONS % STAGE_UNITS;
  let w_column = in_stage * 8u + fraction * FRACTION_VECTORS;
  let row$w = ($wu * WG + t) / (FRACTIONS * STAGE_UNITS);
  let unit$w = group_first_unit(at, min(at.row + row$w, p.rows - 1u)) + in_stage;
  let from$l = input_index(at, min(($lu * WG + t) / COLUMNS, at.count - 1u)) + column;
  var w$w = brought(unit$w, fraction);
  var x$l = x[from$l];
  let group = t / LANES;
  let own_x = group / SN * (MAT * PITCH);
  let own_w = group % SN * (FN * MAT * PITCH);
  var unit = STAGE_UNITS;
  loop {
    workgroupBarrier();
    xs_put(($lu * WG + t) / COLUMNS * PITCH + column * QUAD, x$l);
    put_w(row$w, w_column, w$w);
    workgroupBarrier();
    // The next tiles are loaded while these are multiplied. No branch, which would hold the products back until the loads have come:
    // behind the end the last ones again.
    let next = min(unit, p.units - STAGE_UNITS);
    x$l = x[from$l + next * 8u];
    w$w = brought(unit$w + next, fraction);
    $W_multiply(t, own_x + $ku * STEP, own_w + $ku * STEP, sums);
    if (unit >= p.units) { break; }
    unit += STAGE_UNITS;
  }
}
