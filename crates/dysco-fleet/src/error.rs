//! Errors of the connection to etcd.

use std::error::Error as _;
use std::path::PathBuf;

use dysco_explain::{Explain, Explanation, display_explained};

/// A failure of the connection to etcd.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A key or certificate cannot be read.
    Keys {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// etcd has refused a request, or cannot be reached.
    Etcd {
        /// Operation that failed, which completes "failed to …".
        what: &'static str,
        /// URL of the member.
        url: String,
        /// Error of the client.
        source: Box<etcd_client::Error>,
    },
    /// A member has not answered in time.
    Silent {
        /// Operation that failed.
        what: &'static str,
        /// URL of the member.
        url: String,
    },
    /// etcd has ended a watch or a lease.
    Ended {
        /// URL of the member.
        url: String,
        /// Reason.
        why: String,
    },
}

display_explained!(FleetError);

impl Explain for FleetError {
    fn explain(&self) -> Explanation {
        match self {
            FleetError::Keys { path, source } => {
                Explanation::new(format!("read {} for etcd", path.display()), source)
                    .hint("name the files under [fleet], or put them there")
            }
            FleetError::Etcd { what, url, source } => {
                let (why, hint) = reason(source);
                Explanation::new(format!("{what} etcd at {url}"), why).hint(hint)
            }
            FleetError::Silent { what, url } => Explanation::new(
                format!("{what} etcd at {url}"),
                "it does not answer in time",
            )
            .hint("see that etcd runs there, and that TCP to this port passes"),
            FleetError::Ended { url, why } => Explanation::new(format!("watch etcd at {url}"), why)
                .hint("dyscod reads everything again"),
        }
    }
}

/// Returns the cause and a hint. The client's own texts end where the cause begins.
fn reason(error: &etcd_client::Error) -> (String, &'static str) {
    let (mut why, mut cause) = match error {
        etcd_client::Error::GRpcStatus(status) => (status.message().to_owned(), status.source()),
        etcd_client::Error::TransportError(error) => (error.to_string(), error.source()),
        other => (other.to_string(), None),
    };
    while let Some(error) = cause {
        let text = error.to_string();
        // A layer of the client that only says that another one has failed.
        if !why.contains(&text) && text != "transport error" {
            why = format!("{why}: {text}");
        }
        cause = error.source();
    }
    let hint = if why.contains("certificate") {
        "etcd's certificate has to name this address and be of the authority that ca under [fleet] names, and etcd has to accept this host's"
    } else if why.contains("permission denied") {
        "the user of this host's certificate has to read all keys of the prefix, and to write its own"
    } else {
        "see that etcd runs there, and that TCP to this port passes"
    };
    (why, hint)
}
