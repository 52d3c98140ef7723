//! glimt.
fn main() {}
