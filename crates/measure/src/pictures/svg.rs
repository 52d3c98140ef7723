//! The elements that all SVG files share: the frame, shapes, texts that end where they have to, and colours.

use std::fmt::Write;

/// Colours that differ for most eyes, also on a screen without red or green (Paul Tol's bright and muted sets).
const COLOURS: [&str; 12] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#882255", "#44aa99",
    "#999933", "#cc6677", "#332288", "#bbbbbb",
];
/// The colour of rules and axes.
pub const GREY: &str = "#888888";
/// The colour of texts.
const INK: &str = "#222222";
/// The height of all texts.
pub const TEXT: f64 = 12.0;

/// The colour of number `i` of what is told apart.
pub fn colour(i: usize) -> &'static str {
    COLOURS[i % COLOURS.len()]
}

/// The end of a text that its position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The beginning.
    Start,
    /// The middle.
    Middle,
    /// The end.
    End,
}

/// A picture that is being drawn. Its background is white on dark pages too.
pub struct Svg {
    text: String,
    width: f64,
}

impl Svg {
    /// An empty picture of this size; `title` is what programs read aloud.
    pub fn new(width: f64, height: f64, title: &str) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"{TEXT}\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            escaped(title)
        );
        Self { text, width }
    }

    fn add(&mut self, shape: std::fmt::Arguments<'_>) {
        // Writing into a `String` cannot fail.
        let _ = writeln!(self.text, "{shape}");
    }

    /// A rectangle; pointing at it shows `hint`.
    pub fn rect(&mut self, [x, y]: [f64; 2], [w, h]: [f64; 2], fill: &str, hint: &str) {
        let hint = match hint {
            "" => "/>".to_owned(),
            hint => format!("><title>{}</title></rect>", escaped(hint)),
        };
        self.add(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{w:.2}\" height=\"{h:.2}\" fill=\"{fill}\" stroke=\"white\" \
             stroke-width=\"0.4\"{hint}"
        ));
    }

    /// A straight line.
    pub fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], colour: &str) {
        self.add(format_args!(
            "<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\" stroke=\"{colour}\"/>"
        ));
    }

    /// A line through points, broken into dashes of this length, or whole where it is 0.
    pub fn path(&mut self, points: &[[f64; 2]], colour: &str, dash: usize) {
        let points: Vec<_> = points
            .iter()
            .map(|[x, y]| format!("{x:.2},{y:.2}"))
            .collect();
        let dash = match dash {
            0 => String::new(),
            n => format!(" stroke-dasharray=\"{n} 3\""),
        };
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        ));
    }

    /// A dot; pointing at it shows `hint`.
    pub fn dot(&mut self, [x, y]: [f64; 2], colour: &str, hint: &str) {
        self.add(format_args!(
            "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"4\" fill=\"{colour}\"><title>{}</title></circle>",
            escaped(hint)
        ));
    }

    /// A text, cut where it would become wider than `room`.
    pub fn label(&mut self, [x, y]: [f64; 2], anchor: Anchor, room: f64, what: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{INK}\">{}</text>",
            escaped(&fitted(what, room))
        ));
    }

    /// A line of text from `x` to the right edge.
    pub fn heading(&mut self, at: [f64; 2], what: &str) {
        self.label(at, Anchor::Start, self.width - at[0] - 10.0, what);
    }

    /// The file.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// `text` as XML has it. Characters that XML cannot hold are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

/// The room that a text may take, by wide widths of a font without serifs: the viewer's font is not known.
pub fn width(text: &str) -> f64 {
    let of = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | ':' | ';' | '|' | '(' | ')' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 1.0,
        'A'..='Z' => 0.75,
        c if c.is_ascii() || c == '±' => 0.64,
        _ => 1.05,
    };
    TEXT * text.chars().map(of).sum::<f64>()
}

/// `text`, or as much of its beginning as `room` has place for.
fn fitted(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let room = room - width("…");
    let ends = text.char_indices().map(|(end, _)| end);
    let end = ends.take_while(|end| width(&text[..*end]) <= room).last();
    format!("{}…", text[..end.unwrap_or(0)].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_end_where_they_have_to() {
        let name = "<b>&\"\u{1b}[31m";
        assert_eq!(escaped(name), "&lt;b&gt;&amp;&quot;\u{fffd}[31m");
        assert_eq!(fitted("short", 100.0), "short");
        for text in [
            "WWWWWWWWWWWWWWWW",
            "a name of many words",
            "模型模型模型模型模型",
        ] {
            let cut = fitted(text, 60.0);
            assert!(cut.ends_with('…') && width(&cut) <= 60.0, "{cut}");
            assert!(text.starts_with(cut.trim_end_matches('…')), "{cut}");
        }
        assert_eq!(fitted("long", 0.0), "…");
    }

    #[test]
    fn a_picture_has_a_background_and_an_end() {
        let mut svg = Svg::new(100.0, 50.0, "a & b");
        svg.heading([10.0, 20.0], "a title that is wider than the picture");
        let text = svg.finish();
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("<title>a &amp; b</title>") && text.contains("fill=\"white\""));
        assert!(text.contains('…'), "{text}");
    }
}
