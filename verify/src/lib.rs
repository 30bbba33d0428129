//! Model check of the session protocol: the machine that `dyscod` runs, on
//! hosts whose data plane is abstract, explored by stateright. See the README.

pub mod chain;
pub mod config;
pub mod drive;
pub mod explore;
pub mod fate;
pub mod host;
pub mod model;
pub mod nature;
pub mod parts;
pub mod place;
pub mod plane;
pub mod quiesce;
pub mod report;
pub mod run;
pub mod seed;
pub mod service;
pub mod socket;
pub mod world;

// A state consists of many small allocations, and each step copies them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
