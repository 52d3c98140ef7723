  // A barrier must follow.
  {
    var sum = vec4<f32>(0.0);
#for i PART_LOADS
#ifdef RAGGED_PARTS
    sum += select(vec4<f32>(0.0), logits$i, logit_part$i < PARTS);
#else
    sum += logits$i;
#endif
#endfor
#for f LOGIT_FOLDS
    sum += subgroupShuffleXor(sum, LOGIT_COLUMNS << $fu);
#endfor
    let column = t - logit_phase * LOGIT_COLUMNS;
    let folded = logit_phase & ((1u << LOGIT_FOLDS) - 1u);
    if (logit_phase < LOGIT_PHASES && folded == 0u) {
      logit_sums[(logit_phase >> LOGIT_FOLDS) * LOGIT_COLUMNS + column] = sum;
    }
  }
