//! Tests that look at what a whole process does.

/// Whether no other test opens, counts or copies anything in this process: nextest gives every test one, and cargo gives it a thread.
pub fn is_alone() -> bool {
    std::env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|mode| mode == "process-per-test")
}
