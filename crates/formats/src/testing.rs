//! Help for tests with random inputs: the generator, and the text that a failing test prints so that it can be repeated alone.
//!
//! The tests in `tests` take this file, too: it uses nothing of the crate.

use std::cell::RefCell;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::Once;
use std::{env, panic, thread};

/// The variable that gives a test its seed.
const SEED: &str = "GLIMT_SEED";
/// The variable by which the rounds of random tests are multiplied.
const MORE: &str = "GLIMT_TEST_MORE";
/// Variables that change what a test does, and so belong to the command that repeats it.
const OTHERS: [&str; 2] = ["GLIMT_TEST_WAVES", "GLIMT_TEST_MUTANT"];

thread_local! {
    /// The test that runs in this thread, from its first generator on.
    static TEST: RefCell<Option<Test>> = const { RefCell::new(None) };
    /// The text of the last dispatch of this thread.
    static DISPATCHED: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Test {
    seed: u64,
    generators: u64,
}

impl Test {
    fn begin() -> Self {
        print_failures();
        let seed = match env::var(SEED) {
            Ok(text) => parse(&text).unwrap_or_else(|| panic!("{SEED}: {text} is no number")),
            Err(_) => RandomState::new().hash_one(0u8),
        };
        Self {
            seed,
            generators: 0,
        }
    }
}

/// The rounds of a random test: `count`, times `GLIMT_TEST_MORE` if that is set.
pub fn rounds(count: usize) -> usize {
    let more = env::var(MORE).map_or(1, |text| {
        let more = parse(&text).and_then(|more| usize::try_from(more).ok());
        more.unwrap_or_else(|| panic!("{MORE}: {text} is no number"))
    });
    count * more
}

/// `count` of the elements, others in each run, times `GLIMT_TEST_MORE` if that is set. The choice is printed.
pub fn some<T: Copy + Debug>(all: &[T], count: usize) -> Vec<T> {
    let taken: Vec<T> = drawn(all, count).into_iter().copied().collect();
    eprintln!("taken: {taken:?}");
    taken
}

/// `count` of the elements by reference, others in each run, as `some` takes them. Nothing is printed.
pub fn drawn<T>(all: &[T], count: usize) -> Vec<&T> {
    let mut left: Vec<_> = all.iter().collect();
    Rng::fresh().shuffle(&mut left);
    left.truncate(rounds(count));
    left
}

/// Pairs of an element of `a` and one of `b`, others in each run. Each element is in at least one pair. `GLIMT_TEST_MORE` multiplies
/// the pairs, until there are all.
pub fn drawn_pairs<'a, A, B>(a: &'a [A], b: &'a [B]) -> Vec<(&'a A, &'a B)> {
    let (all_a, all_b) = (drawn(a, a.len()), drawn(b, b.len()));
    let (more, fewer) = (a.len().max(b.len()), a.len().min(b.len()));
    // Each round begins one later in the shorter list.
    let [step_a, step_b] = if a.len() < b.len() { [1, 0] } else { [0, 1] };
    let of_round = |round| {
        let (all_a, all_b) = (&all_a, &all_b);
        (0..more).map(move |i| {
            let a = all_a[(i + step_a * round) % all_a.len()];
            (a, all_b[(i + step_b * round) % all_b.len()])
        })
    };
    (0..rounds(1).min(fewer)).flat_map(of_round).collect()
}

/// A decimal number, or a hexadecimal one after `0x`.
fn parse(text: &str) -> Option<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.ok()
}

/// Remembers what this thread dispatches next, in lines of text: a failure prints it.
pub fn dispatched(what: String) {
    print_failures();
    DISPATCHED.set(what);
}

/// From now on a panic also prints what repeats the test that it ends.
fn print_failures() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            before(info);
            eprint!("{}", failure());
        }));
    });
}

/// The text about a failing test in this thread: its last dispatch, its seed and the command that repeats it.
fn failure() -> String {
    let dispatched = DISPATCHED.try_with(|text| text.try_borrow().map(|text| text.clone()));
    let mut text = dispatched.ok().and_then(Result::ok).unwrap_or_default();
    let seed = TEST.try_with(|test| Some(test.try_borrow().ok()?.as_ref()?.seed));
    let seed = seed.ok().flatten();
    let mut command = String::new();
    if let Some(seed) = seed {
        text += &format!("seed: {seed:#x}\n");
        command += &format!("{SEED}={seed:#x} ");
    } else if text.is_empty() {
        return text;
    }
    for name in OTHERS {
        if let Ok(value) = env::var(name) {
            command += &format!("{name}={value} ");
        }
    }
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        " --release"
    };
    let target = match env!("CARGO_CRATE_NAME") {
        "glimt_formats" => "--lib --bins".to_owned(),
        name => format!("--test {name}"),
    };
    let thread = thread::current();
    let test = thread.name().unwrap_or_default();
    text + &format!(
        "to repeat it: {command}cargo test{profile} {target} {test} -- --exact --include-ignored\n"
    )
}

/// A small random generator (SplitMix64). A test has a new seed in every run, unless `GLIMT_SEED` gives one.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// The next generator of this test.
    pub fn fresh() -> Self {
        TEST.with_borrow_mut(|test| {
            let test = test.get_or_insert_with(Test::begin);
            let number = test.generators;
            test.generators += 1;
            Rng(test.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95))
        })
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.bits() as u8).collect()
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in 0..n.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Brings `all` into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i + 1));
        }
    }

    /// Normally distributed, of mean 0 and variance 1 (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f32::consts::TAU * self.uniform()).cos()
    }

    /// `n` normal numbers.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}
