// Where tokens stand, and where their rows lie in the cache. With `table` each token has a sequence. Without it all tokens of a step belong
// to one sequence, and follow each other from position `pos` on. With `pages` the cache has pages of PAGE rows. Without them row r of the
// cache belongs to position r.
#import table
#read pages?: array<u32> @words(PAGE_ENTRIES)       // (sequences, pages of a sequence), numbers of pages
#ifdef table
fn position(token: u32) -> u32 { return table[2u * token].x; }
#else
#word pos: u32                                      // of the first token
fn position(token: u32) -> u32 { return p.pos + token; }
#endif

#ifdef pages
#word last_page: u32                                // of the cache; a larger number in `pages` stands for it
#length CACHE_ROWS POOL_ROWS
// The entry of `pages` with the first page of the token's sequence.
#ifdef table
fn first_page(token: u32) -> u32 { return table[2u * token].y; }
#else
#word first_page: u32                               // of the sequence, in `pages`
fn first_page(token: u32) -> u32 { return p.first_page; }
#endif

// The row of the cache that belongs to a position of the sequence that has this first page.
fn cache_row_at(page: u32, position: u32) -> u32 {
  return min(pages[page + position / PAGE], p.last_page) * PAGE + position % PAGE;
}
#else
#length CACHE_ROWS CONTEXT
fn first_page(token: u32) -> u32 { return 0u; }

fn cache_row_at(page: u32, position: u32) -> u32 { return position; }
#endif
