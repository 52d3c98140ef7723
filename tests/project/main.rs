//! The sources and documents themselves.

mod documents;
mod rooms;
