//! The published set of Execute: functions beside the same code in the program itself.

use crate::bench::figures::{Bound, Figure, contender, figure};
use crate::bench::probe::Probe;

const OURS: &str = "Forebay, Execute";
const NATIVE: &str = "the same, native";

/// All tables of Execute.
pub fn published() -> Vec<Figure> {
    let own = |arguments: &str| Probe::Own(format!("exec {arguments}"));
    vec![
        figure(
            "Execute: a warm module over a cached object of 4 KiB",
            vec![
                contender(OURS, own("--op warm --size 4KiB")),
                contender(NATIVE, own("--op native --size 4KiB")),
            ],
            vec![Bound::P50(25.0), Bound::CallsPerCpu(30_000.0)],
        ),
        figure(
            "Execute: a scan of 64 MiB",
            vec![
                contender(OURS, own("--op loop --size 64MiB")),
                contender(NATIVE, own("--op native --size 64MiB")),
            ],
            vec![Bound::Rate(NATIVE, 0.5), Bound::Moved(0.01)],
        ),
        figure(
            "Execute: a module of 1 MB that was never seen",
            vec![contender(OURS, own("--op cold"))],
            vec![Bound::P50(300_000.0)],
        ),
        figure(
            "Execute: a module of 1 MB after a restart",
            vec![contender(OURS, own("--op restart"))],
            vec![Bound::P50(5_000.0)],
        ),
    ]
}
