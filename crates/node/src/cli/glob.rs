//! Patterns over paths and keys: `*` and `?` within a segment, `**` across segments, `[a-z]`, `[!x]`.

/// Whether `text` holds a pattern's character.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// What comes before the first pattern character: every match begins so.
pub fn literal_prefix(pattern: &str) -> &str {
    let end = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    &pattern[..end]
}

/// Whether `text` matches the whole `pattern`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // Which ends of `text` the pattern read so far can reach: linear in both, whatever the pattern.
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
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
            literal => {
                step(&reached, &mut next, &text, |c| c == literal);
                at += 1;
            }
        }
        reached = next;
    }
    reached[text.len()]
}

fn step(reached: &[bool], next: &mut [bool], text: &[char], fits: impl Fn(char) -> bool) {
    for (index, c) in text.iter().enumerate() {
        next[index + 1] = reached[index] && fits(*c);
    }
}

fn class_end(pattern: &[char], start: usize) -> Option<usize> {
    // A `]` right after the opening stands for itself.
    let first = start + 1 + usize::from(pattern.get(start + 1) == Some(&'!'));
    (first + 1..pattern.len()).find(|index| pattern[*index] == ']')
}

fn in_class(class: &[char], c: char) -> bool {
    let (negated, class) = match class.split_first() {
        Some(('!', rest)) => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    let mut at = 0;
    while at < class.len() {
        if at + 2 < class.len() && class[at + 1] == '-' {
            found |= (class[at]..=class[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= class[at] == c;
            at += 1;
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
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
        // Exponential for a matcher that backtracks.
        let pattern = format!("{}b", "a*".repeat(200));
        assert!(!matches(&pattern, &"a".repeat(500)));
        assert_eq!(literal_prefix("dir/a*"), "dir/a");
    }
}
