//! The results of tuning as text.

use super::{Found, Joining, Tuned};
use crate::gpu::geometry::Geometry;

/// A head and a table of products in Markdown.
pub fn markdown(tuned: &Tuned) -> String {
    let mut text = format!(
        "{} on {} (tier {}, cache in {}): a token takes {:.1} us of GPU time, with the defaults {:.1} us ({:+.1}%).\n\n",
        tuned.model,
        tuned.gpu_info,
        tuned.tier,
        tuned.cache_type,
        tuned.after_us,
        tuned.before_us,
        100.0 * (tuned.after_us / tuned.before_us - 1.0)
    );
    if !tuned.faster {
        text += "Together the choices below are not clearly faster: the defaults stay.\n\n";
    }
    let r = &tuned.repeating;
    text += &format!(
        "Small work repeated by workgroups {:.1} us, done once by dispatches that all wait for {:.1} us, by computed cost {:.1} us: {}.\n\n",
        r.repeated_us,
        r.once_us,
        r.default_us,
        match r.chosen {
            Some(true) => "repeated",
            Some(false) => "once",
            None => "by computed cost, the default",
        }
    );
    text += &products(&tuned.found);
    for n in &tuned.numbers {
        text += &format!(
            "\nThe number {}: {} {:.1} us, {} {:.1} us.\n",
            n.name, n.default, n.default_us, n.chosen, n.chosen_us
        );
    }
    if let Some(most) = tuned.merge_up_to {
        text += &joining(most, &tuned.joining);
    }
    for site in &tuned.left {
        text += &format!("Not measured in the time given: {site}\n");
    }
    text
}

/// The table of products.
fn products(found: &[Found]) -> String {
    let width = found.iter().map(|f| f.site.len()).max();
    let width = width.unwrap_or(0).max("product".len());
    let (blank, rule) = ("product", "-".repeat(width));
    let mut text = format!(
        "| {blank:width$} | calls | tried | default      | chosen       | us/token gained |\n\
         | {rule} | ----: | ----: | ------------ | ------------ | --------------: |\n"
    );
    for f in found {
        let chosen = if f.chosen == f.default {
            "the default".to_owned()
        } else {
            shown(&f.chosen)
        };
        text += &format!(
            "| {:width$} | {:>5} | {:>5} | {:12} | {chosen:12} | {:>15.1} |\n",
            f.site,
            f.calls,
            f.candidates,
            shown(&f.default),
            f.default_us - f.chosen_us
        );
    }
    text + "\nGeometries: lanes per row x rows of a workgroup / rows at once . units asked for at once.\n"
}

/// The table of both ways of joining the attention's slices, which are joined inside up to `most` slices.
fn joining(most: u32, joining: &[Joining]) -> String {
    let mut text = format!(
        "\nThe attention's slices, joined inside attn_v_b or by a dispatch before it; inside up to {most} slices:\n\n\
         | depth | slices | us inside | us apart |\n\
         | ----: | -----: | --------: | -------: |\n"
    );
    for j in joining {
        text += &format!(
            "| {:>5} | {:>6} | {:>9.1} | {:>8.1} |\n",
            j.depth, j.slices, j.inside_us, j.apart_us
        );
    }
    text
}

fn shown(g: &Geometry) -> String {
    format!("{}x{}/{}.{}", g.lanes, g.tile, g.at_once, g.unroll)
}
