//! The families of models. Each has a folder with everything that only its models have; what all share is in [`model`](crate::model).

pub mod mla;
