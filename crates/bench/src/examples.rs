//! What the help of each benchmark ends with.

pub(crate) const S3: &str = "\
Examples:
  forebay bench s3 --op get,put --size 4KiB,1MiB --concurrency 1,32
  forebay bench s3 --op get --size 1MiB --cold --json
  forebay bench s3 --op mixed --endpoint http://10.0.0.7:9000 --access-key A --secret-key S";

pub(crate) const DIRECT: &str = "\
Examples:
  forebay bench direct --op get,put --size 4KiB,1MiB --concurrency 1,32
  forebay bench direct --op get --size 1MiB --path shm --cold --json
  forebay bench direct --endpoint http://10.0.0.7:9001 --path iwarp --links 2 --access-key A --secret-key S";

pub(crate) const KV: &str = "\
Operations and their rate count values (keys, for exist), latencies are those of whole calls.
Examples:
  forebay bench kv --op put,get --size 4KiB --concurrency 8 --path iwarp
  forebay bench kv --op gather --size 64KiB --batch 64 --concurrency 4
  forebay bench kv --op exist --batch 1000";

pub(crate) const NVME: &str = "\
Examples:
  forebay bench nvme --op read,write --size 4KiB,128KiB --concurrency 1,32
  forebay bench nvme --op store,retrieve --size 4KiB --concurrency 32 --json
  forebay bench nvme --op read,retrieve --path vfio-user
  forebay bench nvme --op read --endpoint nvme+tcp://10.0.0.7:4420/nqn.2026-01.org.example:pool/1";

pub(crate) const ENGINE: &str = "\
Examples:
  forebay bench engine --op get,put --size 4KiB,1MiB --concurrency 16
  forebay bench engine --op get --size 4KiB --cold --dir /srv/objects --json";

pub(crate) const EXEC: &str = "\
Examples:
  forebay bench exec --size 4KiB,16MiB
  forebay bench exec --op native,warm,loop,fetch --size 1MiB --concurrency 8
  forebay bench exec --op cold,restart --interpret --json";

pub(crate) const RADOS: &str = "\
Examples:
  forebay bench rados --pool bench --op put,get --size 4KiB,4MiB
  forebay bench rados --pool bench --ceph-conf ./ceph.conf --ceph-id forebay --op put --concurrency 64 --json";

pub(crate) const FILES: &str = "\
Examples:
  forebay bench files --size 4KiB,1MiB
  forebay bench files --size 4KiB --concurrency 1,64 --dir /srv/objects --json";

pub(crate) const MEMORY: &str = "\
Examples:
  forebay bench memory
  forebay bench memory --size 4KiB,1MiB --concurrency 1,256 --json";

pub(crate) const CACHE: &str = "\
Examples:
  forebay bench cache
  forebay bench cache --trace trace.jsonl --cache 64MiB,640MiB --policy w-tinylfu
  forebay bench cache --picture ratios.svg --json";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use crate::Args;

    #[test]
    fn every_benchmark_has_examples_that_are_understood() {
        for benchmark in Args::command().get_subcommands() {
            let name = benchmark.get_name();
            let help = benchmark.get_after_help().map(|help| help.to_string());
            let help = help.unwrap_or_default();
            let (_, examples) = help.split_once("Examples:\n").expect(name);
            assert!(!examples.is_empty(), "{name}");
            for example in examples.lines() {
                let words: Vec<_> = example.split_whitespace().collect();
                assert_eq!(words[..3], ["forebay", "bench", name], "{example}");
                let parsed = Args::try_parse_from(&words[1..]);
                assert!(parsed.is_ok(), "{example}: {parsed:?}");
            }
        }
    }
}
