//! What ran and how it ended, and the closing line that says so.

use std::time::Instant;

use anyhow::Result;

/// What this machine cannot have, and why: a skip, where any other error is a failure.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// What could not be fetched is unavailable, for there may be no network. Continuous integration has one, and sets `CI`: there it is an
/// error like any other.
pub fn unfetched(error: anyhow::Error) -> anyhow::Error {
    match std::env::var_os("CI").is_some_and(|set| !set.is_empty()) {
        true => error,
        false => Unavailable(format!("{error:#}")).into(),
    }
}

/// How many tests of a suite ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ended well.
    pub passed: u64,
    /// Ended badly, or could not be run.
    pub failed: u64,
    /// Left out, each for a reason that was printed.
    pub skipped: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The running total.
#[derive(Debug, Default)]
pub struct Steps {
    total: Counts,
}

impl Steps {
    /// Nothing has run yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs one step that passes or fails as a whole.
    pub fn run(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        self.count(name, || {
            step().map(|()| Counts {
                passed: 1,
                ..Counts::default()
            })
        });
    }

    /// Runs one step that counts for itself. An error is one failure, or a skip where it is [`Unavailable`].
    pub fn count(&mut self, name: &str, step: impl FnOnce() -> Result<Counts>) {
        eprintln!("==> {name}");
        let begun = Instant::now();
        let counts = step().unwrap_or_else(|error| {
            let unavailable = u64::from(error.is::<Unavailable>());
            let word = if unavailable > 0 { "SKIP " } else { "" };
            eprintln!("{word}{name}: {error:#}");
            Counts {
                failed: 1 - unavailable,
                skipped: unavailable,
                ..Counts::default()
            }
        });
        self.add(name, counts, begun.elapsed());
    }

    /// Leaves a step out, and says why.
    pub fn skip(&mut self, name: &str, why: &str) {
        eprintln!("SKIP {name}: {why}");
        self.total.skipped += 1;
    }

    /// Takes the counts of a step that ran elsewhere.
    pub fn add(&mut self, name: &str, counts: Counts, took: std::time::Duration) {
        let word = if counts.failed > 0 { "FAILED" } else { "ok" };
        eprintln!("<== {name}: {word}, {counts}, {:.1} s", took.as_secs_f64());
        self.total += counts;
    }

    /// The total so far.
    pub fn total(&self) -> Counts {
        self.total
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}
