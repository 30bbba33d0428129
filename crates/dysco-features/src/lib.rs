//! Nothing but dependencies. A package that is built by itself depends on this one, and then shares
//! its libraries with every other build of the workspace.
