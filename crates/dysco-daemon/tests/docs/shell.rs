//! Lines of a shell: the commands in them.

use crate::page::Page;

/// Words that may precede a command and do not belong to it.
const PREFIXES: [&str; 3] = ["sudo", "env", "time"];

/// Returns the commands of a shell's line, each as its words.
pub(crate) fn commands(line: &str) -> Vec<Vec<String>> {
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
