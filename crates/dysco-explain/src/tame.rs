//! Texts of other programs and hosts, for a terminal.

/// Returns a text with escapes for line breaks, and for characters that control a terminal or
/// reverse the direction of its text. Quotes and backslashes stay as they are.
pub fn tame(text: &str) -> String {
    let mut tame = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => tame.push(c),
            _ => tame.extend(c.escape_debug()),
        }
    }
    tame
}

/// Returns the same with line breaks as they are.
pub fn tame_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(tame).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        let text = "a 'b' \"c\" \\ \u{1b}[2J\r\u{9b}é…\u{202e}\u{2066}";
        let tamed = tame(text);
        assert_eq!(tamed, r#"a 'b' "c" \ \u{1b}[2J\r\u{9b}é…\u{202e}\u{2066}"#);
        assert_eq!(tame(&tamed), tamed);
        assert_eq!(tame("a\nb"), r"a\nb");
        assert_eq!(tame_lines("a\n\u{7f}b"), "a\n\\u{7f}b");
    }
}
