//! The records of a session file, as bytes.
//!
//! A record is its kind (u32), the length of its payload (u32), a checksum of the two (u64), the payload, and a checksum of that (u64).
//! All numbers are little-endian. Checksums are XXH3 with the record's position in the file as seed, so a record that was moved does not
//! check either.

use twox_hash::XxHash3_64;

/// Bytes before the payload.
pub(super) const HEAD: u64 = 16;
/// Bytes around the payload.
pub(super) const AROUND: u64 = HEAD + 8;

/// The most bytes of rows in a record, unless a row alone has more.
pub(super) const PIECE: u64 = 4 << 20;

/// The kind of a record, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The numbers of tokens and rows that stay (two u64).
    Forget = 1,
    /// Tokens that follow (u32 each).
    Tokens = 2,
    /// The position of the first row (u64) and rows that follow.
    Rows = 3,
    /// The writer of the rows from here on (JSON).
    Writer = 4,
    /// The application's data, in place of that before.
    Data = 5,
    /// The end of a group: how many tokens and rows there are now (two u64).
    Commit = 6,
    /// Tokens that follow without a commit (u32 each), until the next one.
    Journal = 7,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Forget,
        Self::Tokens,
        Self::Rows,
        Self::Writer,
        Self::Data,
        Self::Commit,
        Self::Journal,
    ];

    /// The most bytes of a payload, if a row has `row` bytes: all of it is held in memory at once.
    pub(super) fn most_bytes(self, row: u64) -> u64 {
        match self {
            Self::Forget | Self::Commit => 16,
            Self::Writer => 1 << 20,
            // 16 million tokens.
            Self::Tokens | Self::Journal => 64 << 20,
            Self::Data => 256 << 20,
            Self::Rows => 8 + PIECE.max(row),
        }
    }

    /// The kind that has this number in a file.
    pub(super) fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// The checksum of `bytes` that stand in the record at `position`.
pub(super) fn checksum(position: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(position, bytes)
}

/// The head of a record at `position`.
pub(super) fn head(position: u64, kind: Kind, length: u32) -> [u8; HEAD as usize] {
    let mut head = [0; HEAD as usize];
    head[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    head[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(position, &head[..8]);
    head[8..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// Kind and length of the record at `position` that begins with `head`; nothing where the head does not check.
pub(super) fn parse(position: u64, head: &[u8; HEAD as usize]) -> Option<(Kind, u32)> {
    let sum = u64::from_le_bytes(head[8..].try_into().ok()?);
    if sum != checksum(position, &head[..8]) {
        return None;
    }
    let kind = Kind::of(u32::from_le_bytes(head[..4].try_into().ok()?))?;
    Some((kind, u32::from_le_bytes(head[4..8].try_into().ok()?)))
}

/// A whole short record at `position`.
pub(super) fn whole(position: u64, kind: Kind, payload: &[u8]) -> Vec<u8> {
    // Callers bound their payloads.
    let head = head(position, kind, payload.len() as u32);
    let sum = checksum(position, payload).to_le_bytes();
    [&head[..], payload, &sum].concat()
}

/// Two counts as a payload.
pub(super) fn counts(tokens: usize, rows: usize) -> Vec<u8> {
    [tokens, rows]
        .map(|count| (count as u64).to_le_bytes())
        .concat()
}

/// The two counts of a payload, where it has them.
pub(super) fn parse_counts(payload: &[u8]) -> Option<(usize, usize)> {
    let (tokens, rows) = payload.split_at_checked(8)?;
    let number = |bytes: &[u8]| usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok();
    Some((number(tokens)?, number(rows)?))
}

/// Tokens as a payload.
pub(super) fn tokens(tokens: &[u32]) -> Vec<u8> {
    tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect()
}

/// The tokens of a payload, where it is nothing else.
pub(super) fn parse_tokens(payload: &[u8]) -> Option<Vec<u32>> {
    let (tokens, rest) = payload.as_chunks::<4>();
    let tokens = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes));
    rest.is_empty().then(|| tokens.collect())
}
