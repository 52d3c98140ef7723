//! Cases of copies of rows of the cache that another page begins with as well.

use super::Case;
use super::lab::{Compared, Lab, state};
use crate::gpu::GpuError;
use crate::gpu::buffer::Role;
use crate::kernels::copy_rows::{Copied, MOST, call, copy_rows};
use crate::kernels::sequences::PAGE;

/// Half of the pages begin as one of the others, one of which several may copy.
fn compare(lab: &Lab<'_>, pages: usize, values: usize) -> Result<Vec<Compared>, GpuError> {
    let words = values / 2;
    let n = pages * PAGE as usize * words;
    let mut cache: Vec<u32> = lab.normals(n).into_iter().map(f32::to_bits).collect();
    let half = pages / 2;
    let copied = |to: usize| {
        let from = half + lab.below(pages - half);
        let rows = lab.one_of(&[1, 31, PAGE, 1 + lab.below(PAGE as usize) as u32]);
        [from as u32 * PAGE, to as u32 * PAGE, rows, 0]
    };
    let copies: Vec<Copied> = (0..half.min(MOST as usize)).map(copied).collect();
    let on_gpu = lab.given(&cache).holding(Role::Cache);
    copy_rows(&mut cache, words, &copies);
    let list = lab.given(copies.as_flattened());
    let call = call(&on_gpu, pages as u32 * PAGE, values as u32, &list);
    lab.run(vec![call], state(copies.len(), 0))?;
    Ok(vec![lab.same(&on_gpu, &cache)?])
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |(pages, values)| {
        let name = format!("{pages} pages of {values} values");
        Case::new(name, move |lab| compare(lab, pages, values)).verified_if(values == 576)
    };
    [(9, 576), (5, 320), (140, 2), (3, 66)].map(case).into()
}
