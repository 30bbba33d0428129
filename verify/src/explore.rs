//! Explorations of configurations.

use std::time::Duration;

use crate::chain;
use crate::config::Configuration;
use crate::model::Exploration;
use crate::report::{Explored, explore_model};
use crate::service;

/// Explores all states of a configuration, or up to the first violation, or as many states as are
/// reached `within` that time.
pub fn explore(config: Configuration, within: Option<Duration>) -> Explored {
    explore_model(Exploration::new(config), within)
}

/// Explores a configuration of chains in the same way.
pub fn explore_chain(config: chain::config::Configuration, within: Option<Duration>) -> Explored {
    explore_model(chain::model::Exploration::new(config), within)
}

/// Explores a configuration of services in the same way.
pub fn explore_service(
    config: service::config::Configuration,
    within: Option<Duration>,
) -> Explored {
    explore_model(service::model::Exploration::new(config), within)
}
