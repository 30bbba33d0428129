//! Model check of the session protocol: the machine that `dyscod` runs, on
//! hosts whose data plane is abstract, explored by stateright. See the README.

pub mod chain;
pub mod config;
mod drive;
pub mod explore;
mod fate;
mod faults;
mod host;
pub mod model;
mod nature;
mod parts;
mod place;
mod plane;
mod quiesce;
pub mod report;
mod run;
mod seed;
pub mod service;
mod socket;
mod world;

// A state consists of many small allocations, and each step copies them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
