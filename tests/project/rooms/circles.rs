//! Protects the order within rooms: finds the circles of a graph, and tests that it does.

use std::collections::{BTreeMap, BTreeSet};

/// Who uses whom.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// All that can be reached from `start`.
fn reached<'a>(graph: &'a Graph, start: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(next) = open.pop() {
        for used in graph.get(next).into_iter().flatten() {
            if found.insert(used.as_str()) {
                open.push(used);
            }
        }
    }
    found
}

/// The groups that use each other in circles, of two or more each.
pub fn circles(graph: &Graph) -> Vec<Vec<&str>> {
    let reached: BTreeMap<_, _> = graph
        .keys()
        .map(|name| (name.as_str(), reached(graph, name)))
        .collect();
    let mut found: Vec<Vec<&str>> = vec![];
    for (name, others) in &reached {
        if found.iter().any(|circle| circle.contains(name)) {
            continue;
        }
        let uses_back = |other: &&str| reached.get(other).is_some_and(|back| back.contains(name));
        let circle = others
            .iter()
            .copied()
            .filter(|other| other != name && uses_back(other));
        let circle: Vec<_> = std::iter::once(*name).chain(circle).collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

#[test]
fn circles_are_found_and_nothing_else() {
    let graph = |uses: &[(&str, &str)]| {
        let mut graph = Graph::new();
        for (user, used) in uses {
            graph
                .entry((*user).to_owned())
                .or_default()
                .insert((*used).to_owned());
        }
        graph
    };
    let none = graph(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "d")]);
    assert!(circles(&none).is_empty());
    let two = graph(&[
        ("a", "b"),
        ("b", "a"),
        ("b", "c"),
        ("c", "d"),
        ("d", "e"),
        ("e", "c"),
    ]);
    assert_eq!(circles(&two), [vec!["a", "b"], vec!["c", "d", "e"]]);
}
