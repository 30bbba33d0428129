//! What the service manager is told. Without one, nothing happens.

use sd_notify::NotifyState;

/// The daemon is up: programs attached, sockets open.
pub fn notify_ready() {
    tell(&[NotifyState::Ready]);
}

/// The daemon is about to end.
pub fn notify_stopping() {
    tell(&[NotifyState::Stopping]);
}

/// The daemon reads its configuration again; [`notify_ready`] follows.
pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        // systemd tells by the time that the word is about its own request.
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "failed to tell the service manager"),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::warn!(%error, "failed to tell the service manager");
    }
}
