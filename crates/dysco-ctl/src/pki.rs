//! `dyscoctl pki`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Subcommand;
use dysco_api::Exit;
use dysco_pki::{
    self as pki, CA_CERT, CA_KEY, HOST_CERT, HOST_DAYS, HOST_KEY, IssueRequest, SignedList,
};
use serde_json::json;

use super::context::Context;
use super::exit::CliError;

/// Arguments of `pki`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a fleet's authority: ca.crt and ca.key. Keep ca.key off the hosts
    Init {
        /// The directory to write to
        #[arg(long)]
        dir: PathBuf,
    },
    /// Issue a host's certificate: host.crt, host.key and ca.crt
    Issue {
        /// The authority's directory
        #[arg(long)]
        dir: PathBuf,
        /// The host's name
        #[arg(long)]
        name: String,
        /// An address that the host's sessions use; may be repeated
        #[arg(long = "address", required = true, num_args = 1.., value_name = "ADDRESS")]
        addresses: Vec<IpAddr>,
        /// The directory to write to; copy it to /etc/dysco/pki on the host
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Days until it expires
        #[arg(long, default_value_t = HOST_DAYS)]
        days: u32,
    },
    /// Add certificates to revoked.crl. Copy that file to all hosts of the fleet
    Revoke {
        /// The authority's directory
        #[arg(long)]
        dir: PathBuf,
        /// A certificate that 'pki issue' wrote; may be repeated
        #[arg(long = "cert", required = true, num_args = 1.., value_name = "FILE")]
        certificates: Vec<PathBuf>,
    },
}

/// Creates the fleet's authority and the certificates of its hosts, or revokes certificates.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let written = match args.command {
        Command::Init { dir } => {
            pki::init(&dir)?;
            [CA_CERT, CA_KEY].map(|name| dir.join(name)).to_vec()
        }
        Command::Issue {
            dir,
            name,
            addresses,
            out,
            days,
        } => {
            let files = [HOST_CERT, HOST_KEY, CA_CERT].map(|name| out.join(name));
            pki::issue(&IssueRequest {
                dir,
                name,
                addresses,
                out,
                days,
            })?;
            files.to_vec()
        }
        Command::Revoke { dir, certificates } => {
            let list = pki::revoke(&dir, &certificates)?;
            let report =
                json!({ "written": [list.path], "revoked": list.revoked, "first": list.is_first });
            context.print(&report, |_| signed(&list))?;
            return Ok(Exit::Done);
        }
    };
    context.print(&json!({ "written": written }), |_| {
        let lines = written
            .iter()
            .map(|path| format!("wrote {}\n", path.display()));
        lines.collect()
    })?;
    Ok(Exit::Done)
}

fn signed(list: &SignedList) -> String {
    let (path, revoked) = (list.path.display(), list.revoked);
    let first = match list.is_first {
        true => {
            "this is the authority's first list: if hosts have an earlier one, copy it here and \
                 revoke again, because they refuse a list that lacks what theirs has\n"
        }
        false => "",
    };
    format!(
        "wrote {path}, with {revoked} revoked certificates\n{first}\
         copy it to /etc/dysco/pki on all hosts, and run 'dyscoctl reload' there"
    )
}
