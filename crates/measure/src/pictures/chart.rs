//! Charts in SVG: lines over a common axis, and bars where there is but one place on it.

use super::svg::{self, Anchor, GREY, Svg};

/// Width of a picture with charts.
pub const WIDTH: f64 = 900.0;
/// The left and right ends of charts.
const LEFT: f64 = 80.0;
const RIGHT: f64 = WIDTH - 40.0;
/// Height of the title of a chart, of its lines, and of what stands below them.
const TITLE: f64 = 30.0;
const PLOT: f64 = 220.0;
const AXIS: f64 = 46.0;
/// Height of a line of the legend, and of a bar with the space to the next.
const ENTRY: f64 = 20.0;
const BAR: f64 = 26.0;
/// The rightmost beginning of bars, and the width that they leave for their numbers.
const BARS: f64 = 330.0;
const NUMBER: f64 = 130.0;
/// The most marks of the upright axis.
const MARKS: f64 = 5.0;

/// A value at a place.
pub struct Point {
    /// The place, at least 0.
    pub x: f64,
    /// The value, at least 0.
    pub y: f64,
    /// The standard deviation of the value.
    pub deviation: f64,
}

/// Values that belong together.
pub struct Series {
    /// Their name.
    pub name: String,
    /// One value for each place.
    pub points: Vec<Point>,
}

/// Series that are compared with each other.
pub struct Chart {
    /// The title.
    pub title: String,
    /// The label of the places.
    pub places: String,
    /// The series, in the order of their legend.
    pub series: Vec<Series>,
}

impl Chart {
    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// The places, each once.
    fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<_> = self.points().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// The largest value, above 0.
    pub fn most(&self) -> f64 {
        let most = self.points().map(|point| point.y).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    }

    /// The height that [`draw`](Self::draw) takes.
    pub fn height(&self) -> f64 {
        let entries = self.series.len() as f64;
        match self.xs().len() {
            0 => TITLE + ENTRY,
            1 => TITLE + entries * BAR,
            _ => TITLE + PLOT + AXIS + entries * ENTRY,
        }
    }

    /// Draws it from `top` on: lines where there are several places, else bars.
    pub fn draw(&self, svg: &mut Svg, top: f64) {
        svg.heading([20.0, top + 16.0], &self.title);
        let xs = self.xs();
        match xs.as_slice() {
            [] => svg.heading([20.0, top + TITLE + 14.0], "nothing was measured"),
            [_] => self.bars(svg, top + TITLE),
            [.., last] => {
                let frame = Frame {
                    top: top + TITLE,
                    last: *last,
                    most: step(self.most()) * (self.most() / step(self.most())).ceil(),
                };
                self.axes(svg, &frame, &xs);
                self.lines(svg, &frame);
            }
        }
    }

    fn bars(&self, svg: &mut Svg, top: f64) {
        let most = self.most();
        let names = self.series.iter().map(|series| svg::width(&series.name));
        let left = (names.fold(0.0, f64::max) + 30.0).min(BARS);
        for (i, series) in self.series.iter().enumerate() {
            let y = top + i as f64 * BAR;
            let middle = y + BAR / 2.0 + 2.0;
            svg.label(
                [left - 10.0, middle],
                Anchor::End,
                left - 30.0,
                &series.name,
            );
            let Some(point) = series.points.first() else {
                continue;
            };
            let width = point.y / most * (RIGHT - NUMBER - left);
            let hint = format!("{}: {}", series.name, value(point));
            svg.rect([left, y], [width, BAR - 8.0], svg::colour(i), &hint);
            let at = [left + width + 8.0, middle];
            svg.label(at, Anchor::Start, NUMBER + 20.0, &value(point));
        }
    }

    fn axes(&self, svg: &mut Svg, frame: &Frame, xs: &[f64]) {
        let bottom = frame.top + PLOT;
        let step = step(self.most());
        let mut mark = 0.0;
        while mark <= frame.most * 1.001 {
            let [_, y] = frame.at(0.0, mark);
            svg.line(
                [LEFT, y],
                [RIGHT, y],
                if mark > 0.0 { "#dddddd" } else { GREY },
            );
            let at = [LEFT - 8.0, y + 4.0];
            svg.label(at, Anchor::End, LEFT - 10.0, &number(mark, step));
            mark += step;
        }
        // Every place has a mark, and a number where it does not touch another: the last one always.
        let half = |x: f64| svg::width(&x.to_string()) / 2.0 + 4.0;
        let [right, _] = frame.at(frame.last, 0.0);
        let mut free = f64::NEG_INFINITY;
        for &x in xs {
            let [place, _] = frame.at(x, 0.0);
            svg.line([place, bottom], [place, bottom + 5.0], GREY);
            let fits = place - half(x) >= free && place + half(x) <= right - half(frame.last);
            if fits || x == frame.last {
                let at = [place, bottom + 19.0];
                svg.label(at, Anchor::Middle, 2.0 * half(x), &x.to_string());
                free = place + half(x);
            }
        }
        let at = [(LEFT + RIGHT) / 2.0, bottom + 36.0];
        svg.label(at, Anchor::Middle, RIGHT - LEFT, &self.places);
    }

    fn lines(&self, svg: &mut Svg, frame: &Frame) {
        for (i, series) in self.series.iter().enumerate() {
            let (colour, dash) = (svg::colour(i), [0, 8, 3][i % 3]);
            let at: Vec<_> = series.points.iter().map(|p| frame.at(p.x, p.y)).collect();
            svg.path(&at, colour, dash);
            for (point, at) in series.points.iter().zip(at) {
                let ends = [-1.0, 1.0].map(|sign| point.y + sign * point.deviation);
                let [low, high] = ends.map(|y| frame.at(point.x, y.clamp(0.0, frame.most)));
                svg.line(low, high, colour);
                let hint = format!(
                    "{}, {} {}: {}",
                    series.name,
                    self.places,
                    point.x,
                    value(point)
                );
                svg.dot(at, colour, &hint);
            }
            let y = frame.top + PLOT + AXIS + i as f64 * ENTRY + 12.0;
            svg.path(&[[LEFT, y - 4.0], [LEFT + 36.0, y - 4.0]], colour, dash);
            svg.dot([LEFT + 18.0, y - 4.0], colour, "");
            let numbers = match series.points.as_slice() {
                [] => String::new(),
                [one] => format!("{:.1}", one.y),
                [first, .., last] => format!("{:.1} to {:.1}", first.y, last.y),
            };
            let room = RIGHT - LEFT - 46.0 - svg::width(&numbers) - 20.0;
            svg.label([LEFT + 46.0, y], Anchor::Start, room, &series.name);
            svg.label([RIGHT, y], Anchor::End, RIGHT - LEFT, &numbers);
        }
    }
}

/// The position of a chart of lines, and its largest place and value.
struct Frame {
    top: f64,
    last: f64,
    most: f64,
}

impl Frame {
    fn at(&self, x: f64, y: f64) -> [f64; 2] {
        let across = LEFT + 10.0 + x / self.last * (RIGHT - LEFT - 20.0);
        [across, self.top + PLOT * (1.0 - y / self.most)]
    }
}

fn value(point: &Point) -> String {
    format!("{:.1} ± {:.1}", point.y, point.deviation)
}

/// The distance of marks up to `most`: 1, 2 or 5 with zeros.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / MARKS).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let fits = |step: &f64| most / step <= MARKS;
    steps.into_iter().find(fits).unwrap_or(10.0 * power)
}

/// A mark, with as many digits as marks that are `step` apart need.
fn number(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: usize, xs: &[f64]) -> Chart {
        let point = |x: &f64| Point {
            x: *x,
            y: 100.0 - x / 1000.0,
            deviation: 1.0,
        };
        Chart {
            title: "tokens/s".to_owned(),
            places: "depth".to_owned(),
            series: (0..series)
                .map(|i| Series {
                    name: format!("series <{i}>"),
                    points: xs.iter().map(point).collect(),
                })
                .collect(),
        }
    }

    fn drawn(chart: &Chart) -> String {
        let mut svg = Svg::new(WIDTH, chart.height(), "a chart");
        chart.draw(&mut svg, 0.0);
        svg.finish()
    }

    #[test]
    fn several_places_are_lines_and_one_is_bars() {
        let text = drawn(&chart(10, &[0.0, 4096.0, 32768.0]));
        // A line and a sample of it in the legend, three points and the sample's.
        assert_eq!(text.matches("<polyline").count(), 20);
        assert_eq!(text.matches("<circle").count(), 40);
        assert!(text.contains(">32768</text>") && text.contains("series &lt;9&gt;"));
        let text = drawn(&chart(3, &[512.0]));
        assert_eq!(
            (
                text.matches("<polyline").count(),
                text.matches("<rect").count()
            ),
            (0, 4)
        );
        assert!(drawn(&chart(0, &[])).contains("nothing was measured"));
    }

    #[test]
    fn numbers_below_the_axis_do_not_touch() {
        let text = drawn(&chart(1, &[0.0, 1.0, 2.0, 16384.0, 32767.0, 32768.0]));
        for (x, there) in [
            (0, true),
            (1, false),
            (2, false),
            (16384, true),
            (32767, false),
            (32768, true),
        ] {
            assert_eq!(
                text.contains(&format!("\">{x}</text>")),
                there || x == 0,
                "{x}"
            );
        }
    }

    #[test]
    fn marks_are_round() {
        for (most, expected) in [
            (409.0, 100.0),
            (72.0, 20.0),
            (1.0, 0.2),
            (0.03, 0.01),
            (5.0, 1.0),
        ] {
            let step = step(most);
            assert!((step / expected - 1.0).abs() < 1e-9, "{most}: {step}");
        }
        assert_eq!(
            [number(0.4, 0.2), number(40.0, 20.0), number(0.03, 0.01)],
            ["0.4", "40", "0.03"]
        );
    }
}
