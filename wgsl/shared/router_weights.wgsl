// The common parts of router_choice and router_lanes.

// The least sum of the chosen weights, as in ggml: the smallest normal f16.
const MIN_WEIGHT_SUM = 6.103515625e-5;

fn router_sigmoid(logit: f32) -> f32 {
  // exp(87) is still finite. NaN returns at once, because the clamp may drop it.
  if ((bitcast<u32>(logit) & 0x7fffffffu) > 0x7f800000u) { return logit; }
  return 1.0 / (1.0 + exp(clamp(-logit, -87.0, 87.0)));
}
