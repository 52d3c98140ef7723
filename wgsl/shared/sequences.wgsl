// Where tokens stand, and where their rows lie in the cache. Without `table` all tokens of a step belong to one sequence. They follow each
// other from position `pos` on, and row r of the cache belongs to position r. With `table` each token has a sequence, and the cache has pages
// of PAGE rows.
#import table
#ifdef table
#read pages?: array<u32> @words(PAGE_ENTRIES)       // (sequences, pages of a sequence), numbers of pages
#length CACHE_ROWS POOL_ROWS
fn position(token: u32) -> u32 { return table[2u * token].x; }

// The entry of `pages` with the first page of the token's sequence.
fn first_page(token: u32) -> u32 { return table[2u * token].y; }

// The row of the cache that belongs to a position of the sequence that has this first page.
fn cache_row_at(page: u32, position: u32) -> u32 {
  return pages[page + position / PAGE] * PAGE + position % PAGE;
}
#else
#word pos: u32                                      // of the first token
#length CACHE_ROWS CONTEXT
fn position(token: u32) -> u32 { return p.pos + token; }

fn first_page(token: u32) -> u32 { return 0u; }

fn cache_row_at(page: u32, position: u32) -> u32 { return position; }
#endif
