//! The tests of a measurement, and the flags that name them.

use super::BenchError;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt; 0 for none.
    pub prompt: usize,
    /// Tokens to generate; 0 for none.
    pub generate: usize,
    /// Cache rows before them.
    pub depth: usize,
}

impl Test {
    /// The name of the test, as llama-bench has it: `pp512`, `tg128`, `pp512+tg128`, with ` @ d4096` where there is a depth.
    pub fn name(&self) -> String {
        let name = match (self.prompt, self.generate) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generate) => format!("tg{generate}"),
            (prompt, generate) => format!("pp{prompt}+tg{generate}"),
        };
        match self.depth {
            0 => name,
            depth => format!("{name} @ d{depth}"),
        }
    }

    /// Tokens that its time is divided by.
    pub fn tokens(&self) -> usize {
        self.prompt + self.generate
    }

    /// Cache rows it needs. Generation follows at least one token, and one more is chosen than computed.
    pub fn context(&self) -> usize {
        match self.generate {
            0 => self.depth + self.prompt,
            generate => (self.depth + self.prompt).max(1) + generate + 1,
        }
    }
}

/// The tests of llama-bench's flags, in its order: for each depth the prompts, the generations, the pairs. Zeros turn a
/// test off.
///
/// # Errors
/// [`BenchError::NoTests`].
pub fn tests(
    prompts: &[usize],
    generations: &[usize],
    pairs: &[(usize, usize)],
    depths: &[usize],
) -> Result<Vec<Test>, BenchError> {
    let mut tests = Vec::new();
    for &depth in depths {
        let test = |prompt, generate| Test {
            prompt,
            generate,
            depth,
        };
        tests.extend(prompts.iter().map(|&p| test(p, 0)));
        tests.extend(generations.iter().map(|&n| test(0, n)));
        tests.extend(pairs.iter().map(|&(p, n)| test(p, n)));
    }
    tests.retain(|test| test.tokens() > 0);
    if tests.is_empty() {
        return Err(BenchError::NoTests);
    }
    Ok(tests)
}

/// The numbers of a flag: `512`, `512,1024`, and llama-bench's ranges `512-2048+512` and `512-4096*2`.
///
/// # Errors
/// A sentence naming the part that is none of these.
pub fn counts(text: &str) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        range(part, &mut all).ok_or_else(|| {
            format!("'{part}' is no number, first-last, first-last+step or first-last*factor")
        })?;
    }
    Ok(all)
}

/// The most values of a range: more is a slip.
const MAX_VALUES: usize = 1000;

fn range(part: &str, all: &mut Vec<usize>) -> Option<()> {
    let Some((first, rest)) = part.split_once('-') else {
        all.push(part.parse().ok()?);
        return Some(());
    };
    let number = |text: &str, least| text.parse().ok().filter(|n: &usize| *n >= least);
    let (last, factor, step) = if let Some((last, step)) = rest.split_once('+') {
        (last, 1, number(step, 1)?)
    } else if let Some((last, factor)) = rest.split_once('*') {
        (last, number(factor, 2)?, 0)
    } else {
        (rest, 1, 1)
    };
    let (mut n, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    if n > last || n == 0 {
        return None;
    }
    let begin = all.len();
    while n <= last {
        all.push(n);
        if all.len() - begin > MAX_VALUES {
            return None;
        }
        n = n.checked_mul(factor)?.checked_add(step)?;
    }
    Some(())
}

/// The two numbers of `-pg P,N`, both above 0.
///
/// # Errors
/// A sentence saying what is expected.
pub fn pair(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once(',').and_then(|(prompt, generate)| {
        let pair = (prompt.parse().ok()?, generate.parse().ok()?);
        (pair.0 > 0 && pair.1 > 0).then_some(pair)
    });
    parsed.ok_or_else(|| format!("'{text}' is not two numbers above 0 such as 512,128"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_and_ordered_as_llama_bench_does() {
        let all = tests(&[512, 0], &[128], &[(64, 16)], &[0, 4096]).unwrap();
        let names: Vec<_> = all.iter().map(Test::name).collect();
        assert_eq!(
            names,
            [
                "pp512",
                "tg128",
                "pp64+tg16",
                "pp512 @ d4096",
                "tg128 @ d4096",
                "pp64+tg16 @ d4096"
            ]
        );
        let contexts: Vec<_> = all.iter().map(Test::context).collect();
        assert_eq!(contexts, [512, 130, 81, 4608, 4225, 4177]);
        assert!(matches!(
            tests(&[0], &[0], &[], &[0]),
            Err(BenchError::NoTests)
        ));
    }

    #[test]
    fn counts_are_lists_and_ranges() {
        assert_eq!(counts("512"), Ok(vec![512]));
        assert_eq!(counts("0,16"), Ok(vec![0, 16]));
        assert_eq!(counts("3-5"), Ok(vec![3, 4, 5]));
        assert_eq!(counts("8-32+8,7"), Ok(vec![8, 16, 24, 32, 7]));
        assert_eq!(counts("64-512*2"), Ok(vec![64, 128, 256, 512]));
        for wrong in [
            "", "x", "-1", "5-3", "1-9*1", "1-9+0", "1,,2", "0-8*2", "1-100000", "1.5",
        ] {
            let error = counts(wrong).unwrap_err();
            assert!(error.contains("is no number"), "{wrong}: {error}");
        }
    }

    #[test]
    fn pairs_are_two_numbers() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        for wrong in ["512", "512,0", "a,b", "1,2,3", ""] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
    }
}
