//! What was found damaged, as far as it is remembered: until a scrub finds it whole, replaced or gone.

use bytes::Bytes;
use forebay_store::VersionId;
use parking_lot::Mutex;

/// Findings remembered.
const FINDINGS_MAX: usize = 1000;

/// A block or a row of the index that does not match its checksum, or that a scrub could not read, and the value it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The namespace's name; empty when nothing tells whose the damage is.
    pub namespace: String,
    /// The key.
    pub key: Bytes,
    /// The version; 0 is the null version.
    pub version: u64,
    /// The first granule of the extent; 0 for a row.
    pub granule: u64,
    /// Which block of the extent; 0 for a row.
    pub block: usize,
    /// What is wrong, in words.
    pub what: String,
}

impl Finding {
    /// Nothing tells whose it is.
    pub(crate) fn of_nobody(what: String) -> Finding {
        Finding::of_row("", Bytes::new(), VersionId::NULL.0, what)
    }

    pub(crate) fn of_row(namespace: &str, key: Bytes, version: u64, what: String) -> Finding {
        Finding {
            namespace: namespace.to_owned(),
            key,
            version,
            granule: 0,
            block: 0,
            what,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Findings {
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    findings: Vec<(Finding, Until)>,
    /// Scrubs that have begun.
    scrubs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// A scrub that began after so many others does not find it again.
    Scrubbed(u64),
    /// The store closes: no scrub looks for it.
    Closed,
}

impl Findings {
    /// Remembers what a scrub would find again.
    pub fn note(&self, finding: Finding) {
        let mut noted = self.noted.lock();
        let until = Until::Scrubbed(noted.scrubs);
        noted.add(finding, until);
    }

    /// Remembers what is found once.
    pub fn note_for_good(&self, finding: Finding) {
        self.noted.lock().add(finding, Until::Closed);
    }

    /// A scrub begins, with a number of its own.
    pub fn begin_scrub(&self) -> u64 {
        let mut noted = self.noted.lock();
        noted.scrubs += 1;
        noted.scrubs
    }

    /// It has looked at everything: what nobody found since it began is no more.
    pub fn end_scrub(&self, scrub: u64) {
        let mut noted = self.noted.lock();
        noted.findings.retain(|(_, until)| match until {
            Until::Scrubbed(last) => *last >= scrub,
            Until::Closed => true,
        });
    }

    /// All of them, in the order in which they were found.
    pub fn list(&self) -> Vec<Finding> {
        let noted = self.noted.lock();
        noted
            .findings
            .iter()
            .map(|(finding, _)| finding.clone())
            .collect()
    }
}

impl Noted {
    fn add(&mut self, finding: Finding, until: Until) {
        if let Some((_, known)) = self
            .findings
            .iter_mut()
            .find(|(known, _)| *known == finding)
        {
            // A scrub that finds it too does not look for what is noted for good.
            if *known != Until::Closed {
                *known = until;
            }
            return;
        }
        if self.findings.len() >= FINDINGS_MAX {
            // One that may be no more is in the way of none.
            let is_old = |(_, until): &(Finding, Until)| matches!(until, Until::Scrubbed(last) if *last < self.scrubs);
            let Some(old) = self.findings.iter().position(is_old) else {
                return;
            };
            self.findings.remove(old);
        }
        self.findings.push((finding, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(number: usize) -> Finding {
        Finding::of_row("n", Bytes::from(number.to_string()), 0, String::new())
    }

    #[test]
    fn what_a_scrub_does_not_find_again_goes() {
        let findings = Findings::default();
        findings.note_for_good(finding(0));
        (1..4).for_each(|number| findings.note(finding(number)));
        let scrub = findings.begin_scrub();
        findings.note(finding(2));
        // Another one beside it finds nothing else.
        let second = findings.begin_scrub();
        findings.note(finding(3));
        findings.end_scrub(scrub);
        assert_eq!(findings.list(), [0, 2, 3].map(finding));
        findings.note(finding(0));
        findings.end_scrub(second);
        assert_eq!(findings.list(), [0, 3].map(finding));
        findings.end_scrub(findings.begin_scrub());
        assert_eq!(findings.list(), [finding(0)]);
    }

    #[test]
    fn what_is_found_is_not_kept_out_by_what_was() {
        let findings = Findings::default();
        (0..FINDINGS_MAX).for_each(|number| findings.note(finding(number)));
        findings.note(finding(FINDINGS_MAX));
        assert_eq!(
            findings.list(),
            (0..FINDINGS_MAX).map(finding).collect::<Vec<_>>()
        );
        let scrub = findings.begin_scrub();
        let found = [1, FINDINGS_MAX, FINDINGS_MAX + 1].map(finding);
        found.iter().for_each(|found| findings.note(found.clone()));
        assert_eq!(findings.list().len(), FINDINGS_MAX);
        findings.end_scrub(scrub);
        assert_eq!(findings.list(), found);
    }
}
