//! Pictures of numbers: SVG files, and bars in a terminal.

pub(crate) mod chart;
pub(crate) mod stack;
pub(crate) mod svg;
pub(crate) mod terminal;
