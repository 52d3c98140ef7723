// Where the ids of tokens lie in the history: by position, or with `table` for each sequence by position. With `first_id` the tokens of a
// step belong to one of several sequences.
#import table
#word first_id?: u32 // where the ids of the sequence begin
#ifdef table
#number HISTORY_IDS  // ids of all sequences
#length IDS HISTORY_IDS
fn id_place(token: u32) -> u32 { return table[2u * token].z + table[2u * token].x; }

// The beginning of the ids of the token's sequence.
fn first_id(token: u32) -> u32 { return table[2u * token].z; }
#else
#word pos: u32       // of the first token of the step
#ifdef first_id
#number HISTORY_IDS  // ids of all sequences
#length IDS HISTORY_IDS
fn first_id(token: u32) -> u32 { return p.first_id; }
#else
#length IDS CONTEXT
fn first_id(token: u32) -> u32 { return 0u; }
#endif
fn id_place(token: u32) -> u32 { return first_id(token) + p.pos + token; }
#endif
