// Where the rows of a sequence lie in the cache. With `pages` the cache has pages of PAGE rows. Without them row r of the cache belongs to
// position r.
#read pages?: array<u32> @words(PAGE_ENTRIES)       // (sequences, pages of a sequence), numbers of pages
#ifdef pages
#number PAGE PAGE_ENTRIES POOL_ROWS  // rows of a page, entries of the table of pages, rows of all pages
#word last_page: u32                                // of the cache; a larger number in `pages` stands for it
#length CACHE_ROWS POOL_ROWS

// The row of the cache that belongs to a position of the sequence that has this first page.
fn cache_row_at(page: u32, position: u32) -> u32 {
  return min(pages[page + position / PAGE], p.last_page) * PAGE + position % PAGE;
}
#else
#length CACHE_ROWS CONTEXT

fn cache_row_at(page: u32, position: u32) -> u32 { return position; }
#endif
