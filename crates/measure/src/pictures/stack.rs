//! A whole and its parts in SVG: one bar of all parts behind each other, and below it a line for each.

use super::svg::{self, Anchor, GREY, Svg};

/// The left and right ends of the bar, and its height.
const LEFT: f64 = 20.0;
const RIGHT: f64 = 700.0;
const BAR: f64 = 44.0;
/// Height of a line of the legend.
const ENTRY: f64 = 22.0;
/// Width of a picture with such a bar.
pub const WIDTH: f64 = 720.0;

/// A part of the whole.
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its size.
    pub value: f64,
    /// The value in words.
    pub words: String,
}

/// The height of a bar with the space below it.
pub const HEIGHT: f64 = BAR + 16.0;

/// The height that [`legend`] takes.
pub fn height(parts: &[Part]) -> f64 {
    parts.len() as f64 * ENTRY
}

/// The share of `part` in `whole`, in words.
pub fn share(part: f64, whole: f64) -> String {
    format!("{:.1}%", 100.0 * part / whole)
}

/// Draws a bar of `parts` from `top` on. The whole is larger than their sum where some of it is free.
pub fn bar(svg: &mut Svg, top: f64, parts: &[Part], whole: f64) {
    let whole = whole.max(f64::MIN_POSITIVE);
    svg.rect([LEFT, top], [RIGHT - LEFT, BAR], "#eeeeee", "");
    let mut left = LEFT;
    for (i, part) in parts.iter().enumerate() {
        let width = part.value / whole * (RIGHT - LEFT);
        let share = share(part.value, whole);
        let hint = format!("{}: {}, {share}", part.name, part.words);
        svg.rect([left, top], [width, BAR], svg::colour(i), &hint);
        left += width;
    }
    for y in [top, top + BAR] {
        svg.line([LEFT, y], [RIGHT, y], GREY);
    }
}

/// Draws a rule through a bar from `top` on, where `value` of the whole is reached.
pub fn mark(svg: &mut Svg, top: f64, value: f64, whole: f64) {
    let x = LEFT + value / whole * (RIGHT - LEFT);
    svg.line([x, top - 5.0], [x, top + BAR + 5.0], "black");
}

/// Writes from `top` on what `parts` are, with their shares of all.
pub fn legend(svg: &mut Svg, top: f64, parts: &[Part]) {
    let whole: f64 = parts.iter().map(|part| part.value).sum();
    for (i, part) in parts.iter().enumerate() {
        let y = top + i as f64 * ENTRY;
        svg.rect([LEFT, y], [14.0, 14.0], svg::colour(i), "");
        svg.label([LEFT + 22.0, y + 11.0], Anchor::Start, 340.0, &part.name);
        svg.label([500.0, y + 11.0], Anchor::End, 120.0, &part.words);
        let share = share(part.value, whole);
        svg.label([600.0, y + 11.0], Anchor::End, 90.0, &share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_each_other_by_their_shares() {
        let parts = [("a", 25.0), ("b", 50.0)].map(|(name, value)| Part {
            name: name.to_owned(),
            value,
            words: format!("{value} MiB"),
        });
        let mut svg = Svg::new(WIDTH, HEIGHT + height(&parts), "parts");
        bar(&mut svg, 0.0, &parts, 100.0);
        legend(&mut svg, HEIGHT, &parts);
        mark(&mut svg, 0.0, 80.0, 100.0);
        let text = svg.finish();
        assert!(
            text.contains("<rect x=\"190.00\" y=\"0.00\" width=\"340.00\""),
            "{text}"
        );
        assert!(text.contains("<title>b: 50 MiB, 50.0%</title>"), "{text}");
        assert!(
            text.contains(">66.7%</text>") && text.contains("x1=\"564.00\""),
            "{text}"
        );
        let mut empty = Svg::new(WIDTH, HEIGHT, "nothing");
        bar(&mut empty, 0.0, &[], 0.0);
        assert!(!empty.finish().contains("NaN"));
    }
}
