// Where the ids of tokens lie in the history: by position, or with `table` for each sequence by position.
#import table
#ifdef table
#length IDS HISTORY_IDS
fn id_place(token: u32) -> u32 { return table[2u * token].z + table[2u * token].x; }

// Where the ids of the token's sequence begin.
fn first_id(token: u32) -> u32 { return table[2u * token].z; }
#else
#word pos: u32       // of the first token of the step
#length IDS CONTEXT
fn id_place(token: u32) -> u32 { return p.pos + token; }

fn first_id(token: u32) -> u32 { return 0u; }
#endif
