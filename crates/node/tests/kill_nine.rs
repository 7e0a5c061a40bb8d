//! SIGKILL under load, again and again: what was acknowledged is there with the right bytes, what was not is whole or absent.
//!
//! `FOREBAY_KILLS` says how often (10 unless told), `FOREBAY_SEED` repeats a run's choices.

mod harness;

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_client::direct::Condition;
use forebay_client::{Client, Config, Kind, PutOptions};
use harness::{Place, Server, bytes};
use tokio::sync::mpsc;

const CLIENTS: u64 = 4;
const KEYS_PER_CLIENT: u64 = 8;
const NAMESPACE: &str = "mortal";
/// S3's smallest part but the last.
const PART_BYTES: usize = 5 << 20;

/// xorshift64*: the choices of one client in one life.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// A value is known by its number, which also makes its bytes: inline, one extent, several, or two parts.
fn body(value: u64) -> Vec<u8> {
    let len = match value % 16 {
        0 => 0,
        1..=5 => value % 2_048,
        6..=11 => 2_049 + value % 100_000,
        12..=14 => (1 << 20) + value % 2_000_000,
        _ => PART_BYTES as u64 + value % 300_000,
    };
    bytes(value, len as usize)
}

/// The values that a key may have; `None` for absent. More than one when an answer never came.
type Model = BTreeMap<String, Vec<Option<u64>>>;

struct Load {
    client: Client,
    choices: Choices,
    keys: Vec<String>,
    values: Arc<AtomicU64>,
    acknowledged: mpsc::UnboundedSender<()>,
}

impl Load {
    /// Changes keys until the server is gone; returns what may be there now.
    async fn run(mut self, mut model: Model) -> Model {
        loop {
            let key = self.keys[self.choices.below(KEYS_PER_CLIENT) as usize].clone();
            let states = model.get_mut(&key).unwrap();
            let deletes = self.choices.below(8) == 0;
            let wanted = (!deletes).then(|| self.values.fetch_add(1, Relaxed));
            let done = match wanted {
                None => self.client.delete(NAMESPACE, &key).await,
                Some(value) => self.store(&key, value).await,
            };
            match done {
                Ok(()) => {
                    *states = vec![wanted];
                    // The main task may have stopped counting.
                    let _ = self.acknowledged.send(());
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Failed, "{error}");
                    states.push(wanted);
                    return model;
                }
            }
        }
    }

    async fn store(&self, key: &str, value: u64) -> forebay_client::Result<()> {
        let body = bytes::Bytes::from(body(value));
        let options = PutOptions::default();
        if body.len() < PART_BYTES {
            self.client.put(NAMESPACE, key, body, &options).await?;
            return Ok(());
        }
        let upload = self
            .client
            .create_upload(NAMESPACE, key, &options.attributes)
            .await?;
        let mut parts = Vec::new();
        for (index, part) in [body.slice(..PART_BYTES), body.slice(PART_BYTES..)]
            .into_iter()
            .filter(|part| !part.is_empty())
            .enumerate()
        {
            let number = index as u32 + 1;
            let sent = self
                .client
                .upload_part(NAMESPACE, key, &upload, number, part);
            parts.push(sent.await?);
        }
        self.client
            .complete_upload(NAMESPACE, key, &upload, &parts, None, Condition::None)
            .await?;
        Ok(())
    }
}

/// A client that makes every call once: a repetition would hide what happened to the first.
fn once(server: &Server) -> Client {
    let mut config = Config::new(server.s3().parse().unwrap(), server.credentials());
    config.attempts = 1;
    Client::new(config).unwrap()
}

/// Reads every key and leaves in the model what is there.
async fn verify(client: &Client, model: &mut Model, life: u64) {
    let mut listed = BTreeMap::new();
    let mut next = None::<String>;
    loop {
        let page = client
            .list(NAMESPACE, "", None, next.as_deref())
            .await
            .unwrap();
        listed.extend(
            page.objects
                .into_iter()
                .map(|object| (String::from_utf8(object.key.into()).unwrap(), object.size)),
        );
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    for (key, states) in model.iter_mut() {
        let found = match client.get(NAMESPACE, key, None, None).await {
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => panic!("life {life}: {key}: {error}"),
            Ok(mut download) => {
                let mut bytes = Vec::new();
                while let Some(more) = download.next().await.unwrap() {
                    bytes.extend_from_slice(&more);
                }
                Some(bytes)
            }
        };
        assert_eq!(
            listed.remove(key),
            found.as_ref().map(|found| found.len() as u64),
            "life {life}: {key}: the list and the object differ"
        );
        let state = states
            .iter()
            .find(|state| state.map(body) == found)
            .unwrap_or_else(|| {
                let len = found.as_ref().map(Vec::len);
                panic!("life {life}: {key} may be one of {states:?} and holds {len:?} other bytes")
            });
        *states = vec![*state];
    }
    assert!(listed.is_empty(), "life {life}: nobody stored {listed:?}");
}

#[test]
fn acknowledged_is_there_and_nothing_is_half() {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let kills = number("FOREBAY_KILLS").unwrap_or(10);
    let seed = number("FOREBAY_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64 | 1
    });
    println!("FOREBAY_SEED={seed} FOREBAY_KILLS={kills}");
    let place = Place::new();
    let mut choices = Choices(seed);
    let values = Arc::new(AtomicU64::new(1));
    let mut models: Vec<Model> = (0..CLIENTS)
        .map(|client| {
            (0..KEYS_PER_CLIENT)
                .map(|key| (format!("c{client}/k{key}"), vec![None]))
                .collect()
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    place
        .serve(&[])
        .ok(&["admin", "namespace", "create", NAMESPACE]);
    for life in 0..kills {
        let server = place.serve(&[]);
        // Few, so that starts and first writes are hit, too; or many, so that the journal turns over.
        let wanted = match choices.below(4) {
            0 => choices.below(4),
            _ => 10 + choices.below(150),
        };
        models = runtime.block_on(async {
            let (acknowledged, mut acknowledgements) = mpsc::unbounded_channel();
            let loads: Vec<_> = models
                .into_iter()
                .map(|model| {
                    let load = Load {
                        client: once(&server),
                        choices: Choices(choices.below(u64::MAX >> 1) | 1),
                        keys: model.keys().cloned().collect(),
                        values: values.clone(),
                        acknowledged: acknowledged.clone(),
                    };
                    tokio::spawn(load.run(model))
                })
                .collect();
            for _ in 0..wanted {
                acknowledgements.recv().await.unwrap();
            }
            server.kill();
            let mut models = Vec::new();
            for load in loads {
                models.push(load.await.unwrap());
            }
            models
        });
        let server = place.serve(&[]);
        runtime.block_on(async {
            let client = once(&server);
            let mut all: Model = models.clone().into_iter().flatten().collect();
            verify(&client, &mut all, life).await;
            for model in &mut models {
                for (key, states) in model {
                    *states = all[key].clone();
                }
            }
        });
        // Half of the lives begin after an orderly end.
        if choices.below(2) == 0 {
            assert_eq!(server.terminate(), Some(0));
        } else {
            server.kill();
        }
    }

    let server = place.serve(&[]);
    let scrub = &server.json(&["admin", "scrub"])[0];
    assert_eq!(scrub["damaged"], 0, "{scrub}");
    // Parts of uploads that were cut off count until they are given up; then usage is exact.
    runtime.block_on(async {
        let client = once(&server);
        for upload in client.uploads(NAMESPACE, "").await.unwrap() {
            client
                .abort_upload(NAMESPACE, &upload.key, &upload.id)
                .await
                .unwrap();
        }
    });
    let states: Vec<u64> = models
        .iter()
        .flatten()
        .filter_map(|(_, states)| states[0])
        .collect();
    let held: usize = states.iter().map(|value| body(*value).len()).sum();
    let usage = &server.json(&["admin", "namespace", "list"])[0]["usage"];
    assert_eq!(usage["objects"], states.len());
    assert_eq!(usage["bytes"], held);
    println!("{} values stored", values.load(Relaxed));
}
