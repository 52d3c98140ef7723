//! Stop texts: an answer ends before the first of them, wherever the tokens happen to split it.

/// Holds back text that may be the beginning of a stop text.
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    found: Option<usize>,
}

impl StopFilter {
    /// A filter for the given texts; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .cloned()
            .collect();
        Self {
            stops,
            held: String::new(),
            found: None,
        }
    }

    /// The stop text that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Takes the next piece of the answer; returns what may be printed now, and whether a stop text was found. The
    /// stop text itself and what follows it are dropped.
    pub fn push(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)))
            .min();
        if let Some((at, stop)) = found {
            self.found = Some(stop);
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text still held back once the answer has ended without completing a stop text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest end of `text` that is a beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = text.char_indices().map(|(at, _)| &text[at..]);
    ends.map(|end| if stop.starts_with(end) { end.len() } else { 0 })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `step` characters; returns what was printed and whether it stopped.
    fn feed(stops: &[&str], text: &str, step: usize) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut shown = String::new();
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(step) {
            let (text, stopped) = filter.push(&piece.iter().collect::<String>());
            shown.push_str(&text);
            if stopped {
                return (shown, true);
            }
        }
        shown.push_str(&filter.finish());
        (shown, false)
    }

    #[test]
    fn stops_before_the_text_however_it_is_split() {
        for step in 1..12 {
            assert_eq!(
                feed(&["THE END"], "once. THE END and more", step),
                ("once. ".into(), true)
            );
            assert_eq!(
                feed(&["END", "THE"], "once. THE END", step),
                ("once. ".into(), true)
            );
            assert_eq!(feed(&["ïß"], "aïbïßc", step), ("aïb".into(), true));
            assert_eq!(feed(&["aab"], "aaab", step), ("a".into(), true));
        }
    }

    #[test]
    fn a_beginning_that_is_not_completed_is_printed() {
        for step in 1..8 {
            assert_eq!(feed(&["THE END"], "THE EN", step), ("THE EN".into(), false));
            assert_eq!(feed(&[], "anything", step), ("anything".into(), false));
            assert_eq!(feed(&[""], "anything", step), ("anything".into(), false));
        }
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut filter = StopFilter::new(&["\n\n".to_owned()]);
        assert_eq!(filter.push("one\n"), ("one".to_owned(), false));
        assert_eq!(filter.push("two"), ("\ntwo".to_owned(), false));
        assert_eq!(filter.push("\n"), (String::new(), false));
        assert_eq!(filter.push("\nx"), (String::new(), true));
    }

    #[test]
    fn tells_which_stop_text_was_found() {
        let stops = ["END".to_owned(), String::new(), "\n".to_owned()];
        for (text, expected) in [
            ("a\nEND", Some("\n")),
            ("aEND\n", Some("END")),
            ("aEN", None),
        ] {
            let mut filter = StopFilter::new(&stops);
            filter.push(text);
            assert_eq!(filter.found(), expected, "{text:?}");
        }
    }
}
