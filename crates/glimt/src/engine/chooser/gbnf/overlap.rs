//! Which parts of a grammar may be one terminal: their end is known by the next character.
//!
//! An automaton reads at least what the grammar does: its rules return to every place where they are used. Two of its characters
//! that may be expected at the same time, and may begin with the same byte, are told apart by what follows only. A part is alone if
//! no character of it is in such a pair with one outside of it, and if it never follows itself. Then all ways to read a text agree on
//! where the part ends, and that is as late as it can.

use std::collections::{HashMap, HashSet};

use super::syntax::{Part, Rules};
use crate::effort::{self, Stopped};

/// The most characters of a grammar that is looked into; rules without recursion count wherever they are used.
const MOST_CHARACTERS: usize = 2048;
/// The deepest use of rules within rules that is looked into.
const DEEPEST: usize = 100;
/// The most steps that the search for pairs may take.
const MOST_STEPS: usize = 20_000_000;

/// Properties of the rules and parts of a grammar.
pub(super) struct Overlaps {
    /// Rules that use no recursion.
    regular: Vec<bool>,
    /// Rules that accept the empty text.
    nullable: Vec<bool>,
    /// The parts that are alone.
    alone: HashSet<*const Part>,
}

impl Overlaps {
    /// Looks into a grammar.
    ///
    /// # Errors
    /// If it takes too long.
    pub(super) fn new(rules: &Rules) -> Result<Self, Stopped> {
        let mut overlaps = Self {
            regular: vec![false; rules.parts.len()],
            nullable: vec![false; rules.parts.len()],
            alone: HashSet::new(),
        };
        let mut users = vec![vec![]; rules.parts.len()];
        for (number, part) in rules.parts.iter().enumerate() {
            used(part, &mut |rule| users[rule].push(number));
        }
        // A property found of a rule may change the properties of rules that use it.
        let mut left: Vec<usize> = (0..rules.parts.len()).collect();
        while let Some(number) = left.pop() {
            effort::check()?;
            let part = &rules.parts[number];
            let found = (overlaps.is_regular(part), overlaps.is_nullable(part));
            if found != (overlaps.regular[number], overlaps.nullable[number]) {
                (overlaps.regular[number], overlaps.nullable[number]) = found;
                left.extend(&users[number]);
            }
        }
        // A grammar without recursion is one terminal as a whole.
        if !overlaps.regular[rules.root] {
            overlaps.alone = Automaton::new(rules, &overlaps.regular)
                .and_then(|automaton| automaton.alone())
                .unwrap_or_default();
        }
        effort::check()?;
        Ok(overlaps)
    }

    /// Whether a part uses no recursion, so that it is a regular expression.
    pub(super) fn is_regular(&self, part: &Part) -> bool {
        match part {
            Part::Either(parts) | Part::Sequence(parts) => {
                parts.iter().all(|part| self.is_regular(part))
            }
            Part::Character(_) => true,
            Part::Rule(number) => self.regular[*number],
            Part::Repeat(part, ..) => self.is_regular(part),
        }
    }

    /// Whether a part accepts the empty text.
    pub(super) fn is_nullable(&self, part: &Part) -> bool {
        match part {
            Part::Either(parts) => parts.iter().any(|part| self.is_nullable(part)),
            Part::Sequence(parts) => parts.iter().all(|part| self.is_nullable(part)),
            Part::Character(_) => false,
            Part::Rule(number) => self.nullable[*number],
            Part::Repeat(part, least, _) => *least == 0 || self.is_nullable(part),
        }
    }

    /// Whether a part without recursion may be one terminal.
    pub(super) fn is_alone(&self, rules: &Rules, part: &Part) -> bool {
        matches!(part, Part::Character(_)) || self.alone.contains(&key(rules, part))
    }
}

/// Tells of the rules that a part uses.
fn used(part: &Part, tell: &mut impl FnMut(usize)) {
    match part {
        Part::Either(parts) | Part::Sequence(parts) => {
            for part in parts {
                used(part, tell);
            }
        }
        Part::Character(_) => {}
        Part::Rule(number) => tell(*number),
        Part::Repeat(part, ..) => used(part, tell),
    }
}

/// All uses of a rule are one part.
fn key(rules: &Rules, part: &Part) -> *const Part {
    match part {
        Part::Rule(number) => &rules.parts[*number],
        part => part,
    }
}

/// A set of bytes.
type Bytes = [u64; 4];

fn meet(a: &Bytes, b: &Bytes) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

/// The bytes with which characters begin in UTF-8: these are in the order of the characters.
fn first_bytes(ranges: &[(char, char)]) -> Bytes {
    let first = |c: char| c.encode_utf8(&mut [0; 4]).as_bytes()[0];
    let mut bytes = Bytes::default();
    for (begin, end) in ranges {
        for byte in first(*begin)..=first(*end) {
            bytes[usize::from(byte) / 64] |= 1 << (byte % 64);
        }
    }
    bytes
}

/// A character of the grammar in one of its places.
struct Place {
    bytes: Bytes,
    /// The state behind it.
    to: usize,
}

/// A part of the grammar in one of its places: its characters, and the state behind it.
struct Use {
    first: usize,
    end: usize,
    behind: usize,
}

struct Automaton<'a> {
    rules: &'a Rules,
    /// For each state: the states reached from it without a character, and the places of characters that may stand there.
    free: Vec<Vec<usize>>,
    places_at: Vec<Vec<usize>>,
    places: Vec<Place>,
    /// The first and last state of rules with recursion.
    ends: Vec<Option<(usize, usize)>>,
    uses: HashMap<*const Part, Vec<Use>>,
    /// The number of rules that are being entered.
    depth: usize,
}

impl<'a> Automaton<'a> {
    /// `None` if the grammar is too large to be looked into.
    fn new(rules: &'a Rules, regular: &[bool]) -> Option<Self> {
        let mut automaton = Self {
            rules,
            free: vec![],
            places_at: vec![],
            places: vec![],
            ends: vec![None; rules.parts.len()],
            uses: HashMap::new(),
            depth: 0,
        };
        for (number, regular) in regular.iter().enumerate() {
            if !regular {
                automaton.ends[number] = Some((automaton.state(), automaton.state()));
            }
        }
        for (number, part) in rules.parts.iter().enumerate() {
            if let Some((begin, end)) = automaton.ends[number] {
                automaton.part(part, begin, end)?;
            }
        }
        Some(automaton)
    }

    fn state(&mut self) -> usize {
        self.free.push(vec![]);
        self.places_at.push(vec![]);
        self.free.len() - 1
    }

    /// Adds a part between two states.
    fn part(&mut self, part: &'a Part, begin: usize, end: usize) -> Option<()> {
        let behind = self.state();
        let first = self.places.len();
        match part {
            Part::Character(ranges) => {
                let bytes = first_bytes(ranges);
                self.places_at[begin].push(first);
                self.places.push(Place { bytes, to: behind });
            }
            Part::Either(parts) => {
                for part in parts {
                    self.part(part, begin, behind)?;
                }
            }
            Part::Sequence(parts) => {
                let mut at = begin;
                for part in parts {
                    let next = self.state();
                    self.part(part, at, next)?;
                    at = next;
                }
                self.free[at].push(behind);
            }
            Part::Repeat(part, least, most) => {
                let (before, after) = (self.state(), self.state());
                self.free[begin].push(before);
                self.free[after].push(behind);
                if *least == 0 {
                    self.free[before].push(behind);
                }
                if *most != Some(0) {
                    self.part(part, before, after)?;
                }
                if most.is_none_or(|most| most > 1) {
                    self.free[after].push(before);
                }
            }
            Part::Rule(number) => match self.ends[*number] {
                Some((enter, leave)) => {
                    self.free[begin].push(enter);
                    self.free[leave].push(behind);
                }
                None if self.depth == DEEPEST => return None,
                None => {
                    self.depth += 1;
                    let rules = self.rules;
                    self.part(&rules.parts[*number], begin, behind)?;
                    self.depth -= 1;
                }
            },
        }
        self.free[behind].push(end);
        if self.places.len() > MOST_CHARACTERS {
            return None;
        }
        // The rule itself has noted its use.
        if !matches!(part, Part::Rule(_) | Part::Character(_)) {
            let used = Use {
                first,
                end: self.places.len(),
                behind,
            };
            self.uses.entry(part).or_default().push(used);
        }
        Some(())
    }

    /// The characters that may stand at a state.
    fn expected(&self, state: usize) -> Vec<usize> {
        let mut seen = vec![false; self.free.len()];
        let (mut left, mut expected) = (vec![state], vec![]);
        while let Some(state) = left.pop() {
            if !std::mem::replace(&mut seen[state], true) {
                expected.extend(&self.places_at[state]);
                left.extend(&self.free[state]);
            }
        }
        expected.sort_unstable();
        expected.dedup();
        expected
    }

    /// The parts that are alone; `None` if that takes too long to find out.
    fn alone(&self) -> Option<HashSet<*const Part>> {
        let rivals = self.rivals()?;
        let is_alone = |uses: &Vec<Use>| {
            let mut within = vec![false; self.places.len()];
            for used in uses {
                within[used.first..used.end].fill(true);
            }
            let outside = |&(a, b): &(usize, usize)| within[a] != within[b];
            let again = |used: &Use| self.expected(used.behind).iter().any(|&at| within[at]);
            effort::check().is_ok() && !rivals.iter().any(outside) && !uses.iter().any(again)
        };
        let alone = self.uses.iter().filter(|(_, uses)| is_alone(uses));
        Some(alone.map(|(part, _)| *part).collect())
    }

    /// The pairs of characters that may be expected together and begin with the same byte.
    fn rivals(&self) -> Option<Vec<(usize, usize)>> {
        let count = self.places.len();
        let behind: Vec<_> = self.places.iter().map(|at| self.expected(at.to)).collect();
        let (begin, _) = self.ends[self.rules.root]?;
        let start = self.expected(begin);
        let mut together = vec![false; count * count];
        let (mut rivals, mut left, mut steps) = (vec![], vec![], 0);
        let mut meet_all = |ours: &[usize], theirs: &[usize], left: &mut Vec<_>| {
            steps += ours.len() * theirs.len();
            for (&a, &b) in ours.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
                let (a, b) = (a.min(b), a.max(b));
                if !std::mem::replace(&mut together[a * count + b], true)
                    && meet(&self.places[a].bytes, &self.places[b].bytes)
                {
                    left.push((a, b));
                }
            }
            steps <= MOST_STEPS
        };
        if !meet_all(&start, &start, &mut left) {
            return None;
        }
        while let Some((a, b)) = left.pop() {
            if !meet_all(&behind[a], &behind[b], &mut left) {
                return None;
            }
            rivals.push((a, b));
        }
        Some(rivals)
    }
}
