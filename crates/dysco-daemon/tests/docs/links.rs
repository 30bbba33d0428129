//! Links between the pages.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::page::{Page, book, pages};
use crate::{none, root};

/// Returns the same path without `.` and `..`; none if it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => match plain.pop() {
                true => {}
                false => return None,
            },
            part => plain.push(part),
        }
    }
    Some(plain)
}

/// Returns the error of a page's link, if there is one.
fn fault(pages: &BTreeMap<String, Page>, from: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
    let to = match file {
        "" => PathBuf::from(from),
        file => match plain(&Path::new(from).parent().unwrap().join(file)) {
            Some(to) => to,
            None => return Some("leaves the repository".into()),
        },
    };
    if !root().join(&to).exists() {
        return Some(format!("{} does not exist", to.display()));
    }
    if fragment.is_empty() {
        return None;
    }
    let read;
    let page = match pages.get(to.to_str().unwrap()) {
        Some(page) => page,
        None => {
            read = Page::read(&root().join(&to));
            &read
        }
    };
    let known = page.headings.contains(fragment);
    (!known).then(|| format!("{} has no heading #{fragment}", to.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut checked = 0;
    let mut faults = Vec::new();
    for (name, page) in &pages {
        for (line, link) in &page.links {
            checked += 1;
            let fault = fault(&pages, name, link);
            faults.extend(fault.map(|fault| format!("{name}:{line}: {link}: {fault}")));
        }
    }
    none(&faults);
    assert!(checked > 50, "{checked}");
}

/// The book has only the files of docs: links to other files would be dead there. Figures of the
/// benchmark link to its results, in the repository.
#[test]
fn the_book_links_to_itself() {
    let mut faults = Vec::new();
    for (name, page) in pages() {
        if !name.starts_with("docs/") || name == "docs/performance.md" {
            continue;
        }
        let out = page.links.iter().filter(|(_, link)| link.starts_with(".."));
        faults.extend(out.map(|(line, link)| format!("{name}:{line}: {link} leaves the book")));
    }
    none(&faults);
}

#[test]
fn every_page_is_in_the_book_once() {
    let summary = Page::read(&root().join("docs/SUMMARY.md"));
    let mut listed: Vec<_> = summary.links.into_iter().map(|(_, link)| link).collect();
    listed.sort();
    let mut there = book();
    there.retain(|name| name != "SUMMARY.md");
    there.sort();
    assert_eq!(listed, there);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let pages = pages();
    let fault = |link| fault(&pages, "docs/SUMMARY.md", link);
    assert_eq!(fault("chains.md#chains"), None);
    assert!(fault("chains.md#nothing-like-it").is_some());
    assert!(fault("nothing.md").is_some());
    assert!(fault("../../nothing.md").is_some());
}
