//! What test runners count, as they tell it in closing lines.

use crate::steps::Counts;

/// Reads `Summary [   0.5s] 12 tests run: 11 passed (1 slow), 1 failed, 2 skipped`.
pub fn nextest(text: &str) -> Counts {
    let mut counts = Counts::default();
    let Some(line) = text
        .lines()
        .rev()
        .find(|line| line.trim_start().starts_with("Summary ["))
    else {
        return counts;
    };
    let words: Vec<&str> = line
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else {
            continue;
        };
        match pair[1] {
            "passed" => counts.passed = number,
            "failed" | "timed" => counts.failed += number,
            "skipped" => counts.skipped = number,
            _ => {}
        }
    }
    counts
}

/// Reads `3 failed, 40 passed, 1 skipped in 2.50s`.
pub fn pytest(text: &str) -> Counts {
    let closing = text
        .lines()
        .rev()
        .find(|line| line.contains(" in ") && line.ends_with(['s', ')', '=']));
    let mut counts = Counts::default();
    let words: Vec<&str> = closing.unwrap_or_default().split([' ', ',']).collect();
    for pair in words.windows(2) {
        let Ok(number) = pair[0].parse::<u64>() else {
            continue;
        };
        match pair[1] {
            "passed" => counts.passed = number,
            "failed" | "error" | "errors" => counts.failed += number,
            "skipped" => counts.skipped = number,
            _ => {}
        }
    }
    counts
}

/// Adds up every `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
pub fn cargo(text: &str) -> Counts {
    let mut counts = Counts::default();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
    {
        for part in line.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let Some(Ok(number)) = words.next().map(str::parse::<u64>) else {
                continue;
            };
            match words.next() {
                Some("passed") => counts.passed += number,
                Some("failed") => counts.failed += number,
                Some("ignored") => counts.skipped += number,
                _ => {}
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines() {
        let said = "x\n3 failed, 40 passed, 1 skipped, 2 warnings, 1 error in 2.50s (0:01:00)\n";
        assert_eq!(
            pytest(said),
            Counts {
                passed: 40,
                failed: 4,
                skipped: 1
            }
        );
        assert_eq!(pytest("no tests ran"), Counts::default());
        let said = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                     test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured\n";
        assert_eq!(
            cargo(said),
            Counts {
                passed: 5,
                failed: 1,
                skipped: 1
            }
        );
    }

    #[test]
    fn summary_line() {
        let text = "  Summary [   0.512s] 12 tests run: 9 passed (1 slow), 2 failed, 1 timed out, 3 skipped";
        assert_eq!(
            nextest(text),
            Counts {
                passed: 9,
                failed: 3,
                skipped: 3
            }
        );
    }
}
