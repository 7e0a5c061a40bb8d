//! The published set of the direct path.

use crate::bench::figures::{Bound, Contender, FOREBAY, Figure, MEMORY, contender, figure};
use crate::bench::probe::Probe;
use crate::bench::redis::{ALWAYS, DEFAULTS};

/// The module of Mooncake's transfer engine.
pub const MOONCAKE: &str = "mooncake.engine";
/// The module of NIXL.
pub const NIXL: &str = "nixl_cu12._api";

const SHM: &str = "Forebay, shared memory";
const IWARP: &str = "Forebay, iWARP";
const DEFAULT: &str = "Forebay, default path: shared memory";
const DEFAULT_MEMORY: &str = "Forebay, default path: shared memory, values in memory";
const DEFAULT_RELAXED: &str = "Forebay, default path: shared memory, relaxed";
const IWARP_MEMORY: &str = "Forebay, iWARP, values in memory";
const IWARP_RELAXED: &str = "Forebay, iWARP, relaxed";
const HTTP: &str = "Forebay, HTTP bodies";
const UNCHECKED: &str = "Forebay, shared memory, no checksums";
const MEMCPY: &str = "memcpy, one thread";
const MOONCAKE_TCP: &str = "Mooncake, TCP";
const NIXL_OBJ: &str = "NIXL OBJ, on Forebay";
const NIXL_OBJ_MEMORY: &str = "NIXL OBJ, on Forebay, values in memory";

const MIB: usize = 1 << 20;

fn ours(name: &'static str, arguments: String) -> Contender {
    contender(name, Probe::Direct(FOREBAY, arguments))
}

/// By a server that keeps values in memory alone, as those beside it do.
fn in_memory(name: &'static str, arguments: String) -> Contender {
    contender(name, Probe::Direct(MEMORY, arguments))
}

/// One generating thread and one link, so that what is compared has as many connections. Where values are read that the server is to
/// have in memory, it gets the time to: it keeps what is asked for a second time.
fn direct(op: &str, size: &str, path: &str, concurrency: usize) -> String {
    let warm_up = if op == "get" { 3 } else { 1 };
    format!(
        "direct --op {op} --size {size} --path {path} --concurrency {concurrency} --threads 1 --warm-up {warm_up}"
    )
}

/// The same in a namespace that answers a store before it is on the device.
fn relaxed(op: &str, size: &str, path: &str, concurrency: usize) -> String {
    format!("kv --op {op} --size {size} --path {path} --concurrency {concurrency} --threads 1")
}

/// All tables of the direct path.
pub fn published() -> Vec<Figure> {
    let mut figures = shared_memory();
    figures.extend(iwarp());
    figures.extend(beside_redis());
    figures.extend(blocks());
    figures
}

fn shared_memory() -> Vec<Figure> {
    let cold = "direct --op get --size 1MiB --path shm --concurrency 16 --threads 1".to_owned();
    vec![
        figure(
            "Direct: GET 1 MiB over shared memory, 8 in flight",
            vec![
                ours(SHM, direct("get", "1MiB", "shm", 8)),
                ours(
                    UNCHECKED,
                    direct("get", "1MiB", "shm", 8) + " --no-checksum",
                ),
                ours(HTTP, direct("get", "1MiB", "http", 8)),
                contender(
                    MEMCPY,
                    Probe::Alone("memory --size 1MiB --concurrency 8".to_owned()),
                ),
            ],
            vec![Bound::Bytes(MEMCPY, 0.9), Bound::ClientCpu(HTTP, 0.1)],
        ),
        figure(
            "Direct: GET 1 MiB over shared memory, cold, 16 in flight",
            vec![
                contender(SHM, Probe::Cold(cold)),
                contender("fio", Probe::FioOf("256M", "1M", 16)),
            ],
            vec![Bound::Bytes("fio", 0.9), Bound::NoCopies],
        ),
        figure(
            "Direct: GET 4 KiB over shared memory, 32 in flight",
            vec![
                ours(SHM, direct("get", "4KiB", "shm", 32)),
                ours(HTTP, direct("get", "4KiB", "http", 32)),
            ],
            vec![Bound::PerSecond(400_000.0)],
        ),
        figure(
            "Direct: GET 4 KiB over shared memory, one in flight",
            vec![
                ours(SHM, direct("get", "4KiB", "shm", 1)),
                ours(HTTP, direct("get", "4KiB", "http", 1)),
            ],
            vec![Bound::P50(15.0)],
        ),
        figure(
            "Direct: keys looked up in batches of 1000",
            vec![
                ours(SHM, relaxed("exist", "4KiB", "shm", 1) + " --batch 1000"),
                ours(
                    IWARP,
                    relaxed("exist", "4KiB", "iwarp", 1) + " --batch 1000",
                ),
            ],
            vec![Bound::PerSecond(1_000_000.0)],
        ),
    ]
}

/// iperf3 throws away what it receives: a store that keeps it in memory stands beside that, and one that writes it to the device has a
/// row.
fn iwarp() -> Vec<Figure> {
    let way = |op, path| direct(op, "1MiB", path, 8);
    let against_tcp = |name, op, mut contenders: Vec<Contender>, more: Vec<Bound>| {
        contenders.push(contender("iperf3", Probe::Iperf3(op, 1)));
        let mut bounds = vec![Bound::Bytes("iperf3", 0.9), Bound::ClientCpu(HTTP, 0.5)];
        bounds.extend(more);
        figure(name, contenders, bounds)
    };
    vec![
        against_tcp(
            "Direct: GET 1 MiB over iWARP, 8 in flight on one connection",
            "get",
            vec![
                ours(IWARP, way("get", "iwarp")),
                ours(HTTP, way("get", "http")),
            ],
            vec![Bound::NoCopies],
        ),
        against_tcp(
            "Direct: PUT 1 MiB over iWARP, 8 in flight on one connection",
            "put",
            vec![
                in_memory(IWARP_MEMORY, way("put", "iwarp")),
                in_memory(HTTP, way("put", "http")),
                ours(IWARP, way("put", "iwarp")),
            ],
            Vec::new(),
        ),
    ]
}

/// Small values by iWARP, because Redis is asked over TCP; large ones by the path that a client on the same host takes by itself. The
/// other path has a row of its own. A store that Redis keeps in memory stands beside one that we keep in memory; what it costs to have
/// it written to the device as well, before or after it is acknowledged, has rows and tables of its own.
fn beside_redis() -> Vec<Figure> {
    type Ours = fn(&'static str, String) -> Contender;
    let paths = |size, iwarp, usual| match size {
        MIB => [(usual, "auto"), (iwarp, "iwarp")],
        _ => [(iwarp, "iwarp"), (usual, "auto")],
    };
    let rows = |size, [iwarp, usual]: [&'static str; 2], ours: Ours, way: fn(&str) -> String| {
        paths(size, iwarp, usual).map(|(label, path)| ours(label, way(path)))
    };
    let table = |name, size, times, peer, op, rows: Vec<Contender>| {
        let redis = contender(peer, Probe::Redis(peer, op, size));
        let contenders = rows.into_iter().chain([redis]).collect();
        figure(name, contenders, vec![Bound::Rate(peer, times)])
    };
    let durable = |size, way| rows(size, [IWARP, DEFAULT], ours, way).into();
    let volatile = |size, way, later| {
        let mut all = Vec::from(rows(size, [IWARP_MEMORY, DEFAULT_MEMORY], in_memory, way));
        all.extend(rows(size, [IWARP_RELAXED, DEFAULT_RELAXED], ours, later));
        all
    };
    vec![
        table(
            "Direct: SET 4 KiB, 8 in flight, each on the device before it is acknowledged",
            4096,
            1.0,
            ALWAYS,
            "set",
            durable(4096, |path| direct("put", "4KiB", path, 8)),
        ),
        table(
            "Direct: SET 4 KiB, 8 in flight, in memory when it is acknowledged",
            4096,
            1.0,
            DEFAULTS,
            "set",
            volatile(
                4096,
                |path| direct("put", "4KiB", path, 8),
                |path| relaxed("put", "4KiB", path, 8),
            ),
        ),
        table(
            "Direct: GET 4 KiB, 8 in flight",
            4096,
            1.0,
            DEFAULTS,
            "get",
            durable(4096, |path| direct("get", "4KiB", path, 8)),
        ),
        table(
            "Direct: SET 1 MiB, 8 in flight, each on the device before it is acknowledged",
            MIB,
            2.0,
            ALWAYS,
            "set",
            durable(MIB, |path| direct("put", "1MiB", path, 8)),
        ),
        table(
            "Direct: SET 1 MiB, 8 in flight, in memory when it is acknowledged",
            MIB,
            2.0,
            DEFAULTS,
            "set",
            volatile(
                MIB,
                |path| direct("put", "1MiB", path, 8),
                |path| relaxed("put", "1MiB", path, 8),
            ),
        ),
        table(
            "Direct: GET 1 MiB, 8 in flight",
            MIB,
            2.0,
            DEFAULTS,
            "get",
            durable(MIB, |path| direct("get", "1MiB", path, 8)),
        ),
    ]
}

/// By the path that a client on the same host takes by itself. Mooncake moves bytes from memory to memory, so its bound is for values kept
/// in memory; what it costs to have them written to the device after they are acknowledged has rows. NIXL stands beside ours on a server
/// that does the same: it keeps values in memory, or has them on the device when it acknowledges.
fn blocks() -> Vec<Figure> {
    let mooncake = |op| contender(MOONCAKE_TCP, Probe::Mooncake(op));
    let nixl = |op| contender(NIXL_OBJ, Probe::Nixl(FOREBAY, op));
    let blocks = |kind: &str, op, path| {
        format!("{kind} --op {op} --size 1MiB --path {path} --concurrency 1 --threads 1 --batch 8")
    };
    let three_times =
        |peers: &[&'static str]| peers.iter().map(|of| Bound::Rate(of, 3.0)).collect();
    let reading = |path| blocks("kv", "gather", path) + " --warm-up 3";
    let writing = |path| blocks("direct", "scatter", path);
    let later = |path| blocks("kv", "scatter", path);
    vec![
        figure(
            "Direct: reading blocks of 1 MiB, 8 a call",
            vec![
                ours(DEFAULT, reading("auto")),
                ours(IWARP, reading("iwarp")),
                mooncake("read"),
                nixl("read"),
            ],
            three_times(&[MOONCAKE_TCP, NIXL_OBJ]),
        ),
        figure(
            "Direct: writing blocks of 1 MiB, 8 a call, in memory when they are acknowledged",
            vec![
                in_memory(DEFAULT_MEMORY, writing("auto")),
                ours(DEFAULT_RELAXED, later("auto")),
                in_memory(IWARP_MEMORY, writing("iwarp")),
                ours(IWARP_RELAXED, later("iwarp")),
                mooncake("write"),
                contender(NIXL_OBJ_MEMORY, Probe::Nixl(MEMORY, "write")),
            ],
            three_times(&[MOONCAKE_TCP, NIXL_OBJ_MEMORY]),
        ),
        figure(
            "Direct: writing blocks of 1 MiB, 8 a call, on the device before they are acknowledged",
            vec![ours(DEFAULT, writing("auto")), nixl("write")],
            three_times(&[NIXL_OBJ]),
        ),
    ]
}
