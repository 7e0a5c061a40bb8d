//! What a result says of itself.

use forebay_bench::{ExecPoint, Measured, Point};

/// A window in which so many operations ended in a second, and so many failed.
fn point(ops_per_s: f64, errors: u64) -> Point {
    Point {
        bench: "exec",
        op: "warm",
        size: 4096,
        concurrency: 1,
        path: "wasmi",
        seconds: 1.0,
        ops_per_s,
        mb_per_s: ops_per_s * 4096.0 / 1e6,
        p50_us: None,
        p99_us: None,
        p999_us: None,
        client_cpu_s_per_gb: None,
        server_cpu_s_per_gb: None,
        copied_bytes: None,
        errors,
        first_error: None,
    }
}

#[test]
fn a_window_in_which_nothing_ended_well_has_failed() {
    let failed = Some("every operation failed");
    let empty = Some("no operation ended in time: give more --seconds");
    for (ops_per_s, errors, failure) in [
        (0.0, 3, failed),
        (0.0, 0, empty),
        (5.0, 3, None),
        (5.0, 0, None),
    ] {
        let load = Measured::from(point(ops_per_s, errors));
        assert_eq!(load.failure(), failure, "{load}");
        let functions = Measured::from(ExecPoint {
            point: point(ops_per_s, errors),
            calls_per_cpu_s: ops_per_s,
            moved_share: 0.0,
            of_native: None,
        });
        assert_eq!(functions.failure(), failure, "{functions}");
    }
}
