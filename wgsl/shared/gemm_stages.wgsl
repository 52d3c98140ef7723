  // The stages of a tile of which $W_FM matrices of a subgroup along tokens hold any. The next tiles are loaded while these are
  // multiplied.
  {
#for i $W_X_LOADS
    let from$i = input_row(at.first + min(($iu * WG + t) / COLUMNS, at.count - 1u)) * p.x_stride + (p.first_group + at.group) * p.x_group_stride + column;
    var x$i = x[from$i];
#endfor
    var unit = STAGE_UNITS;
    loop {
      workgroupBarrier();
#for i $W_X_LOADS
      put_x(($iu * WG + t) / COLUMNS, column, x$i);
#endfor
#for i W_LOADS
#for v PART_VECTORS
      put_w(row$i, w_column + $vu, w$i.v$v);
#endfor
#ifdef u_q
#for v PART_VECTORS
      put_w(BN + row$i, w_column + $vu, u$i.v$v);
#endfor
#endif
#endfor
      workgroupBarrier();
      // No branch, which would hold the products back until the loads have come: behind the end the last ones again.
      let next = min(unit, p.units - STAGE_UNITS);
#for i $W_X_LOADS
      x$i = x[from$i + next * 8u];
#endfor
#for i W_LOADS
      w$i = w_part(unit$i + next, p.sub, part);
#ifdef u_q
      u$i = u_part(unit$i + next, p.u_sub, part);
#endif
#endfor
#for k STEPS
      {
#for i $W_FM
        let a$i = coopLoadT<cLeft>(&xs[own_x + $iu * (SM * MAT * PITCH) + $ku * STEP], PITCH);
#endfor
#for j FN
        let b$j = coopLoad<cRight>(&ws[own_w + $ju * MAT * PITCH + $ku * STEP], PITCH);
#for i $W_FM
        sum$i_$j = coopMultiplyAdd(a$i, b$j, sum$i_$j);
#endfor
#ifdef u_q
        let c$j = coopLoad<cRight>(&ws[BN * PITCH + own_w + $ju * MAT * PITCH + $ku * STEP], PITCH);
#for i $W_FM
        up$i_$j = coopMultiplyAdd(a$i, c$j, up$i_$j);
#endfor
#endif
#endfor
      }
#endfor
      if (unit >= p.units) { break; }
      unit += STAGE_UNITS;
    }
  }
