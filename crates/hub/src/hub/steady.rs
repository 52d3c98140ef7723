//! A reader that gives up on a line which is never silent, but brings next to nothing.

use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Bytes that a line brings while a silent one would be given up, at least.
const LEAST: u64 = 4096;
/// A line that was silent for a while and goes on has brought fewer pieces.
const PIECES: u32 = 4;

/// The error of such a line.
#[derive(Debug, thiserror::Error)]
#[error("it sends less than {LEAST} bytes in {} seconds", .0.as_secs_f32().round())]
pub(super) struct Crawls(Duration);

/// Whether a line was given up since it brings next to nothing.
pub(super) fn crawls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Crawls>())
}

/// Reads what comes at some pace.
pub(super) struct Steady<R> {
    inner: R,
    /// How long a line may be silent.
    silence: Duration,
    /// The time from which bytes are counted, and their number since.
    since: Instant,
    bytes: u64,
    pieces: u32,
}

impl<R: Read> Steady<R> {
    pub(super) fn new(inner: R, silence: Duration) -> Self {
        Self {
            inner,
            silence,
            since: Instant::now(),
            bytes: 0,
            pieces: 0,
        }
    }
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(to)?;
        self.bytes += read as u64;
        self.pieces += 1;
        let time = self.since.elapsed();
        if read > 0 && time >= self.silence {
            if self.bytes < LEAST && self.pieces >= PIECES {
                return Err(io::Error::other(Crawls(time)));
            }
            (self.since, self.bytes, self.pieces) = (Instant::now(), 0, 0);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that brings this number of bytes at a time, after a while.
    struct Line(usize, Duration);

    impl Read for Line {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(self.1);
            let read = self.0.min(to.len());
            to[..read].fill(b' ');
            Ok(read)
        }
    }

    fn taken(bytes: usize, pause: u64, silence: u64) -> io::Result<usize> {
        let ms = Duration::from_millis;
        let line = Line(bytes, ms(pause)).take(40 * bytes as u64);
        let mut text = vec![];
        Steady::new(line, ms(silence)).read_to_end(&mut text)
    }

    #[test]
    fn a_line_that_drips_is_given_up_and_no_other() {
        let refused = taken(1, 2, 20).expect_err("it drips");
        assert!(crawls(&refused), "{refused}");
        assert!(!crawls(&io::Error::other("it broke")));
        // Slow, but not without an end; and one that is silent between its pieces.
        assert!(matches!(taken(4096, 2, 20), Ok(163_840)));
        assert!(matches!(taken(1, 2, 1), Ok(40)));
    }
}
