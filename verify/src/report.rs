//! Runs of explorations, and their reports.

use std::fmt::{Display, Write as _};
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use serde::Serialize;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

/// A property of a configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Description of the property.
    pub property: &'static str,
    /// `always` or `sometimes`.
    pub kind: &'static str,
    /// True if the property holds.
    pub holds: bool,
    /// Steps that lead to the violation of an `always` property.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
}

/// Result of one exploration.
#[derive(Clone, Debug, Serialize)]
pub struct Explored {
    /// Name of the configuration.
    pub name: &'static str,
    /// Subject of the configuration.
    pub about: &'static str,
    /// Number of different states.
    pub states: usize,
    /// Number of steps between states.
    pub steps: usize,
    /// Number of steps of the longest path that was needed to reach a state.
    pub depth: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// True if every reachable state was reached; false if the time ran out before.
    pub whole: bool,
    /// Results of the properties.
    pub properties: Vec<Checked>,
    /// Events that must occur and did not: in a complete exploration, these never occur.
    pub unseen: Vec<&'static str>,
}

impl Explored {
    /// Violated properties of every state. Events that were only not seen are not among them.
    pub fn wrongs(&self) -> impl Iterator<Item = &Checked> {
        self.violations().filter(|p| p.kind == "always")
    }

    /// Properties that do not hold.
    pub fn violations(&self) -> impl Iterator<Item = &Checked> {
        self.properties.iter().filter(|p| !p.holds)
    }
}

/// A model that can be explored and described.
pub trait Explorable:
    Model<
        State: Clone + Display + Hash + PartialEq + Send + Sync,
        Action: Clone + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
    /// Returns the model's name and its subject.
    fn name(&self) -> [&'static str; 2];

    /// Describes a step in words.
    fn tell(&self, state: &Self::State, action: &Self::Action) -> String;

    /// Describes the violation in a state, and the further steps without faults.
    fn explain(&self, state: &Self::State) -> Vec<String>;
}

/// Explores all states of a model, or up to the first violation, or as many states as are reached
/// `within` that time.
pub(crate) fn explore_model<M: Explorable>(model: M, within: Option<Duration>) -> Explored {
    let [name, about] = model.name();
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures);
    let checker = match within {
        Some(within) => checker.timeout(within),
        None => checker,
    };
    let checker = checker.spawn_bfs().join();
    let took = begun.elapsed();
    let whole = within.is_none_or(|within| took < within);
    let mut found = checker.discoveries();
    let model = checker.model();
    let failed = model.properties();
    let failed = failed
        .iter()
        .any(|p| p.expectation.discovery_is_failure() && found.contains_key(p.name));
    let mut unseen = Vec::new();
    let properties = model.properties().into_iter().map(|p| {
        let discovery = found.remove(p.name);
        match p.expectation {
            Expectation::Sometimes => {
                unseen.extend(discovery.is_none().then_some(p.name));
                Checked {
                    property: p.name,
                    kind: "sometimes",
                    // An exploration that was broken off may not have reached the event.
                    holds: discovery.is_some() || failed || !whole,
                    steps: Vec::new(),
                }
            }
            Expectation::Always | Expectation::Eventually => Checked {
                property: p.name,
                kind: "always",
                holds: discovery.is_none(),
                steps: discovery.map_or_else(Vec::new, |path| trace(model, path)),
            },
        }
    });
    let properties = properties.collect();
    Explored {
        unseen,
        name,
        about,
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        seconds: took.as_secs_f64(),
        whole,
        properties,
    }
}

/// Returns the steps to a violation, and the further steps without faults.
fn trace<M: Explorable>(model: &M, path: Path<M::State, M::Action>) -> Vec<String> {
    let mut steps = Vec::new();
    for (state, action) in path.into_vec() {
        steps.push(state.to_string());
        match action {
            Some(action) => steps.push(format!("-> {}", model.tell(&state, &action))),
            None => steps.extend(model.explain(&state)),
        }
    }
    steps
}

/// Describes one exploration in a few lines.
pub fn show(explored: &Explored) -> String {
    let mut text = String::new();
    let time = Duration::from_secs_f64(explored.seconds);
    let _ = writeln!(
        text,
        "{:<20} {:>9} states, depth {:>2}, {:>6.1} s  {}{}",
        explored.name,
        explored.states,
        explored.depth,
        time.as_secs_f64(),
        explored.about,
        if explored.whole {
            ""
        } else {
            " (not all of it)"
        }
    );
    let of = |kind: &'static str| explored.properties.iter().filter(move |p| p.kind == kind);
    let held = of("always").filter(|p| p.holds).count();
    let _ = writeln!(text, "  always: {held} of {} hold", of("always").count());
    let seen: Vec<_> = of("sometimes")
        .map(|p| p.property)
        .filter(|p| !explored.unseen.contains(p))
        .collect();
    let _ = writeln!(text, "  seen: {}", seen.join("; "));
    if !explored.whole && !explored.unseen.is_empty() {
        let _ = writeln!(text, "  not seen so far: {}", explored.unseen.join("; "));
    }
    for p in explored.violations() {
        let never = if p.kind == "always" {
            "VIOLATED"
        } else {
            "NEVER SEEN"
        };
        let _ = writeln!(text, "  {never}: {}", p.property);
        for step in &p.steps {
            let _ = writeln!(text, "    {step}");
        }
    }
    text
}
