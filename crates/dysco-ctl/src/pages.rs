//! Pages of sessions from the daemon. Each page is a separate request, so that no answer of the
//! daemon waits for a slow reader of the output.

use dysco_api::{Filter, Listing, Reply, Request, SessionReport};

use crate::context::Context;
use crate::exit::CliError;
use crate::namespaces::Origin;

/// Number of sessions in a page.
pub(crate) const PAGE: u32 = 1024;

/// The pages of a listing.
pub(crate) struct Pages<'a> {
    context: &'a Context,
    listing: Option<Listing>,
    /// Network namespace of the sessions.
    namespace: Option<&'a str>,
    /// Daemons that are asked afterwards, and the listing for each.
    others: &'a [Origin],
    first: Listing,
}

impl<'a> Pages<'a> {
    /// Returns the pages of all sessions that match, with their histories or without.
    pub(crate) fn new(context: &'a Context, filter: Filter, brief: bool) -> Pages<'a> {
        let listing = Listing {
            filter,
            brief,
            after: None,
            limit: Some(PAGE),
        };
        Pages {
            context,
            listing: Some(listing.clone()),
            namespace: None,
            others: &[],
            first: listing,
        }
    }

    /// Returns the pages of all sessions of these daemons, of which there is at least one.
    pub(crate) fn of_all(origins: &'a [Origin], filter: Filter, brief: bool) -> Pages<'a> {
        let mut pages = Pages::new(&origins[0].context, filter, brief);
        pages.namespace = origins[0].namespace.as_deref();
        pages.others = &origins[1..];
        pages
    }

    /// Returns the next page, or `None` after the last. No page is empty unless all are.
    pub(crate) fn page(&mut self) -> Result<Option<Vec<SessionReport>>, CliError> {
        loop {
            let Some(listing) = self.listing.take() else {
                return Ok(None);
            };
            let mut page = fetch(self.context, &listing)?;
            let full = page.len() >= PAGE as usize;
            self.listing = page.last().filter(|_| full).map(|last| Listing {
                after: Some(last.id),
                ..listing
            });
            let namespace = self.namespace;
            page.iter_mut()
                .for_each(|s| s.namespace = namespace.map(str::to_owned));
            if self.listing.is_none() && !self.go_on() || !page.is_empty() {
                return Ok(Some(page));
            }
        }
    }

    /// Goes on with the next daemon, if there is one.
    fn go_on(&mut self) -> bool {
        let Some((next, others)) = self.others.split_first() else {
            return false;
        };
        self.context = &next.context;
        self.namespace = next.namespace.as_deref();
        self.others = others;
        self.listing = Some(self.first.clone());
        true
    }

    /// Returns all remaining sessions, which takes memory for each.
    pub(crate) fn rest(mut self) -> Result<Vec<SessionReport>, CliError> {
        let mut all = Vec::new();
        while let Some(page) = self.page()? {
            all.extend(page);
        }
        Ok(all)
    }
}

/// Returns true if a session of this host matches.
pub(crate) fn any(context: &Context, filter: &Filter) -> Result<bool, CliError> {
    let listing = Listing {
        filter: filter.clone(),
        brief: true,
        after: None,
        limit: Some(1),
    };
    Ok(!fetch(context, &listing)?.is_empty())
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
