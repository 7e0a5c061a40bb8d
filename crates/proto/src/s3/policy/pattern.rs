//! Patterns with `*` (any characters, `/` too) and `?` (one character).

/// Whether `text` is what `pattern` describes. Takes at most `pattern * text` steps and no
/// memory: only the last `*` is ever tried again.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    run(pattern, text, |expected, found| expected == found)
}

/// As [`matches`], the case of ASCII letters aside.
pub(super) fn matches_ignoring_case(pattern: &str, text: &str) -> bool {
    run(pattern, text, |expected, found| {
        expected.eq_ignore_ascii_case(&found)
    })
}

fn run(pattern: &str, text: &str, same: impl Fn(char, char) -> bool) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to go on when a mismatch is met: after the last `*`, one character later.
    let mut retry: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let mut ahead = pattern.clone();
        match ahead.next() {
            Some('*') => {
                pattern = ahead;
                retry = Some((pattern.clone(), text.clone()));
                continue;
            }
            Some(expected) => {
                let mut rest = text.clone();
                if let Some(found) = rest.next()
                    && (expected == '?' || same(expected, found))
                {
                    (pattern, text) = (ahead, rest);
                    continue;
                }
            }
            None if text.as_str().is_empty() => return true,
            None => {}
        }
        let Some((after_star, from)) = &mut retry else {
            return false;
        };
        if from.next().is_none() {
            return false;
        }
        (pattern, text) = (after_star.clone(), from.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, by recursion.
    fn model(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|at| model(rest, &text[at..])),
            Some((expected, rest)) => text.split_first().is_some_and(|(found, after)| {
                (*expected == '?' || expected == found) && model(rest, after)
            }),
        }
    }

    proptest! {
        #[test]
        fn agrees_with_its_definition(pattern in "[ab\u{e9}*?]{0,8}", text in "[ab\u{e9}]{0,8}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), model(&chars(&pattern), &chars(&text)));
        }
    }
}
