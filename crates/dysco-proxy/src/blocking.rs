//! Functions that block, outside the runtime's threads.

use dysco_scheduling::{spawn_long, spawn_short};

/// Runs a blocking function outside the runtime's threads, with their scheduling priority.
pub(crate) async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    ended(spawn_short(f)).await
}

/// Runs a long function outside the runtime's threads, with normal scheduling priority.
pub(crate) async fn long<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    ended(spawn_long(f)).await
}

async fn ended<T>(task: tokio::task::JoinHandle<T>) -> T {
    match task.await {
        Ok(v) => v,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        // The runtime is stopping, and nothing awaits the answer.
        Err(_) => std::future::pending().await,
    }
}
