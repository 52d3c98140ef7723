// What both ways of choosing experts make of logits.

// What ggml clamps the sum of the chosen weights to: the smallest normal f16.
const MIN_WEIGHT_SUM = 6.103515625e-5;

fn router_sigmoid(logit: f32) -> f32 {
  // exp(87) is still finite; the clamp may drop NaN.
  if ((bitcast<u32>(logit) & 0x7fffffffu) > 0x7f800000u) { return logit; }
  return 1.0 / (1.0 + exp(clamp(-logit, -87.0, 87.0)));
}
