// Where each token of a step stands, if its tokens belong to several sequences (crates/gpu/src/kernels/sequences.rs). A record has 8 words: the position,
// the first entry of the sequence's `pages`, the first word of its ids in the history, the token's first slice, the number of its slices, and
// three that are not used.
#read table?: array<vec4<u32>> @words(8 * TOKENS)   // (tokens, 2)
