// The cache rows of a sequence, if all tokens of a step belong to it.
#import pages
#ifdef pages
#word first_page: u32   // the entry of `pages` with the first page of the sequence

// How far the row of a position lies behind the row of that number, modulo 2^32. It is the same for all positions of a page.
fn moved(position: u32) -> u32 { return cache_row_at(p.first_page, position) - position; }
#else
fn moved(position: u32) -> u32 { return 0u; }
#endif
