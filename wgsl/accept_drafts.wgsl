// Finds out how many drafts of a step were accepted, and tells the step behind it where its tokens stand: of the words that the host wrote for each
// position at which that step may begin, those of the right one are copied to where its kernels read them.
//
// landed (1 + drafts, apart) results (id, position, number, broken): the tokens that the step chose, one behind the other, then its first draft at
// the beginning of the next run, and so on. A draft is accepted if it and all before it are what was chosen at its position. candidates: the least
// position, the number of positions, the words of each, the drafts of the step before, those that count as accepted whatever was chosen or NONE,
// 3 words that are not used; then for each of PARTS parts its first word within those of a position, and its words; then the words of each position.
// Division: one workgroup, for one part. Bound by: latency.
#number WG PARTS    // threads of the workgroup, parts that candidates has room for
#word part: u32     // the part that is copied
#word most: u32     // words of to
#word told: u32     // words of candidates
#word results: u32  // results in landed
#word apart: u32    // results of a run
#read landed: array<vec4<u32>> @words(4 * p.results)  // (runs, apart)
#read candidates: array<u32> @words(p.told)
#write to: array<u32> @words(p.most)
const NONE = 0xffffffffu;
const HEAD = 8u;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) t: u32) {
  let drafts = candidates[3];
  var accepted = 0u;
  loop {
    if (accepted >= drafts) { break; }
    if (landed[accepted].x != landed[p.apart * (accepted + 1u)].x) { break; }
    accepted += 1u;
  }
  if (candidates[4] != NONE) { accepted = min(candidates[4], drafts); }
  // A position below the least would be a great number.
  let nth = min(landed[accepted].y - candidates[0], candidates[1] - 1u);
  let own = HEAD + 2u * p.part;
  let begin = HEAD + 2u * PARTS + nth * candidates[2] + candidates[own];
  let words = min(candidates[own + 1u], p.most);
  var i = t;
  loop {
    if (i >= words) { break; }
    to[i] = candidates[begin + i];
    i += WG;
  }
}
