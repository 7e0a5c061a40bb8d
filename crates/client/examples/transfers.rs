//! Many transfers over a path that may lose, reorder and cut: each one is right or an error, and none lasts for ever.
//!
//! Usage: `transfers ENDPOINT CREDENTIALS-FILE NAMESPACE PATH COUNT LARGEST [SEED]`, where PATH is auto, shm, iwarp or http and LARGEST
//! bounds the values, in bytes. Several workers put, get and gather values of their own, so each knows which contents are possible:
//! after a put that failed the old and the new. Bytes around and after what was asked for must stay as they are. Prints one line;
//! exits with 1 when anything was wrong.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_client::direct::{Client, Get, Options, Region, Span, Transfer};
use forebay_client::{Credentials, Endpoint, Error, Kind};
use parking_lot::Mutex;

const WORKERS: u64 = 8;
/// Workers that share a client, and so its links.
const WORKERS_PER_CLIENT: u64 = 4;
const KEYS_EACH: u64 = 8;
const SIZES: [usize; 9] = [0, 1, 100, 4096, 8193, 65_536, 300_001, 1 << 20, 2_500_000];
const SIZE_MAX: usize = 2_500_000;
/// Around source and target, never to be written.
const GUARD: usize = 4096;
const SOURCE: usize = GUARD;
const TARGET: usize = SOURCE + SIZE_MAX + GUARD;
const REGION: usize = TARGET + SIZE_MAX + GUARD;
/// Bytes of each value that is one of many.
const GATHERED: usize = 300_000;
const UNTOUCHED: u8 = 0xee;
const DEADLINE: Duration = Duration::from_secs(20);
/// A call is given up by its deadline, and memory comes back soon after: what takes longer hangs.
const HANGS: Duration = Duration::from_secs(90);
/// Attempts to read each value in the end.
const FINAL_ATTEMPTS: u32 = 30;

#[derive(Default)]
struct Tally {
    right: AtomicU64,
    /// Errors by what they say, numbers left out.
    errors: Mutex<BTreeMap<String, u64>>,
    /// Transfers by path.
    paths: Mutex<BTreeMap<&'static str, u64>>,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    fn error(&self, error: &Error) {
        let text: String = error
            .to_string()
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect();
        *self.errors.lock().entry(text).or_default() += 1;
    }

    fn right(&self, path: forebay_client::direct::Path) {
        self.right.fetch_add(1, Ordering::Relaxed);
        *self.paths.lock().entry(path.name()).or_default() += 1;
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().push(what);
    }
}

/// What a reader may see: nothing, or the value made from this seed.
type Content = Option<u64>;

struct Worker {
    client: Client,
    namespace: String,
    number: u64,
    random: Random,
    region: Region,
    possible: HashMap<u64, Vec<Content>>,
    values: Values,
    tally: Arc<Tally>,
}

impl Worker {
    async fn work(mut self, count: u64) {
        self.untouch(0..REGION);
        for _ in 0..count {
            let key = self.random.below(KEYS_EACH);
            let step = async {
                // A call that failed may have left its bytes with the server for a while.
                self.region.idle().await;
                match self.random.below(6) {
                    0 | 1 => self.put(key).await,
                    2 => self.gather().await,
                    _ => drop(self.get(key).await),
                }
            };
            if tokio::time::timeout(HANGS, step).await.is_err() {
                return self.tally.wrong(format!("{}: hangs", self.name(key)));
            }
        }
        for key in 0..KEYS_EACH {
            let mut left = FINAL_ATTEMPTS;
            while left > 0 && !self.get(key).await {
                self.region.idle().await;
                left -= 1;
            }
            if left == 0 {
                self.tally
                    .wrong(format!("{}: unreadable in the end", self.name(key)));
            }
        }
    }

    /// The key of a value: another process' values are not these.
    fn name(&self, key: u64) -> String {
        format!("{}/{}/{key}", std::process::id(), self.number)
    }

    async fn put(&mut self, key: u64) {
        let seed = self.random.next();
        let bytes = self.values.made_from(seed);
        if !self.region.write(SOURCE, &bytes) {
            return self.tally.wrong("the source does not fit".to_owned());
        }
        let before = self.possible.entry(key).or_insert_with(|| vec![None]);
        before.push(Some(seed));
        let name = self.name(key);
        let from = self.region.window(SOURCE..SOURCE + bytes.len());
        match self.client.put_from(&self.namespace, &name, from).await {
            Ok(transfer) => {
                self.tally.right(transfer.path);
                self.possible.insert(key, vec![Some(seed)]);
            }
            Err(error) => self.tally.error(&error),
        }
        self.check_guards(&name);
    }

    /// Whether there was an answer.
    async fn get(&mut self, key: u64) -> bool {
        let name = self.name(key);
        let place = TARGET..TARGET + SIZE_MAX;
        self.untouch(place.clone());
        let first = match self.random.below(2) {
            0 => 0,
            _ => self.random.below(70_000),
        };
        let into = self.region.window(place.clone());
        let done = self
            .client
            .get_into(&self.namespace, &name, first.., into)
            .await;
        self.judge(key, first, place, done)
    }

    /// The beginnings of all values with one call.
    async fn gather(&mut self) {
        self.untouch(TARGET..TARGET + SIZE_MAX);
        let names: Vec<String> = (0..KEYS_EACH).map(|key| self.name(key)).collect();
        let place = |at: usize| TARGET + at * GATHERED..TARGET + (at + 1) * GATHERED;
        let gets: Vec<Get<'_>> = names
            .iter()
            .enumerate()
            .map(|(at, name)| Get {
                key: name.as_bytes(),
                span: Span::of(0..GATHERED as u64),
                into: self.region.window(place(at)),
            })
            .collect();
        let mut done = Vec::new();
        let whole = self
            .client
            .gather(&self.namespace, &gets, |at, result| done.push((at, result)))
            .await;
        match whole {
            Ok(()) if done.len() < gets.len() => {
                self.tally
                    .wrong(format!("{} of {} gathered", done.len(), gets.len()));
            }
            Ok(()) => {}
            Err(error) => self.tally.error(&error),
        }
        for (at, result) in done {
            self.judge(at as u64, 0, place(at), result);
        }
    }

    /// Compares what a get of the bytes from `first` on left in `place` with what may be there. Whether there was an answer.
    fn judge(
        &self,
        key: u64,
        first: u64,
        place: Range<usize>,
        done: Result<Transfer, Error>,
    ) -> bool {
        let name = self.name(key);
        let possible = self.possible.get(&key).map_or(&[None][..], Vec::as_slice);
        let answered = match done {
            Ok(transfer) => {
                self.tally.right(transfer.path);
                let mut found = vec![0; place.len()];
                let fits = self.region.read(place.start, &mut found);
                let (got, rest) = found.split_at(place.len().min(transfer.bytes as usize));
                let seen = possible.iter().flatten().any(|seed| {
                    let whole = self.values.made_from(*seed);
                    let wanted = whole.get(first as usize..);
                    wanted.is_some_and(|wanted| wanted[..wanted.len().min(place.len())] == *got)
                });
                if !fits || !seen {
                    let moved = transfer.bytes;
                    self.tally
                        .wrong(format!("{name}: {moved} bytes that nobody put"));
                } else if rest.iter().any(|byte| *byte != UNTOUCHED) {
                    self.tally
                        .wrong(format!("{name}: bytes after the value were written"));
                }
                true
            }
            Err(Error::Refused(refusal)) if refusal.status == 416 => {
                let short = |seed: &u64| self.values.made_from(*seed).len() as u64 <= first;
                if !possible.iter().flatten().any(short) {
                    self.tally
                        .wrong(format!("{name}: from {first} on: {refusal}"));
                }
                true
            }
            Err(error) if error.kind() == Kind::NotFound => {
                if !possible.contains(&None) {
                    self.tally.wrong(format!("{name}: {error}"));
                }
                true
            }
            Err(error) => {
                self.tally.error(&error);
                false
            }
        };
        self.check_guards(&name);
        answered
    }

    fn untouch(&self, range: Range<usize>) {
        if !self
            .region
            .write(range.start, &vec![UNTOUCHED; range.len()])
        {
            self.tally.wrong("the region is too small".to_owned());
        }
    }

    fn check_guards(&self, name: &str) {
        let mut guard = [0; GUARD];
        for at in [0, SOURCE + SIZE_MAX, TARGET + SIZE_MAX] {
            if !self.region.read(at, &mut guard) || guard != [UNTOUCHED; GUARD] {
                self.tally
                    .wrong(format!("{name}: a guard at {at} was written"));
            }
        }
    }
}

/// Values of these sizes, each told by a seed.
#[derive(Clone, Copy)]
struct Values {
    sizes: &'static [usize],
}

impl Values {
    fn of(largest: usize) -> Values {
        let fit = SIZES.partition_point(|size| *size <= largest).max(1);
        Values {
            sizes: &SIZES[..fit],
        }
    }

    fn made_from(self, seed: u64) -> Vec<u8> {
        let mut random = Random(seed | 1);
        let size = self.sizes[random.below(self.sizes.len() as u64) as usize];
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        bytes.truncate(size);
        bytes
    }
}

/// Xorshift, from a state that is not zero.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 32) % bound
    }
}

async fn run(arguments: &[String]) -> Result<Arc<Tally>, Box<dyn StdError>> {
    let [endpoint, file, namespace, path, count, largest, more @ ..] = arguments else {
        return Err("ENDPOINT CREDENTIALS-FILE NAMESPACE PATH COUNT LARGEST [SEED]".into());
    };
    let endpoint: Endpoint = endpoint.parse()?;
    let (credentials, _) = Credentials::from_file(Path::new(file), "default")?;
    let options = Options {
        path: path.parse()?,
        deadline: DEADLINE,
        ..Options::default()
    };
    let count: u64 = count.parse()?;
    let seed: u64 = more.first().map_or(Ok(1), |seed| seed.parse())?;
    let tally = Arc::new(Tally::default());
    let mut workers = tokio::task::JoinSet::new();
    let mut client = None;
    for number in 0..WORKERS {
        if number % WORKERS_PER_CLIENT == 0 {
            client = Some(patiently(&endpoint, &credentials, &options).await?);
        }
        let worker = Worker {
            client: client.clone().ok_or("no client")?,
            namespace: namespace.clone(),
            number,
            random: Random((seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1),
            region: Region::alloc(REGION)?,
            possible: HashMap::new(),
            values: Values::of(largest.parse()?),
            tally: tally.clone(),
        };
        workers.spawn(worker.work(count.div_ceil(WORKERS)));
    }
    while let Some(ended) = workers.join_next().await {
        ended?;
    }
    Ok(tally)
}

/// Connects; the link that cuts may well cut that, too.
async fn patiently(
    endpoint: &Endpoint,
    credentials: &Credentials,
    options: &Options,
) -> Result<Client, Error> {
    let mut left = FINAL_ATTEMPTS;
    loop {
        match Client::connect(endpoint, credentials, options.clone()).await {
            Err(error) if error.is_transient() && left > 0 => left -= 1,
            done => return done,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tally = match run(&arguments).await {
        Ok(tally) => tally,
        Err(error) => {
            eprintln!("transfers: {error}");
            return ExitCode::from(2);
        }
    };
    let (errors, wrong) = (tally.errors.lock(), tally.wrong.lock());
    println!(
        "right {}, errors {}, wrong {}, paths {:?}",
        tally.right.load(Ordering::Relaxed),
        errors.values().sum::<u64>(),
        wrong.len(),
        tally.paths.lock(),
    );
    for (error, times) in errors.iter() {
        eprintln!("{times} times: {error}");
    }
    for what in wrong.iter() {
        eprintln!("WRONG: {what}");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}
