//! Values by key.

use std::sync::Arc;

use bytes::Bytes;
use forebay_api::v1::{self, objects_server, store_request};
use forebay_store::limits::LIST_ITEMS_MAX;
use forebay_store::{
    Address, After, DeleteOptions, Item, ListOptions, Meta, NamespaceInfo, Space, Store, VersionId,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::admission::Ticket;
use super::answers;
use super::attributes;
use super::convert;
use super::identity::Caller;
use super::metrics::Way;
use super::status::{Outcome, Refusal};
use super::transfer::{Arriving, Source, Wanted, retrieve_inline, store_from};
use super::{Door, ELEMENTS_MAX, EXIST_KEYS_MAX, Service};

/// Keys looked for at first by LongestPrefix: most prefixes end early or not at all.
const PREFIX_FIRST: usize = 64;

/// What a key of Exist or LongestPrefix is in memory beside its bytes while it is looked for, with what is found.
const KEY_MEMORY: usize =
    size_of::<Bytes>() + size_of::<Address<'static>>() + size_of::<Option<Meta>>();

/// Who asks for many elements, in which namespace, with which session.
struct Batch<S> {
    service: Arc<Service<S>>,
    caller: Caller,
    /// As it was when the call came.
    namespace: Arc<NamespaceInfo>,
    session: Bytes,
}

impl<S: Store> Service<S> {
    async fn existing(&self, namespace: &str, keys: &[Bytes]) -> Outcome<Vec<Option<Meta>>> {
        let addresses: Vec<_> = keys
            .iter()
            .map(|key| Address::object(namespace, key))
            .collect();
        Ok(self.store.exist(&addresses).await?)
    }

    fn batch(
        self: &Arc<Self>,
        caller: Caller,
        namespace: &str,
        session: Bytes,
        elements: usize,
    ) -> Outcome<Arc<Batch<S>>> {
        let namespace = self.own_namespace(&caller, namespace)?;
        if elements > ELEMENTS_MAX {
            return Err(Refusal::invalid(format!(
                "at most {ELEMENTS_MAX} elements at once"
            )));
        }
        if !session.is_empty() {
            self.session(&caller, &session)?;
        }
        Ok(Arc::new(Batch {
            service: self.clone(),
            caller,
            namespace,
            session,
        }))
    }
}

impl<S: Store> Batch<S> {
    /// What is answered of an element that failed.
    fn failed(&self, refusal: Refusal) -> Option<v1::Failure> {
        if let Some(served) = self.caller.served() {
            served.failed_in_part();
        }
        Some(refusal.into())
    }

    /// The address of an element that is about to begin.
    ///
    /// The store finds its namespace by name, perhaps long after the call came: the caller's flow control decides when the next
    /// elements begin. So the name is checked for each, in the same turn in which the store finds it, and must still stand for the
    /// namespace that was the caller's; and the caller's key must still be what it was. Those are look-ups in memory beside a call
    /// of the store, and allocate nothing.
    fn address<'a>(&'a self, key: &'a [u8]) -> Outcome<Address<'a>> {
        self.service.may_begin(&self.caller, &self.namespace)?;
        Ok(Address::object(&self.namespace.name, key))
    }

    async fn retrieve(
        &self,
        element: v1::GatherElement,
        checksum: bool,
    ) -> Outcome<v1::GatherResponse> {
        let wanted = Wanted {
            address: self.address(&element.key)?,
            version: None,
            range: convert::range(element.range),
            checksum,
        };
        let place = (&self.session[..], element.place.as_ref());
        let retrieved = self
            .service
            .retrieve_into(&self.caller, &self.namespace, place, wanted);
        let (retrieved, _placed, way) = retrieved.await?;
        let length = retrieved.length();
        self.service.sent(&self.caller, way, length);
        Ok(v1::GatherResponse {
            index: 0,
            failure: None,
            object: Some(convert::object(&retrieved.meta)),
            length,
            crc64nvme: retrieved.crc64nvme,
            path: way.name().to_owned(),
        })
    }

    async fn store(&self, element: v1::ScatterElement) -> Outcome<v1::ScatterResponse> {
        let address = self.address(&element.key)?;
        let place = element.place.as_ref();
        let source = self
            .service
            .source(&self.caller, &self.namespace, &self.session, place);
        let source = source.await?;
        let arriving = Arriving {
            address,
            condition: convert::condition(element.condition)?,
            expires: element.expires_ms,
            crc64nvme: element.crc64nvme,
            attributes: attributes::kept(element.attributes)?,
        };
        let (stored, way) = store_from(&*self.service.store, arriving, source).await?;
        self.service.received(&self.caller, way, stored.meta.size);
        Ok(v1::ScatterResponse {
            index: 0,
            failure: None,
            object: Some(convert::object(&stored.meta)),
            replaced: stored.replaced,
            path: way.name().to_owned(),
        })
    }
}

/// What elements take until it is their turn, beside the bytes of their message: one without content has two of those.
fn memory_of<E>(elements: &Vec<E>) -> usize {
    elements.capacity() * size_of::<E>()
}

fn check_keys(keys: &[Bytes]) -> Outcome<()> {
    match keys.len() <= EXIST_KEYS_MAX {
        true => Ok(()),
        false => Err(Refusal::invalid(format!(
            "at most {EXIST_KEYS_MAX} keys at once"
        ))),
    }
}

#[tonic::async_trait]
impl<S: Store> objects_server::Objects for Door<S> {
    type GatherStream = BoxStream<v1::GatherResponse>;
    type ScatterStream = BoxStream<v1::ScatterResponse>;

    async fn store(
        &self,
        request: Request<v1::StoreRequest>,
    ) -> Result<Response<v1::StoreResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.own_namespace(&caller, &asked.namespace)?;
        let source = match asked.source {
            None => Source::Message(Bytes::new()),
            Some(store_request::Source::Data(bytes)) => Source::Message(bytes),
            Some(store_request::Source::Place(place)) => {
                self.source(&caller, &namespace, &asked.session, Some(&place))
                    .await?
            }
        };
        let arriving = Arriving {
            address: Address::object(&asked.namespace, &asked.key),
            condition: convert::condition(asked.condition)?,
            expires: asked.expires_ms,
            crc64nvme: asked.crc64nvme,
            attributes: attributes::kept(asked.attributes)?,
        };
        let (stored, way) = store_from(&*self.store, arriving, source).await?;
        self.received(&caller, way, stored.meta.size);
        Ok(Response::new(v1::StoreResponse {
            object: Some(convert::object(&stored.meta)),
            replaced: stored.replaced,
            path: way.name().to_owned(),
        }))
    }

    async fn retrieve(
        &self,
        request: Request<v1::RetrieveRequest>,
    ) -> Result<Response<v1::RetrieveResponse>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.own_namespace(&caller, &asked.namespace)?;
        let wanted = Wanted {
            address: Address::object(&asked.namespace, &asked.key),
            version: asked.version.map(VersionId),
            range: convert::range(asked.range),
            checksum: asked.checksum,
        };
        let (retrieved, data, way) = match &asked.place {
            None => {
                let (retrieved, data) = retrieve_inline(&*self.store, wanted, &call).await?;
                (retrieved, data, Way::Message)
            }
            place => {
                let place = (&asked.session[..], place.as_ref());
                let retrieved = self.retrieve_into(&caller, &namespace, place, wanted);
                let (retrieved, _placed, way) = retrieved.await?;
                (retrieved, Bytes::new(), way)
            }
        };
        let length = retrieved.length();
        self.sent(&caller, way, length);
        Ok(Response::new(v1::RetrieveResponse {
            object: Some(convert::object(&retrieved.meta)),
            data,
            length,
            offset: retrieved.range.start,
            crc64nvme: retrieved.crc64nvme,
            path: way.name().to_owned(),
        }))
    }

    async fn stat(
        &self,
        request: Request<v1::StatRequest>,
    ) -> Result<Response<v1::StatResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        self.own_namespace(&caller, &asked.namespace)?;
        let address = Address::object(&asked.namespace, &asked.key);
        let meta = self.store.stat(address, asked.version.map(VersionId)).await;
        let meta = meta.map_err(Refusal::from)?;
        Ok(Response::new(v1::StatResponse {
            object: Some(convert::object(&meta)),
            attributes: Some(attributes::told(&meta.attributes)),
        }))
    }

    async fn exist(
        &self,
        request: Request<v1::ExistRequest>,
    ) -> Result<Response<v1::ExistResponse>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.own_namespace(&caller, &asked.namespace)?;
        check_keys(&asked.keys)?;
        call.hold(asked.keys.len() * KEY_MEMORY)?;
        let found = self.existing(&asked.namespace, &asked.keys).await?;
        // Many look-ups are not one moment: the name must have stood for the caller's namespace in the last one, too.
        self.still(&namespace)?;
        let size = |meta: &Option<Meta>| meta.as_ref().map_or(0, |meta| meta.size);
        Ok(Response::new(v1::ExistResponse {
            sizes: match asked.sizes {
                true => found.iter().map(size).collect(),
                false => Vec::new(),
            },
            found: found.iter().map(Option::is_some).collect(),
        }))
    }

    async fn longest_prefix(
        &self,
        request: Request<v1::LongestPrefixRequest>,
    ) -> Result<Response<v1::LongestPrefixResponse>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.own_namespace(&caller, &asked.namespace)?;
        check_keys(&asked.keys)?;
        call.hold(asked.keys.len() * KEY_MEMORY)?;
        let mut found = 0;
        let mut step = PREFIX_FIRST;
        // The store finds the namespace by name in every step: it must be the caller's before each, and after the last.
        while found < asked.keys.len() {
            self.still(&namespace)?;
            let end = (found + step).min(asked.keys.len());
            let here = self
                .existing(&asked.namespace, &asked.keys[found..end])
                .await?;
            match here.iter().position(Option::is_none) {
                Some(gap) => {
                    found += gap;
                    break;
                }
                None => found = end,
            }
            step *= 4;
        }
        self.still(&namespace)?;
        Ok(Response::new(v1::LongestPrefixResponse {
            found: found as u32,
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let namespace = self.own_namespace(&caller, &asked.namespace)?;
        let options = ListOptions {
            namespace: &asked.namespace,
            space: Space::Objects,
            prefix: &asked.prefix,
            delimiter: Some(&asked.delimiter[..]).filter(|delimiter| !delimiter.is_empty()),
            after: page_start(&asked)?,
            limit: match asked.limit {
                0 => LIST_ITEMS_MAX,
                limit => limit as usize,
            },
        };
        let page = self.store.list(options).await.map_err(Refusal::from)?;
        self.still(&namespace)?;
        let names = page.items.iter().map(|item| match item {
            Item::Value(name, _) | Item::Prefix(name) => name.len(),
        });
        call.hold(names.sum::<usize>() + page.items.len() * size_of::<v1::ListEntry>())?;
        let next_page_token = page_token(page.next());
        let entries = page.items.into_iter().map(|item| v1::ListEntry {
            entry: Some(match item {
                Item::Value(key, meta) => v1::list_entry::Entry::Object(v1::ListedObject {
                    key,
                    object: Some(convert::object(&meta)),
                }),
                Item::Prefix(prefix) => v1::list_entry::Entry::Prefix(prefix),
            }),
        });
        Ok(Response::new(v1::ListResponse {
            entries: entries.collect(),
            next_page_token,
        }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let (caller, asked) = Caller::of(request)?;
        self.own_namespace(&caller, &asked.namespace)?;
        let address = Address::object(&asked.namespace, &asked.key);
        let options = DeleteOptions {
            version: asked.version.map(VersionId),
            condition: convert::condition(asked.condition)?,
        };
        let deleted = self.store.delete(address, options).await;
        let deleted = deleted.map_err(Refusal::from)?;
        Ok(Response::new(v1::DeleteResponse {
            existed: deleted.existed,
            version: deleted.version.map(|version| version.0),
            marker: deleted.marker,
        }))
    }

    async fn gather(
        &self,
        request: Request<v1::GatherRequest>,
    ) -> Result<Response<Self::GatherStream>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let count = asked.elements.len();
        let batch = self
            .0
            .batch(caller, &asked.namespace, asked.session, count)?;
        call.hold(memory_of(&asked.elements))?;
        let elements = (0..).zip(asked.elements).map(move |(index, element)| {
            let batch = batch.clone();
            async move {
                match batch.retrieve(element, asked.checksum).await {
                    Ok(response) => v1::GatherResponse { index, ..response },
                    Err(refusal) => v1::GatherResponse {
                        index,
                        failure: batch.failed(refusal),
                        ..v1::GatherResponse::default()
                    },
                }
            }
        });
        let answers = answers::in_order(elements, self.closing.subscribe());
        Ok(Response::new(answers))
    }

    async fn scatter(
        &self,
        request: Request<v1::ScatterRequest>,
    ) -> Result<Response<Self::ScatterStream>, Status> {
        let call = Ticket::of(&request)?;
        let (caller, asked) = Caller::of(request)?;
        let count = asked.elements.len();
        let batch = self
            .0
            .batch(caller, &asked.namespace, asked.session, count)?;
        let attributes = asked.elements.iter().flat_map(|one| &one.attributes);
        let attributes = attributes.map(attributes::memory_of).sum::<usize>();
        call.hold(memory_of(&asked.elements) + attributes)?;
        let elements = (0..).zip(asked.elements).map(move |(index, element)| {
            let batch = batch.clone();
            async move {
                match batch.store(element).await {
                    Ok(response) => v1::ScatterResponse { index, ..response },
                    Err(refusal) => v1::ScatterResponse {
                        index,
                        failure: batch.failed(refusal),
                        ..v1::ScatterResponse::default()
                    },
                }
            }
        });
        let answers = answers::in_order(elements, self.closing.subscribe());
        Ok(Response::new(answers))
    }
}

/// A page token is what the page before ended with, after one byte that says which.
const AFTER_KEY: u8 = b'k';
const AFTER_PREFIX: u8 = b'p';

fn page_start(asked: &v1::ListRequest) -> Outcome<After<'_>> {
    match asked.page_token.split_first() {
        None if asked.start_after.is_empty() => Ok(After::Start),
        None => Ok(After::Key(&asked.start_after)),
        Some((&AFTER_KEY, key)) => Ok(After::Key(key)),
        Some((&AFTER_PREFIX, prefix)) => Ok(After::Prefix(prefix)),
        Some(_) => Err(Refusal::invalid("that is no page token")),
    }
}

fn page_token(next: Option<After<'_>>) -> Bytes {
    let (kind, last) = match next {
        Some(After::Key(key)) => (AFTER_KEY, key),
        Some(After::Prefix(prefix)) => (AFTER_PREFIX, prefix),
        Some(After::Start | After::Version(..)) | None => return Bytes::new(),
    };
    [&[kind], last].concat().into()
}
