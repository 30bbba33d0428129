//! Notifications to the service manager. Without one, nothing happens.

use sd_notify::NotifyState;

/// Reports that the daemon is up: programs attached, sockets open.
pub(crate) fn notify_ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the daemon is about to end.
pub(crate) fn notify_stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Reports that the daemon reads its configuration again; [`notify_ready`] follows.
pub(crate) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        // By the time, systemd matches the notification with its own request.
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "failed to tell the service manager"),
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::warn!(%error, "failed to tell the service manager");
    }
}
