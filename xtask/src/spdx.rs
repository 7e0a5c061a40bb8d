//! Deciding an SPDX licence expression against a set of accepted licences.

use std::collections::BTreeSet;

/// Whether the expression can be met with accepted licences alone. `/` is the old spelling of `OR`.
pub fn accepted(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = either(&mut rest, allowed);
    rest.is_empty() && met == Some(true)
}

fn either(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = both(words, allowed)?;
    while take(words, "OR") {
        met |= both(words, allowed)?;
    }
    Some(met)
}

fn both(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while take(words, "AND") {
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut &[&str], allowed: &BTreeSet<String>) -> Option<bool> {
    if take(words, "(") {
        let met = either(words, allowed)?;
        return take(words, ")").then_some(met);
    }
    let (licence, rest) = words.split_first()?;
    *words = rest;
    if take(words, "WITH") {
        let (exception, rest) = words.split_first()?;
        *words = rest;
        return Some(allowed.contains(&format!("{licence} WITH {exception}")));
    }
    Some(allowed.contains(*licence))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::accepted;

    #[test]
    fn expressions() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
            .map(String::from)
            .into();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "(MIT OR GPL-3.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(accepted(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT WITH X",
            "(MIT",
            "MIT)",
            "MIT OR",
            "MIT MIT",
        ] {
            assert!(!accepted(bad, &allowed), "{bad}");
        }
    }
}
