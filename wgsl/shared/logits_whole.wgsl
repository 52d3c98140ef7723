// The logits of a token's experts, read from their buffer.
#number LOGIT_STRIDE  // values from one token to the next in the logits
#import own_token
#read logits: array<f32> @floats((TOKENS - 1) * LOGIT_STRIDE + EXPERTS)   // (tokens, LOGIT_STRIDE), of which EXPERTS are
alias Logits = u32;
fn logits_ask(t: u32, chooses: bool) -> Logits { return 0u; }
fn logits_put(asked: Logits, t: u32) { }
fn logit_of(expert: u32) -> f32 { return logits[own_token * LOGIT_STRIDE + expert]; }
