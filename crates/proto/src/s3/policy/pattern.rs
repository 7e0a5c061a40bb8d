//! Patterns with `*` (any characters, `/` too) and `?` (one character).

use std::collections::HashMap;

/// Whether `text` is what `pattern` describes. What lies between two `*` is looked for once, from left to right, so the work is that of
/// reading both; where it has a `?`, that of reading the text once for each 64 characters.
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(rest) = after(first, text) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    before(last, rest).is_some_and(|middle| pieces.try_fold(middle, found).is_some())
}

fn stands_for(expected: char, found: char) -> bool {
    expected == '?' || expected == found
}

/// What follows `piece` where `text` begins with it.
fn after<'t>(piece: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text.chars();
    let all = piece
        .chars()
        .all(|expected| rest.next().is_some_and(|found| stands_for(expected, found)));
    all.then_some(rest.as_str())
}

/// What comes before `piece` where `text` ends with it.
fn before<'t>(piece: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text.chars();
    let all = piece.chars().rev().all(|expected| {
        rest.next_back()
            .is_some_and(|found| stands_for(expected, found))
    });
    all.then_some(rest.as_str())
}

/// What follows the first `piece` in `text`.
fn found<'t>(text: &'t str, piece: &str) -> Option<&'t str> {
    match piece.contains('?') {
        true => found_open(text, piece),
        false => text.find(piece).map(|at| &text[at + piece.len()..]),
    }
}

/// The same of a piece with `?`: Shift-And (Baeza-Yates and Gonnet, 1992). A bit for each character of the piece says whether the text so
/// far ends with the piece up to there.
fn found_open<'t>(text: &'t str, piece: &str) -> Option<&'t str> {
    // A `?` may stand for four bytes.
    if piece.len() > 4 * text.len() {
        return None;
    }
    let chars: Vec<char> = piece.chars().collect();
    let mut any = vec![0_u64; chars.len().div_ceil(64)];
    let bit = |at: usize| 1_u64 << (at % 64);
    for (at, _) in chars.iter().enumerate().filter(|(_, one)| **one == '?') {
        any[at / 64] |= bit(at);
    }
    let mut at_char: HashMap<char, Vec<u64>> = HashMap::new();
    for (at, one) in chars.iter().enumerate() {
        at_char.entry(*one).or_insert_with(|| any.clone())[at / 64] |= bit(at);
    }
    let whole = bit(chars.len() - 1);
    let mut ends = vec![0_u64; any.len()];
    for (at, one) in text.char_indices() {
        let mask = at_char.get(&one).unwrap_or(&any);
        let mut carried = 1;
        for (word, mask) in ends.iter_mut().zip(mask) {
            let shifted = *word << 1 | carried;
            carried = *word >> 63;
            *word = shifted & mask;
        }
        if ends.last().is_some_and(|word| word & whole != 0) {
            return Some(&text[at + one.len_utf8()..]);
        }
    }
    None
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

        /// Pieces of more than a word of bits.
        #[test]
        fn finds_long_pieces(
            piece in "[ab?]{60,140}",
            lead in "[ab]{0,90}",
            tail in "[ab]{0,9}",
            wrong in 0_usize..60,
        ) {
            let meant = piece.replace('?', "b");
            let pattern = format!("*{piece}*");
            let text = format!("{lead}{meant}{tail}");
            prop_assert!(matches(&pattern, &text));
            // With a character that no piece has it is not there, unless a `?` takes it.
            let mut spoilt: Vec<char> = meant.chars().collect();
            spoilt[wrong] = 'c';
            let spoilt: String = spoilt.into_iter().collect();
            let open = piece.as_bytes()[wrong] == b'?';
            prop_assert_eq!(matches(&pattern, &spoilt), open);
        }
    }
}
