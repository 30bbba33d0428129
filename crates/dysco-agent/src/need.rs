//! Sessions that need the data plane: without it they would stop.

use dysco_common::Session;
use dysco_common::view::{Need, View};

/// Returns why a session needs the data plane; `None` if the session would continue without it,
/// or has ended. A tombstone keeps late packets from the stack, and carries nothing.
pub fn need_of(s: &Session) -> Option<Need> {
    let view = s.view();
    let closed = s.life.fin_out != 0 && s.life.fin_in != 0 && s.life.notified != 0;
    match view {
        // Its handler may still have data.
        View::NewPath(_) if s.detours_before_path() => view.meaning().need,
        View::NewPath(_) | View::Relayed(_) | View::Returned if closed || s.life.reset != 0 => None,
        _ => view.meaning().need,
    }
}
