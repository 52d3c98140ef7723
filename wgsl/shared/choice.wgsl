// How the next token of a row of logits is chosen: by the parameters of the call, or with `table` by those of the row's token. There a record
// of `choices` has 12 words in the order of crates/gpu/src/kernels/sample.rs.
#import history
struct Choice {
  temperature: f32,   // 0: greedy
  top_k: u32,         // 0: off
  top_p: f32,         // 1: off
  log_min_p: f32,     // logarithm of min-p; very negative: off
  draw: f32,          // in [0, 1)
  step: u32,          // written with the result
  number: u32,        // of the submission, written with the result
  to: u32,            // where the chosen id goes in the history
}

// The penalties that lower the logits of recent tokens.
struct Penalties {
  last_n: u32,        // 0 where nothing is penalised
  penalty: f32,
  presence: f32,      // subtracted once from each of them
  frequency: f32,     // subtracted for each time that they occur
  masses: u32,        // 1 if the masses of slices are needed
  first: u32,         // of the ids of the sequence in the history
  end: u32,           // behind them
}

#ifdef table
#read choices?: array<vec4<u32>> @words(12 * TOKENS)   // (tokens, 3)
fn own_choice(row: u32) -> Choice {
  let a = choices[3u * row];
  let b = choices[3u * row + 1u];
  let c = choices[3u * row + 2u];
  return Choice(bitcast<f32>(a.x), a.y, bitcast<f32>(a.z), bitcast<f32>(a.w), bitcast<f32>(b.z), b.w, c.y, id_place(row) + 1u);
}

fn own_penalties(row: u32) -> Penalties {
  let b = choices[3u * row + 1u];
  let c = choices[3u * row + 2u];
  return Penalties(b.y, bitcast<f32>(b.x), bitcast<f32>(c.z), bitcast<f32>(c.w), c.x, first_id(row), id_place(row) + 1u);
}
#else
#word tokens: u32    // of the step
#ifdef PICKS
#word temperature: f32
#word top_k: u32
#word top_p: f32
#word log_min_p: f32
#word uniform_draw: f32
#word step: u32
#word number: u32
fn own_choice(row: u32) -> Choice {
  return Choice(p.temperature, p.top_k, p.top_p, p.log_min_p, p.uniform_draw, p.step, p.number, first_id(row) + p.pos + p.tokens);
}
#else
#word last_n: u32
#word penalty: f32
#word presence: f32
#word frequency: f32
#word masses: u32
fn own_penalties(row: u32) -> Penalties {
  return Penalties(p.last_n, p.penalty, p.presence, p.frequency, p.masses, first_id(row), first_id(row) + p.pos + p.tokens);
}
#endif
#endif
