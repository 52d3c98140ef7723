// Where tokens stand, and where their rows lie in the cache. With `table` each token has a sequence. Without it all tokens of a step belong
// to one sequence, and follow each other from position `pos` on.
#import table
#import pages
#ifdef table
fn position(token: u32) -> u32 { return table[2u * token].x; }
#else
#word pos: u32                                      // of the first token
fn position(token: u32) -> u32 { return p.pos + token; }
#endif

#ifdef pages
// The entry of `pages` with the first page of the token's sequence.
#ifdef table
fn first_page(token: u32) -> u32 { return table[2u * token].y; }
#else
#word first_page: u32                               // of the sequence, in `pages`
fn first_page(token: u32) -> u32 { return p.first_page; }
#endif
#else
fn first_page(token: u32) -> u32 { return 0u; }
#endif
