//! The formats of weights ([`quant`]) and of model files ([`gguf`]), and what every part of glimt needs: [`files`] that are replaced
//! whole, [`effort`] that ends where nobody waits for it, names, and numbers in words.

#[macro_use]
mod named;

pub mod aliases;
pub mod effort;
pub mod files;
pub mod gguf;
pub mod plural;
pub mod quant;
pub mod random;
pub mod team;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
