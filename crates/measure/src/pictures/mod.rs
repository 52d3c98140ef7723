//! Pictures of numbers: SVG files, and bars in a terminal.

pub mod chart;
pub mod stack;
pub mod svg;
pub mod terminal;
