//! File of the shim, and the variables that concern it.

pub(crate) use dysco_proxy::elsewhere::SHIM_FILE as SHIM;

/// Directory in which the shim is installed.
pub(crate) const INSTALLED: &str = "/usr/lib/dysco";
/// Variable with another path of the shim.
pub(crate) const SHIM_VARIABLE: &str = "DYSCO_SHIM_LIB";
/// Variable with the socket that the shim reports to.
pub(crate) const REPORTS_VARIABLE: &str = "DYSCO_SHIM_SOCKET";
