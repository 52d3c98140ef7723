//! What was found as text.

use super::{Found, Joining, Tuned};
use crate::gpu::geometry::Geometry;
use std::fmt::Write;

/// A head and a table of products in Markdown.
pub fn markdown(tuned: &Tuned) -> String {
    let mut text = String::new();
    // Writing into a `String` cannot fail.
    let _ = write(&mut text, tuned);
    text
}

fn write(text: &mut String, tuned: &Tuned) -> std::fmt::Result {
    writeln!(
        text,
        "{} on {} (tier {}): a token takes {:.1} us of GPU time, with the defaults {:.1} us ({:+.1}%).\n",
        tuned.model,
        tuned.gpu_info,
        tuned.tier,
        tuned.after_us,
        tuned.before_us,
        100.0 * (tuned.after_us / tuned.before_us - 1.0)
    )?;
    if !tuned.faster {
        writeln!(
            text,
            "Together the choices below are not clearly faster: the defaults stay.\n"
        )?;
    }
    let r = &tuned.repeating;
    writeln!(
        text,
        "Small work repeated by workgroups {:.1} us, done once by dispatches that all wait for {:.1} us, by computed cost {:.1} us: {}.\n",
        r.repeated_us,
        r.once_us,
        r.default_us,
        match r.chosen {
            Some(true) => "repeated",
            Some(false) => "once",
            None => "by computed cost, the default",
        }
    )?;
    products(text, &tuned.found)?;
    for n in &tuned.numbers {
        writeln!(
            text,
            "\nThe number {}: {} {:.1} us, {} {:.1} us.",
            n.name, n.default, n.default_us, n.chosen, n.chosen_us
        )?;
    }
    if let Some(most) = tuned.merge_up_to {
        joining(text, most, &tuned.joining)?;
    }
    for site in &tuned.left {
        writeln!(text, "Not measured in the time given: {site}")?;
    }
    Ok(())
}

/// The table of products.
fn products(text: &mut String, found: &[Found]) -> std::fmt::Result {
    let width = found.iter().map(|f| f.site.len()).max();
    let width = width.unwrap_or(0).max("product".len());
    let (blank, rule) = ("product", "-".repeat(width));
    writeln!(
        text,
        "| {blank:width$} | calls | tried | default      | chosen       | us/token gained |"
    )?;
    writeln!(
        text,
        "| {rule} | ----: | ----: | ------------ | ------------ | --------------: |"
    )?;
    for f in found {
        let chosen = if f.chosen == f.default {
            "the default".to_owned()
        } else {
            shown(&f.chosen)
        };
        writeln!(
            text,
            "| {:width$} | {:>5} | {:>5} | {:12} | {:12} | {:>15.1} |",
            f.site,
            f.calls,
            f.candidates,
            shown(&f.default),
            chosen,
            f.default_us - f.chosen_us
        )?;
    }
    writeln!(
        text,
        "\nGeometries: lanes per row x rows of a workgroup / rows at once . units asked for at once."
    )
}

/// The table of both ways of joining the attention's slices, which are joined inside up to `most` slices.
fn joining(text: &mut String, most: u32, joining: &[Joining]) -> std::fmt::Result {
    writeln!(
        text,
        "\nThe attention's slices, joined inside attn_v_b or by a dispatch before it; inside up to {most} slices:\n"
    )?;
    writeln!(text, "| depth | slices | us inside | us apart |")?;
    writeln!(text, "| ----: | -----: | --------: | -------: |")?;
    for j in joining {
        writeln!(
            text,
            "| {:>5} | {:>6} | {:>9.1} | {:>8.1} |",
            j.depth, j.slices, j.inside_us, j.apart_us
        )?;
    }
    Ok(())
}

fn shown(g: &Geometry) -> String {
    format!("{}x{}/{}.{}", g.lanes, g.tile, g.at_once, g.unroll)
}
