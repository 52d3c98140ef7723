// The loop over the columns, for tiles whose tokens fit in the first $W_FM matrices of each subgroup along tokens.
#number $W_FM STEPS $W_X_LOADS  // matrices of a subgroup along tokens, matrices along the columns of a stage, loads of x of a thread
#number W_LOADS FRACTIONS FRACTION_VECTORS  // loads of W of a thread, loads of a unit, vec4 of a load
#each i $W_FM
#each k STEPS
#each l $W_X_LOADS
#each w W_LOADS

// Multiplies MAT columns of a stage: the subgroup's matrices of x at `own_x` and of W at `own_w`. Those of W are loaded one by one to
// save registers.
fn $W_multiply(t: u32, own_x: u32, own_w: u32, sums: ptr<function, Sums>) {
  let a$i = coopLoadT<cLeft>(&xs[own_x + $iu * (SM * MAT * PITCH)], PITCH);
#for j W_FN
  let b$j = coopLoad<cRight>(&ws[own_w + ($ju / WEIGHTS * MAT + $ju % WEIGHTS * BN) * PITCH], PITCH);
  (*sums)[$i * W_FN + $j] = coopMultiplyAdd(a$i, b$j, (*sums)[$i * W_FN + $j]);
#endfor
}

fn $W_stages(at: Tile, t: u32, sums: ptr<function, Sums>) {
  let column = t % COLUMNS;
  // Neighbouring threads share a row of W, each with a fraction of a unit.
  let fraction = t % FRACTIONS;
  let in_stage = t / FRACTIONS % STAGE_UNITS;
  let w_column = in_stage * 8u + fraction * FRACTION_VECTORS;
  let row$w = ($wu * WG + t) / (FRACTIONS * STAGE_UNITS);
  let unit$w = group_first_unit(at, min(at.row + row$w, p.rows - 1u)) + in_stage;
  let from$l = input_index(at, min(($lu * WG + t) / COLUMNS, at.count - 1u)) + column;
  var w$w = load_w(unit$w, fraction);
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
    // The next stage is loaded while this one is multiplied. The last one is loaded twice: a branch around the loads would hold the
    // products back until the loads have come.
    let next = min(unit, p.units - STAGE_UNITS);
    x$l = x[from$l + next * 8u];
    w$w = load_w(unit$w + next, fraction);
    $W_multiply(t, own_x + $ku * STEP, own_w + $ku * STEP, sums);
    if (unit >= p.units) { break; }
    unit += STAGE_UNITS;
  }
}
