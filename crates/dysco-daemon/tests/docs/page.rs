//! A document, as far as it is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::root;
use crate::shell::commands;

/// Languages of fenced blocks whose lines are commands. The empty language is included, so that no
/// command escapes.
const SHELL: [&str; 4] = ["console", "sh", "bash", ""];

/// Fenced block.
pub(crate) struct Block {
    pub line: usize,
    pub language: String,
    pub text: String,
}

/// Parts of a document that are checked.
#[derive(Default)]
pub(crate) struct Page {
    pub headings: BTreeSet<String>,
    pub links: Vec<(usize, String)>,
    pub blocks: Vec<Block>,
    /// Code within a line.
    pub spans: Vec<(usize, String)>,
}

impl Page {
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        Self::of(&text)
    }

    pub(crate) fn of(text: &str) -> Self {
        let mut page = Self::default();
        let mut seen = BTreeMap::new();
        let mut heading: Option<String> = None;
        let mut block: Option<Block> = None;
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES;
        for (event, place) in Parser::new_ext(text, options).into_offset_iter() {
            let line = text[..place.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap());
                    let again: &mut usize = seen.entry(slug.clone()).or_default();
                    page.headings.insert(match *again {
                        0 => slug,
                        n => format!("{slug}-{n}"),
                    });
                    *again += 1;
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let text = String::new();
                    block = Some(Block {
                        line,
                        language,
                        text,
                    });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(text) => match (&mut heading, &mut block) {
                    (Some(heading), _) => heading.push_str(&text),
                    (_, Some(block)) => block.text.push_str(&text),
                    _ => {}
                },
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    page.spans.push((line, code.into_string()));
                }
                _ => {}
            }
        }
        page
    }

    /// Returns the commands of its blocks, with the line on which each begins.
    pub(crate) fn commands(&self) -> Vec<(usize, Vec<String>)> {
        let mut all = Vec::new();
        for block in &self.blocks {
            let unit = block.language == "ini";
            if !unit && !SHELL.contains(&block.language.as_str()) {
                continue;
            }
            let mut whole = String::new();
            for (line, text) in block.text.lines().enumerate() {
                let line = block.line + 1 + line;
                let text = match unit {
                    true => text.strip_prefix("ExecStart=").unwrap_or_default(),
                    false => text,
                };
                match text.strip_suffix('\\') {
                    Some(begun) => whole += begun,
                    None => {
                        whole += text;
                        let commands = commands(&whole).into_iter();
                        all.extend(commands.map(|words| (line, words)));
                        whole.clear();
                    }
                }
            }
        }
        all
    }
}

/// Returns a heading's name in links, as GitHub and mdbook make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Returns the pages of the repository, by their names there.
pub(crate) fn pages() -> BTreeMap<String, Page> {
    let root = root();
    let mut names: Vec<String> = ["README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"]
        .map(|name| format!("{name}.md"))
        .into();
    names.extend(book().into_iter().map(|name| format!("docs/{name}")));
    let read = |name: String| {
        let page = Page::read(&root.join(&name));
        (name, page)
    };
    names.into_iter().map(read).collect()
}

/// Returns the names of all pages in docs, including the table of contents.
pub(crate) fn book() -> Vec<String> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let pages = paths.filter(|path| path.extension() == Some(OsStr::new("md")));
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    pages.map(name).collect()
}

#[test]
fn headings_are_named_as_in_links() {
    assert_eq!(
        slug("What a path does to packets"),
        "what-a-path-does-to-packets"
    );
    assert_eq!(slug("`[data_plane]`"), "data_plane");
    assert_eq!(
        slug("Where the proxy's host is alone"),
        "where-the-proxys-host-is-alone"
    );
    let page = Page::of("# A\n## B\n## B\n");
    let wanted = ["a", "b", "b-1"].map(String::from);
    assert_eq!(page.headings.into_iter().collect::<Vec<_>>(), wanted);
}
