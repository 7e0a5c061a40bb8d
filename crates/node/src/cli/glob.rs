//! Patterns over paths and keys: `*` and `?` within a segment, `**` across segments, `[a-z]`, `[!x]`; `\` before any character takes it
//! as it is.

/// Whether `text` holds a pattern's character.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// What comes before the first pattern character, without escapes: every match begins so.
pub fn literal_prefix(pattern: &str) -> String {
    let pattern: Vec<char> = pattern.chars().collect();
    let (mut prefix, mut at) = (String::new(), 0);
    while at < pattern.len() && !matches!(pattern[at], '*' | '?' | '[') {
        let (literal, end) = literal(&pattern, at);
        prefix.push(literal);
        at = end;
    }
    prefix
}

/// Whether `text` matches the whole `pattern`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut whole = false;
    read(pattern, text, |is_reached| whole = is_reached);
    whole
}

/// Whether what matches `pattern` may begin with `text`.
pub fn may_begin(pattern: &str, text: &str) -> bool {
    let mut may = false;
    read(pattern, text, |is_reached| may |= is_reached);
    may
}

/// Tells, from the empty beginning of a pattern to the whole of it, whether that much matches `text`.
fn read(pattern: &str, text: &str, mut tell: impl FnMut(bool)) {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // Which ends of `text` the pattern read so far can reach: linear in both, whatever the pattern.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    tell(text.is_empty());
    let mut at = 0;
    while at < pattern.len() {
        let mut next = vec![false; text.len() + 1];
        match pattern[at] {
            '*' => {
                let across = pattern.get(at + 1) == Some(&'*');
                let mut open = false;
                for (end, from) in reached.iter().enumerate() {
                    if end > 0 && !across && text[end - 1] == '/' {
                        open = false;
                    }
                    open |= from;
                    next[end] = open;
                }
                at += if across { 2 } else { 1 };
            }
            '[' if class_end(&pattern, at).is_some() => {
                let end = class_end(&pattern, at).unwrap_or(at);
                let class = &pattern[at + 1..end];
                step(&reached, &mut next, &text, |c| {
                    c != '/' && in_class(class, c)
                });
                at = end + 1;
            }
            '?' => {
                step(&reached, &mut next, &text, |c| c != '/');
                at += 1;
            }
            _ => {
                let (literal, end) = literal(&pattern, at);
                step(&reached, &mut next, &text, |c| c == literal);
                at = end;
            }
        }
        reached = next;
        tell(reached[text.len()]);
    }
}

fn step(reached: &[bool], next: &mut [bool], text: &[char], fits: impl Fn(char) -> bool) {
    for (index, c) in text.iter().enumerate() {
        next[index + 1] = reached[index] && fits(*c);
    }
}

/// The character that stands at `at` for itself, and where it ends.
fn literal(pattern: &[char], at: usize) -> (char, usize) {
    match (pattern[at], pattern.get(at + 1)) {
        ('\\', Some(escaped)) => (*escaped, at + 2),
        (plain, _) => (plain, at + 1),
    }
}

fn class_end(pattern: &[char], start: usize) -> Option<usize> {
    // A `]` right after the opening stands for itself.
    let first = start + 1 + usize::from(pattern.get(start + 1) == Some(&'!'));
    let mut at = first;
    while at < pattern.len() {
        if pattern[at] == ']' && at > first {
            return Some(at);
        }
        at = literal(pattern, at).1;
    }
    None
}

fn in_class(class: &[char], c: char) -> bool {
    let (negated, class) = match class.split_first() {
        Some(('!', rest)) => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    let mut at = 0;
    while at < class.len() {
        let (first, end) = literal(class, at);
        if class.get(end) == Some(&'-') && end + 1 < class.len() {
            let (last, end) = literal(class, end + 1);
            found |= (first..=last).contains(&c);
            at = end;
        } else {
            found |= first == c;
            at = end;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a*.bin", "a1.bin", true),
            ("a*.bin", "a/1.bin", false),
            ("a**.bin", "a/b/1.bin", true),
            ("**", "", true),
            ("?", "/", false),
            ("x[0-9]y", "x5y", true),
            ("x[!0-9]y", "x5y", false),
            ("x[]]y", "x]y", true),
            ("x[", "x[", true),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
            (r"\[x]", "[x]", true),
            (r"\\*", r"\x", true),
            (r"*\", r"x\", true),
            (r"[\]a]", "]", true),
            (r"[a\-c]", "b", false),
            (r"[a\-c]", "-", true),
            (r"[\a-c]", "b", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        // Exponential for a matcher that backtracks.
        let pattern = format!("{}b", "a*".repeat(200));
        assert!(!matches(&pattern, &"a".repeat(500)));
        for (pattern, text, expected) in [
            ("dir/a?.bin", "", true),
            ("dir/a?.bin", "dir/", true),
            ("dir/a?.bin", "dir/a1/", false),
            ("dir/a*/x", "dir/a1/", true),
            ("dir/a*/x", "dir/b1/", false),
            ("dir/a*/x", "dir/a1/x/", false),
            ("dir/a**.bin", "dir/a1/x/", true),
            ("dir/a**.bin", "dir/b1/", false),
            ("dir/a[/]/x", "dir/a//", false),
        ] {
            assert_eq!(may_begin(pattern, text), expected, "{pattern} {text}");
        }
        assert_eq!(literal_prefix("dir/a*"), "dir/a");
        assert_eq!(literal_prefix(r"d\[1]/a\*?*"), "d[1]/a*");
    }
}
