//! Results as a picture: tokens per second over the depth of the context.

use std::collections::BTreeSet;

use super::report::Row;
use crate::pictures::chart::{self, Chart, Point, Series};
use crate::pictures::svg::Svg;
use crate::pictures::terminal::{Bar, Terminal};

/// A kind of measurement with a chart of its own: a title, and the test whether a row is of this kind.
type Kind = (&'static str, fn(&Row) -> bool);

const KINDS: [Kind; 3] = [
    ("prompts", |row| row.n_gen == 0),
    ("generation", |row| row.n_prompt == 0),
    ("prompts with generation", |row| {
        row.n_prompt > 0 && row.n_gen > 0
    }),
];

/// The top of the charts, and the space between two of them.
const TOP: f64 = 62.0;
const SPACE: f64 = 24.0;

/// The rows of a run as SVG: a chart of prompts and one of generation, with a line for each test and device over the depths, or with
/// bars where all have one depth.
pub fn svg(rows: &[Row]) -> String {
    let charts = charts(rows);
    let heights = charts.iter().map(|chart| chart.height() + SPACE);
    let height = TOP + heights.sum::<f64>().max(SPACE);
    let models = told(rows, |row| row.model_type.clone());
    let title = format!("Tokens per second: {models}");
    let mut svg = Svg::new(chart::WIDTH, height, &title);
    svg.heading([20.0, 26.0], &title);
    let devices = told(rows, |row| format!("{} ({})", row.gpu_info, row.backends));
    let tiers = told(rows, |row| row.tier.unwrap_or_default().to_owned());
    let tiers = match tiers.as_str() {
        "" => String::new(),
        tiers => format!(", tier {tiers}"),
    };
    svg.heading([20.0, 44.0], &format!("on {devices}{tiers}"));
    let mut top = TOP;
    for chart in &charts {
        chart.draw(&mut svg, top);
        top += chart.height() + SPACE;
    }
    svg.finish()
}

/// The charts as bars for a terminal.
pub fn bars(rows: &[Row], terminal: &Terminal) -> String {
    let mut text = String::new();
    for chart in charts(rows) {
        let most = chart.most();
        let bars: Vec<_> = chart
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(move |point| (series, point)))
            .map(|(series, point)| Bar {
                name: match point.x {
                    0.0 => series.name.clone(),
                    depth => format!("{} @ d{depth}", series.name),
                },
                part: point.y / most,
                value: format!("{:.2}", point.y),
            })
            .collect();
        text += &format!("\n{}\n{}", chart.title, terminal.bars(&bars));
    }
    text
}

/// The different values of `rows`, in words.
fn told(rows: &[Row], value: fn(&Row) -> String) -> String {
    let values = rows.iter().map(value).filter(|value| !value.is_empty());
    let values: BTreeSet<_> = values.collect();
    Vec::from_iter(values).join(", ")
}

/// A chart for each kind that was measured.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let of = |(title, is): &Kind| {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| is(row) && row.statistics.avg_ts.is_finite())
            .collect();
        let mut series: Vec<Series> = vec![];
        for row in &rows {
            let name = name(row, &rows);
            let point = Point {
                x: row.n_depth as f64,
                y: row.statistics.avg_ts,
                deviation: row.statistics.stddev_ts,
            };
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    name,
                    points: vec![point],
                }),
            }
        }
        for series in &mut series {
            series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        let depths: BTreeSet<_> = rows.iter().map(|row| row.n_depth).collect();
        let depth = match depths.first() {
            Some(depth) if depths.len() == 1 && *depth > 0 => format!(" at depth {depth}"),
            _ => String::new(),
        };
        Chart {
            title: format!("{title}, tokens/s{depth}"),
            places: "depth in tokens".to_owned(),
            series,
        }
    };
    let charts = KINDS.iter().map(of);
    charts.filter(|chart| !chart.series.is_empty()).collect()
}

/// The name that tells the line of a row from those of the others: its test, and of its device what rows that are alike so far differ in.
fn name(row: &Row, rows: &[&Row]) -> String {
    let mut test = row.test();
    test.depth = 0;
    let mut parts = vec![test.name()];
    let told: [fn(&Row) -> String; 4] = [
        |row| row.gpu_info.clone(),
        |row| row.backends.clone(),
        |row| row.tier.unwrap_or_default().to_owned(),
        |row| {
            row.n_ubatch
                .map_or_else(String::new, |n| format!("ubatch {n}"))
        },
    ];
    for (i, this) in told.iter().enumerate() {
        let alike = |a: &Row, b: &Row| told[..i].iter().all(|told| told(a) == told(b));
        let differs = |a: &&Row| rows.iter().any(|b| alike(a, b) && this(a) != this(b));
        if rows.iter().any(differs) {
            parts.push(this(row));
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(test: [usize; 3], device: &str, rate: f64) -> Row {
        let [n_prompt, n_gen, n_depth] = test;
        let mut row = Row {
            gpu_info: device.to_owned(),
            backends: "Vulkan".to_owned(),
            tier: Some("int8"),
            model_type: "a <model> & more".to_owned(),
            n_prompt,
            n_gen,
            n_depth,
            ..Row::default()
        };
        (row.statistics.avg_ts, row.statistics.stddev_ts) = (rate, 1.0);
        row
    }

    #[test]
    fn prompts_and_generation_are_apart_with_a_line_for_each_device() {
        let mut rows = vec![];
        for device in ["A", "B"] {
            for depth in [4096, 0] {
                rows.push(row([512, 0, depth], device, 1000.0));
                rows.push(row([0, 128, depth], device, 50.0));
            }
        }
        let charts = charts(&rows);
        let titles: Vec<_> = charts.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(titles, ["prompts, tokens/s", "generation, tokens/s"]);
        let names: Vec<_> = charts[1].series.iter().map(|series| &series.name).collect();
        assert_eq!(names, ["tg128, A", "tg128, B"]);
        let xs: Vec<_> = charts[0].series[0]
            .points
            .iter()
            .map(|point| point.x)
            .collect();
        assert_eq!(xs, [0.0, 4096.0]);
        // A fact that follows from the device is not told again.
        for row in rows.iter_mut().filter(|row| row.gpu_info == "B") {
            (row.tier, row.n_ubatch) = (None, Some(512));
            row.backends = "CPU".to_owned();
        }
        let text = svg(&rows);
        assert!(
            text.contains("tg128, B</text>") && text.contains("tier int8</text>"),
            "{text}"
        );
        assert_eq!(text.matches("<polyline").count(), 8);
        assert!(text.contains("a &lt;model&gt; &amp; more") && !text.contains("<model>"));
    }

    #[test]
    fn bars_are_scaled_within_their_kind() {
        let rows = [
            row([512, 0, 0], "A", 1000.0),
            row([0, 128, 0], "A", 50.0),
            row([0, 128, 64], "A", 25.0),
            row([0, 128, 128], "A", f64::INFINITY),
        ];
        let terminal = Terminal {
            columns: 40,
            unicode: false,
            colour: false,
        };
        let expected = "
prompts, tokens/s
pp512 ########################## 1000.00

generation, tokens/s
tg128       ###################### 50.00
tg128 @ d64 ###########            25.00
";
        assert_eq!(bars(&rows, &terminal), expected);
    }

    #[test]
    fn no_rows_are_a_picture_of_nothing() {
        assert!(svg(&[]).ends_with("</svg>\n"));
        assert_eq!(
            bars(
                &[],
                &Terminal {
                    columns: 40,
                    unicode: true,
                    colour: true
                }
            ),
            ""
        );
    }
}
