//! One token as a picture: a bar per dispatch, in lines of equal time.

use super::summary::{Bar, Profile, Work};
use crate::pictures::svg::{self, Anchor, GREY, Svg};
use crate::plural::count;

/// Width of a line of bars, in pixels, and where it begins.
const WIDTH: f64 = 1400.0;
const LEFT: f64 = 70.0;
/// Height of a bar, and from one line to the next: room for layer numbers above and an axis below.
const BAR: f64 = 26.0;
const LINE: f64 = 62.0;
/// The top of the first line, below the title.
const TOP: f64 = 70.0;
/// Dispatches of a line, about: so that one of average length is some 25 pixels wide.
const PER_LINE: usize = 56;
/// Marks of the axis of a line.
const MARKS: usize = 8;
/// The colour of the rules between layers.
const RULE: &str = "black";
/// The timeline of the token of median length as SVG: time in microseconds from left to right and line by line, a
/// colour per kernel, a thin rule with the number where a layer begins. Hovering over a bar names the dispatch.
pub fn svg(profile: &Profile) -> String {
    let bars = &profile.timeline;
    let total = bars.last().map_or(0.0, |bar| bar.end).max(1e-3);
    let lines = bars.len().div_ceil(PER_LINE).max(1);
    let per_line = total / lines as f64;
    let kernels = kernels(profile);
    let height = TOP + lines as f64 * LINE + 30.0 + 20.0 * kernels.len() as f64;
    let h = &profile.head;
    let what = match profile.work {
        Work::Drafted { drafts, .. } => format!("a step with {}", count(drafts, "draft")),
        _ => "one token".to_owned(),
    };
    let title = format!(
        "{} on {} (tier {}), depth {}: {what}, {}, {total:.1} us",
        h.model_type,
        h.gpu_info,
        h.tier,
        h.n_depth,
        count(profile.dispatches, "dispatch")
    );
    let mut svg = Svg::new(LEFT + WIDTH + 30.0, height, &title);
    svg.heading([LEFT, 24.0], &title);
    let without = format!(
        "told apart by {}; the same step without takes {:.1} us",
        h.separation,
        profile.work.without_us()
    );
    svg.heading([LEFT, 40.0], &without);
    for line in 0..lines {
        axis(&mut svg, line, per_line);
    }
    let mut layer = None;
    for bar in bars {
        let kernel = kernels
            .iter()
            .position(|(name, _)| *name == bar.about.kernel);
        let colour = svg::colour(kernel.unwrap_or(0));
        draw_bar(&mut svg, bar, per_line, lines, colour);
        let here = bar.about.sublayer.layer();
        if here != layer {
            layer = here;
            let name = here.map_or_else(String::new, |number| number.to_string());
            boundary(&mut svg, bar.begin, per_line, lines, &name);
        }
    }
    for (i, (name, us)) in kernels.iter().enumerate() {
        let y = TOP + lines as f64 * LINE + 20.0 * (i + 1) as f64;
        svg.rect([LEFT, y - 11.0], [14.0, 14.0], svg::colour(i), "");
        let share = 100.0 * us / profile.sum_us.max(1e-3);
        let text = format!("{name}: {us:.1} us, {share:.1}%");
        svg.heading([LEFT + 22.0, y], &text);
    }
    svg.finish()
}

/// Each kernel with its microseconds per token, the longest first.
fn kernels(profile: &Profile) -> Vec<(&'static str, f64)> {
    let mut all: Vec<(&'static str, f64)> = vec![];
    for kernel in &profile.kernels {
        match all.iter_mut().find(|(name, _)| *name == kernel.kernel) {
            Some((_, us)) => *us += kernel.us,
            None => all.push((kernel.kernel, kernel.us)),
        }
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// The line that a time falls on, and where on it.
fn place(us: f64, per_line: f64, lines: usize) -> (usize, f64) {
    let line = ((us / per_line) as usize).min(lines - 1);
    let x = LEFT + (us - line as f64 * per_line) / per_line * WIDTH;
    (line, x)
}

fn top(line: usize) -> f64 {
    TOP + line as f64 * LINE
}

fn axis(svg: &mut Svg, line: usize, per_line: f64) {
    let y = top(line) + BAR;
    svg.line([LEFT, y], [LEFT + WIDTH, y], GREY);
    svg.label([LEFT - 8.0, y - 8.0], Anchor::End, LEFT, "us");
    for mark in 0..=MARKS {
        let part = mark as f64 / MARKS as f64;
        let us = (line as f64 + part) * per_line;
        let x = LEFT + part * WIDTH;
        svg.line([x, y], [x, y + 4.0], GREY);
        let room = WIDTH / MARKS as f64;
        svg.label([x, y + 15.0], Anchor::Middle, room, &format!("{us:.0}"));
    }
}

/// A dispatch; one that runs over the end of a line goes on in the next.
fn draw_bar(svg: &mut Svg, bar: &Bar, per_line: f64, lines: usize, colour: &str) {
    let hint = format!("{}: {:.2} us", bar.about.label, bar.end - bar.begin);
    let mut begin = bar.begin;
    loop {
        let (line, x) = place(begin, per_line, lines);
        let line_end = if line + 1 == lines {
            f64::INFINITY
        } else {
            (line + 1) as f64 * per_line
        };
        let end = bar.end.min(line_end);
        let width = (end - begin) / per_line * WIDTH;
        svg.rect([x, top(line)], [width, BAR], colour, &hint);
        if bar.end <= line_end {
            return;
        }
        begin = line_end;
    }
}

/// A rule where a layer begins, with its name.
fn boundary(svg: &mut Svg, us: f64, per_line: f64, lines: usize, name: &str) {
    let (line, x) = place(us, per_line, lines);
    let y = top(line);
    svg.line([x, y - 12.0], [x, y + BAR], RULE);
    svg.label([x + 2.0, y - 3.0], Anchor::Start, WIDTH, name);
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::example;
    use super::*;

    #[test]
    fn every_dispatch_is_a_bar_and_every_layer_a_rule() {
        let profile = example(None);
        let text = svg(&profile);
        // And the title of the whole.
        assert_eq!(text.matches("<title>").count(), 7);
        assert!(text.contains("<title>matvec Q6_K &lt;64x32&gt;: 10.00 us</title>"));
        assert!(!text.contains("<64x32>"));
        // Layers 0 and 1, and where they end.
        assert_eq!(text.matches("stroke=\"black\"").count(), 3);
        // 24 us on one line: the head's 10 us begin at 14.
        let x = LEFT + 14.0 / 24.0 * WIDTH;
        assert!(text.contains(&format!("<rect x=\"{x:.2}\"")), "{text}");
        assert!(text.contains("matvec: 14.0 us, 58.3%"), "{text}");
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn a_bar_over_the_end_of_a_line_goes_on_in_the_next() {
        let mut profile = example(None);
        let mut bar = profile.timeline[0].clone();
        profile.timeline = (0..PER_LINE + 1)
            .map(|i| {
                (bar.begin, bar.end) = (i as f64, i as f64 + 1.0);
                bar.clone()
            })
            .collect();
        // 57 us on two lines of 28.5: number 28 is cut.
        let text = svg(&profile);
        assert_eq!(text.matches("<title>").count(), PER_LINE + 3);
        let half = 0.5 / 28.5 * WIDTH;
        assert_eq!(text.matches(&format!("width=\"{half:.2}\"")).count(), 2);
    }

    #[test]
    fn an_empty_profile_draws_nothing_wrong() {
        let mut profile = example(None);
        profile.timeline.clear();
        assert!(svg(&profile).ends_with("</svg>\n"));
    }
}
