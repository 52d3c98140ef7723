//! The choices of experts of a real router, replayed in a model of random weights: these choose as if by dice, and nothing is gained by keeping
//! what was chosen before.

use super::BenchError;
use crate::engine::gpu::GpuModel;
use crate::model::Experts;
use std::path::Path;

/// Which experts each layer of a model chose for each token of a text.
#[derive(Debug)]
pub struct Routing {
    tokens: usize,
    layers: usize,
    used: usize,
    /// (tokens, layers, used).
    choices: Vec<u8>,
}

/// The beginning of a file of NumPy: the magic bytes and version 1.0.
const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

impl Routing {
    /// Reads an array (tokens, layers, used) of bytes, as `numpy.save` writes it (NEP 1).
    ///
    /// # Errors
    /// [`BenchError::Routing`] for a file that cannot be read, or that holds something else.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let refused = |reason: String| BenchError::Routing(format!("{}: {reason}", path.display()));
        let bytes = std::fs::read(path).map_err(|e| refused(e.to_string()))?;
        Self::from_npy(&bytes).map_err(refused)
    }

    /// Takes such an array from the bytes of a file.
    ///
    /// # Errors
    /// A sentence that says why the bytes are no such array.
    pub fn from_npy(bytes: &[u8]) -> Result<Self, String> {
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or("it is no .npy file of version 1.0")?;
        let (length, rest) = rest
            .split_first_chunk::<2>()
            .ok_or("it ends in its header")?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (header, data) = rest
            .split_at_checked(length)
            .ok_or("it ends in its header")?;
        let header = String::from_utf8_lossy(header);
        if !header.contains("'|u1'") || !header.contains("'fortran_order': False") {
            return Err(format!(
                "found {}, expected bytes in C order",
                header.trim()
            ));
        }
        let shape = header
            .split_once("'shape': (")
            .and_then(|(_, rest)| rest.split_once(')'));
        let sizes = shape
            .map_or("", |(shape, _)| shape)
            .split(',')
            .map(|n| n.trim().parse());
        let sizes: Vec<usize> = sizes.collect::<Result<_, _>>().unwrap_or_default();
        let [tokens, layers, used] = sizes[..] else {
            return Err(format!(
                "found {}, expected the shape (tokens, layers, used)",
                header.trim()
            ));
        };
        let n = tokens.checked_mul(layers).and_then(|n| n.checked_mul(used));
        if n != Some(data.len()) || data.is_empty() {
            return Err(format!(
                "{} bytes follow the header, expected {tokens} x {layers} x {used}",
                data.len()
            ));
        }
        Ok(Self {
            tokens,
            layers,
            used,
            choices: data.to_vec(),
        })
    }

    /// Layers of the trace.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Refuses a trace that a model with these experts could not have.
    fn check(&self, experts: &Experts) -> Result<(), String> {
        if self.used != experts.used {
            return Err(format!(
                "it has {} experts of a token, the model {}",
                self.used, experts.used
            ));
        }
        let most = self.choices.iter().copied().max().map_or(0, usize::from);
        if most >= experts.count {
            return Err(format!(
                "it has expert {most}, the model has {}",
                experts.count
            ));
        }
        let twice = |choice: &&[u8]| (1..choice.len()).any(|i| choice[..i].contains(&choice[i]));
        match self.choices.chunks(self.used).find(twice) {
            Some(choice) => Err(format!("a token has an expert twice: {choice:?}")),
            None => Ok(()),
        }
    }

    /// The choices of layer `i` of a model with `layers` layers. Layers of the trace repeat, each time later in the text by the same step, so
    /// that no two layers of the model choose alike.
    pub fn of_layer(&self, i: usize, layers: usize) -> Vec<u32> {
        let later = self.tokens / layers.div_ceil(self.layers) * (i / self.layers);
        let token = |t: usize| {
            let at = ((t + later) % self.tokens * self.layers + i % self.layers) * self.used;
            &self.choices[at..at + self.used]
        };
        (0..self.tokens)
            .flat_map(token)
            .map(|expert| u32::from(*expert))
            .collect()
    }

    /// Has the decoded tokens of `model` take these choices.
    ///
    /// # Errors
    /// [`BenchError::Routing`] where it has no slots for experts, or others than the trace.
    pub(super) fn replay(&self, model: &mut GpuModel) -> Result<(), BenchError> {
        let whole = || "no layer has slots for experts, so that it does not matter which are chosen; give --gpu-memory";
        let experts = model.model.config().experts.clone();
        let experts = experts.ok_or_else(|| BenchError::Routing(whole().to_owned()))?;
        self.check(&experts).map_err(BenchError::Routing)?;
        let layers = model.model.config().block_count;
        match model.route(|i| self.of_layer(i, layers)) {
            true => Ok(()),
            false => Err(BenchError::Routing(whole().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with this header and data.
    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [MAGIC, &length, header.as_bytes(), data].concat()
    }

    #[test]
    fn layers_repeat_later_in_the_text() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2, 1), }\n";
        let routing = Routing::from_npy(&file(header, &[0, 10, 1, 11, 2, 12, 3, 13])).unwrap();
        assert_eq!(routing.of_layer(0, 4), [0, 1, 2, 3]);
        assert_eq!(routing.of_layer(1, 4), [10, 11, 12, 13]);
        assert_eq!(routing.of_layer(2, 4), [2, 3, 0, 1]);
        assert_eq!(routing.of_layer(3, 4), [12, 13, 10, 11]);
    }

    #[test]
    fn other_files_are_refused() {
        let header = |ty: &str, shape: &str| {
            format!("{{'descr': '{ty}', 'fortran_order': False, 'shape': ({shape}), }}\n")
        };
        for (bytes, expected) in [
            (b"PK\x03\x04".to_vec(), "no .npy file"),
            (MAGIC.to_vec(), "ends in its header"),
            (file(&header("<f4", "1, 1, 1"), &[0; 4]), "expected bytes"),
            (file(&header("|u1", "4,"), &[0; 4]), "expected the shape"),
            (
                file(&header("|u1", "2, 1, 1"), &[0; 3]),
                "expected 2 x 1 x 1",
            ),
            (file(&header("|u1", "0, 1, 1"), &[]), "expected 0 x 1 x 1"),
        ] {
            let error = Routing::from_npy(&bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
