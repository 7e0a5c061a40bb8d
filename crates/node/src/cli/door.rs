//! Objects as `ls`, `stat`, `rm` and `cp` find them: by the S3 door, or without one over gRPC.

use std::borrow::Cow;

use bytes::Bytes;
use forebay_client::direct::{self, Entry, Listing};
use forebay_client::{Client, Error, Kind, ListingPage, ObjectInfo};
use forebay_proto::s3::tags::Tags;
use futures_util::stream::{self, StreamExt};

use super::address::Address;
use super::{glob, show, versions};
use crate::exit::{Exit, Failure, Outcome};

/// What is wrong with a key that S3 lists and does not take.
const NO_TEXT: &str = "it is not UTF-8, which S3 asks for; `forebay nvme` takes it with --hex";
/// Deletes in flight where each is a call.
const DELETES: usize = 16;

/// Where a command asks.
#[derive(Clone)]
pub enum Door {
    /// By S3.
    S3(Client),
    /// By the direct client's calls about keys.
    Direct(direct::Client),
}

/// An object of a list.
pub struct Listed {
    /// Any bytes; S3 takes no others than UTF-8, but lists them.
    pub key: Bytes,
    pub size: u64,
    pub etag: String,
    pub modified: i64,
}

/// Part of a list.
pub struct Page {
    pub objects: Vec<Listed>,
    pub prefixes: Vec<Bytes>,
    pub next: Option<Next>,
}

/// An object, and what is kept with it.
pub struct Described {
    pub info: ObjectInfo,
    /// None where they may not be read.
    pub tags: Option<Vec<(String, String)>>,
}

/// Where a list goes on.
pub enum Next {
    S3(String),
    Direct(Bytes),
}

impl Listed {
    /// The key as it is shown, and compared with patterns.
    pub fn shown(&self) -> Cow<'_, str> {
        show::key(&self.key)
    }

    /// The key for calls that name none but UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        str::from_utf8(&self.key).map_err(|_| Error::Local {
            what: format!("key {}", self.shown()),
            source: std::io::Error::other(NO_TEXT),
        })
    }
}

impl Door {
    /// Of what was not found: whether it is the namespace that is missing, and `below` where objects lie below the name.
    pub async fn missing(&self, address: &Address, below: &str) -> Failure {
        let Address { namespace, key } = address;
        let folder = format!("{}/", key.trim_end_matches('/'));
        let hint = match self.list(namespace, &folder, Some("/"), None).await {
            Err(error) if error.kind() == Kind::NotFound => return error.into(),
            Ok(page) if !page.objects.is_empty() || !page.prefixes.is_empty() => below,
            // That the object is missing is what counts.
            Ok(_) | Err(_) => "",
        };
        Failure::new(
            Exit::NotFound,
            format_args!("{address} does not exist{hint}"),
        )
    }

    /// What is known of an object; of one that is not there, what [`Door::missing`] says.
    pub async fn info(&self, address: &Address, below: &str) -> Outcome<ObjectInfo> {
        match self.head(&address.namespace, &address.key).await {
            Err(error) if error.kind() == Kind::NotFound => Err(self.missing(address, below).await),
            info => Ok(info?),
        }
    }

    async fn head(&self, namespace: &str, key: &str) -> Result<ObjectInfo, Error> {
        match self {
            Door::S3(client) => client.head(namespace, key).await,
            Door::Direct(_) => Ok(self.describe(namespace, key).await?.info),
        }
    }

    /// What is known of an object, tags among it.
    pub async fn describe(&self, namespace: &str, key: &str) -> Result<Described, Error> {
        let client = match self {
            Door::S3(client) => {
                let info = client.head(namespace, key).await?;
                let tags = match info.tags {
                    0 => Some(Vec::new()),
                    _ => match client.tags(namespace, key).await {
                        // They have a permission of their own.
                        Err(error) if error.kind() == Kind::Denied => None,
                        tags => Some(pairs(&tags?)),
                    },
                };
                return Ok(Described { info, tags });
            }
            Door::Direct(client) => client,
        };
        let (stat, attributes) = client.describe(namespace, key).await?;
        let info = ObjectInfo {
            size: stat.size,
            etag: stat.etag,
            modified: seconds(stat.modified_ms),
            content_type: match attributes.content_type.is_empty() {
                // As S3 has it.
                true => "binary/octet-stream".to_owned(),
                false => attributes.content_type,
            },
            version: (stat.version != 0).then(|| versions::text(stat.version)),
            crc64nvme: stat.crc64nvme,
            metadata: attributes.metadata,
            cache_control: attributes.cache_control,
            tags: attributes.tags.len(),
        };
        let tags = Some(attributes.tags);
        Ok(Described { info, tags })
    }

    pub async fn list(
        &self,
        namespace: &str,
        prefix: &str,
        delimiter: Option<&str>,
        next: Option<Next>,
    ) -> Result<Page, Error> {
        let (by_s3, by_rpc) = match next {
            None => (None, None),
            Some(Next::S3(next)) => (Some(next), None),
            Some(Next::Direct(next)) => (None, Some(next)),
        };
        let client = match self {
            Door::S3(client) => {
                let page = client.list(namespace, prefix, delimiter, by_s3.as_deref());
                return Ok(Page::of_s3(page.await?));
            }
            Door::Direct(client) => client,
        };
        let listing = Listing {
            prefix: prefix.into(),
            delimiter: delimiter.unwrap_or_default().into(),
            page: by_rpc,
            ..Listing::default()
        };
        let found = client.list(namespace, &listing).await?;
        let mut page = Page {
            objects: Vec::new(),
            prefixes: Vec::new(),
            next: found.next.map(Next::Direct),
        };
        for entry in found.entries {
            match entry {
                Entry::Value { key, stat } => page.objects.push(Listed {
                    key,
                    size: stat.size,
                    etag: stat.etag,
                    modified: seconds(stat.modified_ms),
                }),
                Entry::Prefix(prefix) => page.prefixes.push(prefix),
            }
        }
        Ok(page)
    }

    /// Whether an address is a pattern. What is there comes first: it is none where an object has just that key, or, of what may be a
    /// `prefix`, where keys begin so. Patterns are looked for in lists: who may make those may ask this.
    pub async fn is_pattern(&self, address: &Address, prefix: bool) -> Result<bool, Error> {
        let Address { namespace, key } = address;
        if !glob::is_pattern(key) {
            return Ok(false);
        }
        let page = self.list(namespace, key, None, None).await?;
        let another = |first: &Listed| !prefix && first.key != key.as_bytes();
        Ok(page.objects.first().is_none_or(another))
    }

    pub async fn delete(&self, namespace: &str, key: &str) -> Result<(), Error> {
        match self {
            Door::S3(client) => client.delete(namespace, key).await,
            Door::Direct(client) => gone(client, namespace, key.as_bytes()).await,
        }
    }

    /// Deletes what was listed; returns the keys that stayed, each with the reason. What has gone meanwhile counts as deleted.
    pub async fn delete_many(
        &self,
        namespace: &str,
        objects: &[Listed],
    ) -> Result<Vec<(String, String)>, Error> {
        match self {
            Door::S3(client) => {
                let (mut keys, mut stayed) = (Vec::new(), Vec::new());
                for object in objects {
                    match object.text() {
                        Ok(key) => keys.push(key.to_owned()),
                        Err(_) => stayed.push((object.shown().into_owned(), NO_TEXT.to_owned())),
                    }
                }
                stayed.extend(client.delete_many(namespace, &keys).await?);
                Ok(stayed)
            }
            Door::Direct(client) => {
                let deletes = objects.iter().map(|object| async move {
                    let error = gone(client, namespace, &object.key).await.err()?;
                    Some((object.shown().into_owned(), error.to_string()))
                });
                let stayed = stream::iter(deletes).buffer_unordered(DELETES);
                Ok(stayed.filter_map(std::future::ready).collect().await)
            }
        }
    }
}

/// Has a value be gone. A client makes no delete again whose answer was lost, for it says whether there was something; here nobody
/// asks.
async fn gone(client: &direct::Client, namespace: &str, key: &[u8]) -> Result<(), Error> {
    let deleted = match client.delete(namespace, key).await {
        Err(Error::Transport { .. }) => client.delete(namespace, key).await,
        deleted => deleted,
    };
    deleted.map(drop)
}

impl Page {
    fn of_s3(page: ListingPage) -> Page {
        let objects = page.objects.into_iter().map(|object| Listed {
            key: object.key,
            size: object.size,
            etag: object.etag,
            modified: object.modified,
        });
        Page {
            objects: objects.collect(),
            prefixes: page.prefixes,
            next: page.next.map(Next::S3),
        }
    }
}

fn pairs(tags: &Tags) -> Vec<(String, String)> {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    tags.iter().map(owned).collect()
}

fn seconds(milliseconds: u64) -> i64 {
    (milliseconds / 1000) as i64
}
