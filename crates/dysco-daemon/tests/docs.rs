//! Test of the documents: each link has a target, each page is in the book, and the programs accept
//! each command that a page shows.
//!
//! A command is a line of a fenced block. A line may begin with a prompt (`$ `, `# `, `host# `),
//! and end in a comment. A shell's pipes and redirections end a command.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use clap::error::ErrorKind;
use dysco_common::counter::Counter;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// Languages of fenced blocks whose lines are commands. The empty language is included, so that no
/// command escapes.
const SHELL: [&str; 4] = ["console", "sh", "bash", ""];
/// Words that may precede a command and do not belong to it.
const PREFIXES: [&str; 3] = ["sudo", "env", "time"];
/// Placeholders of arguments, each with a valid value.
const PLACEHOLDERS: [(&str, &str); 1] = [("SESSION", "10.1.0.5:40000>10.2.0.7:443")];
/// Maximum number of words of the README.
const README_WORDS: usize = 900;

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Fenced block.
struct Block {
    line: usize,
    language: String,
    text: String,
}

/// Parts of a document that are checked.
#[derive(Default)]
struct Page {
    headings: BTreeSet<String>,
    links: Vec<(usize, String)>,
    blocks: Vec<Block>,
    /// Code within a line.
    spans: Vec<(usize, String)>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        Self::of(&text)
    }

    fn of(text: &str) -> Self {
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
    fn commands(&self) -> Vec<(usize, Vec<String>)> {
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

/// Returns the commands of a shell's line, each as its words.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = without_prompt(line);
    let parts = parts(line).into_iter();
    // Drawings are no commands.
    let ours = line.contains("dysco") || line.contains("xtask");
    let words = parts.filter_map(|part| {
        let words = shlex::split(&part);
        assert!(words.is_some() || !ours, "a quote is open: {line}");
        words
    });
    let program = words.map(|words| {
        let before =
            |word: &String| PREFIXES.contains(&word.as_str()) || assigns(word).unwrap_or(false);
        words.into_iter().skip_while(before).collect::<Vec<_>>()
    });
    program.filter(|words| !words.is_empty()).collect()
}

/// Returns true if the word has the form `NAME=value`.
fn assigns(word: &str) -> Option<bool> {
    let (name, _) = word.split_once('=')?;
    Some(!name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

fn without_prompt(line: &str) -> &str {
    let line = line.trim();
    let Some((prompt, rest)) = line.split_once(' ') else {
        return line;
    };
    let host = |host: &str| host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let prompts = ['$', '#']
        .iter()
        .any(|end| prompt.strip_suffix(*end).is_some_and(host));
    if prompts { rest } else { line }
}

/// Returns the commands that a shell runs one after the other or at the same time, without
/// redirections and comments.
fn parts(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut quote, mut escaped, mut redirected) = (None, false, false);
    for c in line.chars() {
        let part = parts.last_mut().unwrap();
        let plain = quote.is_none() && !escaped;
        match c {
            '#' if plain && (part.is_empty() || part.ends_with(' ')) => break,
            '|' | ';' | '&' if plain => {
                redirected = false;
                parts.push(String::new());
                continue;
            }
            '>' | '<' if plain => redirected = true,
            '\'' | '"' if plain => quote = Some(c),
            _ if quote == Some(c) && !escaped => quote = None,
            _ => {}
        }
        escaped = c == '\\' && !escaped && quote != Some('\'');
        if !redirected {
            parts.last_mut().unwrap().push(c);
        }
    }
    parts
}

/// Returns the pages of the repository, by their names there.
fn pages() -> BTreeMap<String, Page> {
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
fn book() -> Vec<String> {
    let files = fs::read_dir(root().join("docs")).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let pages = paths.filter(|path| path.extension() == Some(OsStr::new("md")));
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    pages.map(name).collect()
}

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

fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
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
fn every_command_is_understood() {
    let (mut checked, mut faults) = (0, Vec::new());
    for (name, page) in pages() {
        for (line, words) in page.commands() {
            let Some(fault) = refused(&words) else {
                continue;
            };
            checked += 1;
            if let Err(fault) = fault {
                faults.push(format!("{name}:{line}: {}\n{fault}", words.join(" ")));
            }
        }
        for (line, span) in &page.spans {
            if let Some(fault) = unknown(span) {
                faults.push(format!("{name}:{line}: `{span}`: {fault}"));
            }
        }
    }
    none(&faults);
    assert!(checked > 40, "{checked}");
}

/// Returns an error if one of our programs refuses a command; none if the program is not ours.
fn refused(words: &[String]) -> Option<Result<(), String>> {
    let program = Path::new(words.first()?).file_name()?.to_str()?;
    match program {
        "dyscoctl" => {
            let words = words.iter().map(|word| filled(word));
            let parsed = dysco_ctl::command().try_get_matches_from(words);
            Some(match parsed {
                Err(error) if !is_help(error.kind()) => Err(error.to_string()),
                _ => Ok(()),
            })
        }
        "dyscod" => Some(dyscod(&words[1..])),
        "cargo" if words.get(1)? == "xtask" => Some(xtask(&words[2..])),
        _ => None,
    }
}

fn is_help(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Returns a word with a value in place of a placeholder.
fn filled(word: &str) -> &str {
    let found = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
    found.map_or(word, |(_, value)| value)
}

/// Returns the error of code within a sentence. It may omit arguments, but names only known
/// commands and options. `a|b` and `COMMAND` stand for several.
fn unknown(span: &str) -> Option<String> {
    let words = shlex::split(span).filter(|words| words.len() > 1)?;
    if span.contains('|') || words[1].chars().all(char::is_uppercase) {
        return None;
    }
    if words[0] != "dyscoctl" {
        let xtask = words[0] == "cargo" && words[1] == "xtask" && words.len() > 2;
        return xtask.then(|| self::xtask(&words[2..]).err()).flatten();
    }
    let error = dysco_ctl::command().try_get_matches_from(words);
    let error = error.err()?;
    let unknown = matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
    );
    unknown.then(|| error.to_string())
}

/// Returns an error unless the help of `dyscod` names each option; `dyscod` has only options.
fn dyscod(words: &[String]) -> Result<(), String> {
    let help = Command::new(env!("CARGO_BIN_EXE_dyscod"))
        .arg("--help")
        .output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let known: BTreeSet<_> = help
        .split([' ', ',', '\n'])
        .filter(|word| word.starts_with('-'))
        .collect();
    let mut options = words.iter().filter(|word| word.starts_with('-'));
    match options.find(|word| !known.contains(word.split('=').next().unwrap())) {
        Some(word) => Err(format!("dyscod has no option {word}")),
        None => Ok(()),
    }
}

/// Returns an error unless the commands of `cargo xtask` and its demo are variants of their enums.
fn xtask(words: &[String]) -> Result<(), String> {
    let commands = variants("xtask/src/main.rs", "enum Command");
    let is_word = |word: &&String| !word.starts_with('-');
    let command = words.first().ok_or("no command")?;
    if !commands.contains(command) {
        return Err(format!("cargo xtask has no command {command}"));
    }
    let scenes = variants("xtask/src/demo/mod.rs", "enum Scene");
    match words.get(1).filter(is_word) {
        Some(scene) if command == "demo" && !scenes.contains(scene) => {
            Err(format!("the demo has no scene {scene}"))
        }
        _ => Ok(()),
    }
}

/// Returns the names that clap gives the variants of an enum.
fn variants(file: &str, name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, body) = text.split_once(&format!("{name} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let names = body.lines().filter_map(|line| line.trim().split_once('('));
    let names = names.map(|(name, _)| name.to_lowercase());
    let names: BTreeSet<_> = names.filter(|name| !name.contains(' ')).collect();
    assert!(!names.is_empty(), "{file} has no {name}");
    names
}

#[test]
fn every_counter_of_packets_is_explained() {
    let page = Page::read(&root().join("docs/counters.md"));
    let explained: BTreeSet<_> = page.spans.into_iter().map(|(_, span)| span).collect();
    let names = Counter::ALL.iter().map(|counter| counter.name());
    let missing: Vec<_> = names.filter(|name| !explained.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/counters.md lacks {missing:?}");
}

/// Each example in TOML or JSON can be parsed.
#[test]
fn every_example_can_be_parsed() {
    let mut faults = Vec::new();
    for (name, page) in pages() {
        for Block {
            line,
            language,
            text,
        } in &page.blocks
        {
            let fault = match language.as_str() {
                "toml" => toml::from_str::<toml::Table>(text)
                    .map(drop)
                    .err()
                    .map(|e| e.to_string()),
                "json" => serde_json::from_str::<serde_json::Value>(text)
                    .map(drop)
                    .err()
                    .map(|e| e.to_string()),
                _ => None,
            };
            faults.extend(fault.map(|fault| format!("{name}:{line}: {fault}")));
        }
    }
    none(&faults);
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let words = text.split_whitespace().count();
    assert!(words < README_WORDS, "{words} words");
}

#[test]
fn commands_are_cut_out_of_lines() {
    let of = |line| {
        commands(line)
            .iter()
            .map(|c| c.join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("$ dyscoctl status   # all right?"), ["dyscoctl status"]);
    assert_eq!(
        of("fw1# sudo dyscoctl adopt | cat"),
        ["dyscoctl adopt", "cat"]
    );
    assert_eq!(
        of("dyscoctl drain x && reload"),
        ["dyscoctl drain x", "reload"]
    );
    assert_eq!(
        of("dyscoctl state export 'a>b' > file"),
        ["dyscoctl state export a>b"]
    );
    assert_eq!(of("A_B=c dyscoctl status"), ["dyscoctl status"]);
    assert_eq!(of("# only a remark # and another")[0], "only a remark");
    let page = Page::of("```console\n# dyscoctl drain \\\n    haproxy\n```\n");
    assert_eq!(
        page.commands(),
        [(3, ["dyscoctl", "drain", "haproxy"].map(String::from).into())]
    );
}

#[test]
fn what_is_wrong_is_found() {
    let words = |line: &str| shlex::split(line).unwrap();
    let is_refused = |line| refused(&words(line)).unwrap().is_err();
    assert!(!is_refused("dyscoctl drain haproxy --timeout 10m"));
    assert!(!is_refused("dyscoctl delta SESSION --to-server 20"));
    assert!(is_refused("dyscoctl drain haproxy --time 10m"));
    assert!(is_refused("dyscoctl drain"));
    assert!(is_refused("dyscoctl evacuate haproxy"));
    assert!(!is_refused("dyscod --check --config f"));
    assert!(is_refused("dyscod --verify"));
    assert!(!is_refused("cargo xtask demo chain --json"));
    assert!(is_refused("cargo xtask demonstrate"));
    assert!(is_refused("cargo xtask demo everything"));
    assert!(unknown("dyscoctl state move").is_none());
    assert!(unknown("dyscoctl state carry").is_some());
    assert!(unknown("dyscoctl state show|export").is_none());
    assert!(unknown("dyscoctl COMMAND --help").is_none());
    let pages = pages();
    let fault = |link| fault(&pages, "docs/SUMMARY.md", link);
    assert_eq!(fault("chains.md#chains"), None);
    assert!(fault("chains.md#nothing-like-it").is_some());
    assert!(fault("nothing.md").is_some());
    assert!(fault("../../nothing.md").is_some());
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
