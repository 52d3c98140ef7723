// The rows of `ring` that belong to the last positions of a token's sequence. It has OF_EACH rows for each sequence, taken in turn.
#import history
#number OF_EACH OF_SEQUENCE RING_ROWS   // rows of a sequence, ids of a sequence in the history, rows of all sequences
#length STATES RING_ROWS
fn ring_position(token: u32) -> u32 { return id_place(token) - first_id(token); }

// The row of the position that is `before` that of the token.
fn ring_row(token: u32, before: u32) -> u32 {
  return first_id(token) / OF_SEQUENCE * OF_EACH + (ring_position(token) - before) % OF_EACH;
}
