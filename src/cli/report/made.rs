//! The findings of a part of a report.

/// Generated tokens per second by the name of the tier. Part `bench` measures them, and a later part tells them, too.
pub(super) type Generated = Vec<(&'static str, f64)>;

/// The findings of a part.
#[derive(Default)]
pub(super) struct Made {
    /// The findings, in lines.
    pub(super) text: String,
    /// The failures, each in words.
    pub(super) failures: Vec<String>,
}

impl Made {
    /// Says that there is nothing to find, and why.
    pub(super) fn leave_out(&mut self, why: &str) {
        self.text += &format!("left out: {why}\n");
    }

    /// The section of the report.
    pub(super) fn page(&self, heading: &str, command: &str, seconds: f64) -> String {
        let mut page = format!("\n## {heading}\n\n$ {command}\n\n{}", self.text);
        for failure in &self.failures {
            page += &format!("FAILED: {failure}\n");
        }
        page + &format!("(it took {seconds:.1} s)\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_begins_with_its_command_and_tells_what_failed() {
        let mut made = Made::default();
        made.text += "a table\n";
        let failure = "tier int8: the device is lost";
        made.failures.push(failure.to_owned());
        let page = made.page("bench: its speed", "glimt bench --device 0", 1.5);
        let expected = "\n## bench: its speed\n\n$ glimt bench --device 0\n\na table\n\
                        FAILED: tier int8: the device is lost\n(it took 1.5 s)\n";
        assert_eq!(page, expected);
    }
}
