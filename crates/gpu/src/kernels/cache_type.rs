//! The types of a cache, by name.

named! {
    /// The type of a cache's rows.
    #[derive(Default)]
    pub enum CacheType {
        /// Every value in f16.
        #[default]
        F16 = "f16",
        /// Blocks of 32 values as codes of 8 bits with a scale in f16, as GGUF's Q8_0 has them. Rotated values of latent attention stay in f16.
        Q8_0 = "q8_0",
    }
}

impl std::str::FromStr for CacheType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = Self::ALL.map(Self::name).join(" or ");
        Self::named(text)
            .ok_or_else(|| format!("unknown type of a cache '{text}', expected {expected}"))
    }
}

/// Values that share a scale in [`CacheType::Q8_0`].
pub const BLOCK: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_llama_cpp() {
        assert_eq!("q8_0".parse(), Ok(CacheType::Q8_0));
        assert_eq!("f16".parse(), Ok(CacheType::F16));
        let refused = "q4_0".parse::<CacheType>().expect_err("it is unknown");
        assert!(
            refused.contains("q4_0") && refused.contains("f16 or q8_0"),
            "{refused}"
        );
    }
}
