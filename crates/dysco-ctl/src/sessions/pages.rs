//! Pages of sessions from the daemon. Each page is a separate request, so that no answer of the
//! daemon waits for a slow reader of the output.

use dysco_api::{Filter, Listing, Reply, Request, SessionReport};

use crate::context::Context;
use crate::exit::CliError;

/// Number of sessions in a page.
pub const PAGE: u32 = 1024;

/// The pages of a listing.
pub struct Pages<'a> {
    context: &'a Context,
    listing: Option<Listing>,
}

impl<'a> Pages<'a> {
    /// Returns the pages of all sessions that match, with their histories or without.
    pub fn new(context: &'a Context, filter: Filter, brief: bool) -> Pages<'a> {
        let listing = Listing {
            filter,
            brief,
            after: None,
            limit: Some(PAGE),
        };
        Pages {
            context,
            listing: Some(listing),
        }
    }

    /// Returns the next page, or `None` after the last.
    pub fn page(&mut self) -> Result<Option<Vec<SessionReport>>, CliError> {
        let Some(listing) = self.listing.take() else {
            return Ok(None);
        };
        let page = fetch(self.context, &listing)?;
        let full = page.len() >= PAGE as usize;
        self.listing = page.last().filter(|_| full).map(|last| Listing {
            after: Some(last.id),
            ..listing
        });
        Ok(Some(page))
    }

    /// Returns all remaining sessions, which takes memory for each.
    pub fn rest(mut self) -> Result<Vec<SessionReport>, CliError> {
        let mut all = Vec::new();
        while let Some(page) = self.page()? {
            all.extend(page);
        }
        Ok(all)
    }
}

fn fetch(context: &Context, listing: &Listing) -> Result<Vec<SessionReport>, CliError> {
    let mut client = context.ask(&Request::Sessions(listing.clone()))?;
    let mut page = Vec::new();
    loop {
        match client.reply()? {
            Reply::Session(session) => page.push(*session),
            Reply::Done { .. } => return Ok(page),
            _ => return Err(CliError::Unexpected),
        }
    }
}
