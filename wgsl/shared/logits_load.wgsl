  // The thread's parts of the logits, for logits_put. Workgroups that choose nothing ask for the first vector again and again,
  // without a branch that would keep other loads behind these.
  let logit_phase = t / LOGIT_COLUMNS;
#for i PART_LOADS
  let logit_part$i = logit_phase + $iu * LOGIT_PHASES;
#ifdef RAGGED_PARTS
  let logit_at$i = min(logit_part$i, PARTS - 1u) * LOGIT_COLUMNS + t - logit_phase * LOGIT_COLUMNS;
#else
  let logit_at$i = $iu * LOGIT_PHASES * LOGIT_COLUMNS + t;
#endif
  let logits$i = logits[select(0u, logit_at$i, chooses)];
#endfor
