//! Whether a place of an answer is quoted: in a fenced block, or right behind a backtick.

/// Backticks that fence a block.
const FENCE: usize = 3;

/// Follows the text of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quoting {
    /// Backticks of the fence that is open; 0 if none is.
    fence: usize,
    /// Backticks that the line begins with.
    run: usize,
    /// Whether the line had only white space and backticks so far.
    at_start: bool,
    last: char,
    /// Whether there was nothing but the line that opens a fence.
    is_only_fence: bool,
}

impl Quoting {
    /// The state at the beginning of a text.
    pub(super) fn new() -> Self {
        Self {
            fence: 0,
            run: 0,
            at_start: true,
            last: '\n',
            is_only_fence: true,
        }
    }

    /// Goes on over a piece of the text.
    pub(super) fn push(&mut self, text: &str) {
        text.chars().for_each(|c| self.character(c));
    }

    fn character(&mut self, c: char) {
        self.last = c;
        let fences = self.at_start && self.run >= FENCE;
        // The name of a language may stand behind it.
        let is_of_fence = self.fence == 0 || self.run > 0;
        self.is_only_fence &= is_of_fence && (c == '`' || c.is_whitespace() || self.run >= FENCE);
        if c == '\n' {
            match self.fence {
                0 if fences => self.fence = self.run,
                open if fences && self.run >= open => self.fence = 0,
                _ => {}
            }
            (self.run, self.at_start) = (0, true);
        } else if self.at_start && c == '`' {
            self.run += 1;
        } else if self.at_start && !c.is_whitespace() {
            // The name of a language stands behind the fence that opens a block.
            if fences && self.fence == 0 {
                self.fence = self.run;
            }
            self.at_start = false;
        }
    }

    /// Whether the place is in a fenced block.
    pub(super) fn in_fence(&self) -> bool {
        self.fence > 0
    }

    /// Whether there was nothing but the line that opens the block.
    pub(super) fn is_only_fence(&self) -> bool {
        self.is_only_fence && (self.fence > 0 || self.run >= FENCE)
    }

    /// Whether the place is right behind a backtick.
    pub(super) fn behind_backtick(&self) -> bool {
        self.last == '`'
    }

    /// Whether the line has only white space so far.
    pub(super) fn at_line_start(&self) -> bool {
        self.at_start && self.run == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_open_and_close() {
        for (text, in_fence, behind_backtick, at_line_start) in [
            ("", false, false, true),
            ("a `", false, true, false),
            ("a\n  ", false, false, true),
            ("```\n", true, false, true),
            ("```xml\nx", true, false, false),
            ("a\n```\nx\n```\n", false, false, true),
            ("````\n```\n", true, false, true),
            ("````\n```\n````\n", false, false, true),
            ("`a` ```\n", false, false, true),
            ("```\nx ```\n", true, false, true),
        ] {
            let mut quoting = Quoting::new();
            quoting.push(text);
            let found = (
                quoting.in_fence(),
                quoting.behind_backtick(),
                quoting.at_line_start(),
            );
            assert_eq!(found, (in_fence, behind_backtick, at_line_start), "{text}");
        }
    }
}
