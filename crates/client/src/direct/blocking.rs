//! The same client for threads that are not in a runtime: every call returns when it is done.
//!
//! The calls are those of [`super::Client`], which says what each does and how it fails. None may be made from inside a runtime.

use std::ops::RangeBounds;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};

use super::{
    Fallback, Get, Listing, Options, Page, Path, Put, Region, Request, Stat, Token, Transfer,
    Window,
};
use crate::{Attributes, Credentials, Endpoint, Error, Result};

/// A client with a thread of its own that receives replies and keeps the session alive. Cloning shares both.
#[derive(Debug, Clone)]
pub struct Client {
    client: super::Client,
    runtime: Arc<Runtime>,
}

impl Client {
    /// See [`super::Client::connect`].
    ///
    /// # Errors
    /// The same, and [`Error::Local`] when there can be no thread.
    pub fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        options: Options,
    ) -> Result<Client> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("forebay-client")
            .enable_all()
            .build()
            .map_err(Error::local("starting a thread"))?;
        let client = runtime.block_on(super::Client::connect(endpoint, credentials, options))?;
        Ok(Client {
            client,
            runtime: Arc::new(runtime),
        })
    }

    /// See [`super::Client::path`].
    pub fn path(&self) -> Path {
        self.client.path()
    }

    /// See [`super::Client::fallback`].
    pub fn fallback(&self) -> Option<Arc<Fallback>> {
        self.client.fallback()
    }

    /// See [`super::Client::get_into`].
    ///
    /// # Errors
    /// The same.
    pub fn get_into<'a>(
        &self,
        namespace: &str,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        range: impl RangeBounds<u64>,
        into: impl Into<Window<'a>>,
    ) -> Result<Transfer> {
        let call = self.client.get_into(namespace, key, range, into);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::put_from`].
    ///
    /// # Errors
    /// The same.
    pub fn put_from<'a>(
        &self,
        namespace: &str,
        key: &'a (impl AsRef<[u8]> + ?Sized),
        from: impl Into<Window<'a>>,
    ) -> Result<Transfer> {
        let call = self.client.put_from(namespace, key, from);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::put`].
    ///
    /// # Errors
    /// The same.
    pub fn put(&self, namespace: &str, put: &Put<'_>) -> Result<Transfer> {
        self.runtime.block_on(self.client.put(namespace, put))
    }

    /// See [`super::Client::gather`].
    ///
    /// # Errors
    /// The same.
    pub fn gather(
        &self,
        namespace: &str,
        elements: &[Get<'_>],
        each: impl FnMut(usize, Result<Transfer>),
    ) -> Result<()> {
        let call = self.client.gather(namespace, elements, each);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::scatter`].
    ///
    /// # Errors
    /// The same.
    pub fn scatter(
        &self,
        namespace: &str,
        elements: &[Put<'_>],
        each: impl FnMut(usize, Result<Transfer>),
    ) -> Result<()> {
        let call = self.client.scatter(namespace, elements, each);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::exist`].
    ///
    /// # Errors
    /// The same.
    pub fn exist<K: AsRef<[u8]>>(&self, namespace: &str, keys: &[K]) -> Result<Vec<Option<u64>>> {
        self.runtime.block_on(self.client.exist(namespace, keys))
    }

    /// See [`super::Client::longest_prefix`].
    ///
    /// # Errors
    /// The same.
    pub fn longest_prefix<K: AsRef<[u8]>>(&self, namespace: &str, keys: &[K]) -> Result<usize> {
        let call = self.client.longest_prefix(namespace, keys);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::stat`].
    ///
    /// # Errors
    /// The same.
    pub fn stat(&self, namespace: &str, key: &(impl AsRef<[u8]> + ?Sized)) -> Result<Stat> {
        self.runtime.block_on(self.client.stat(namespace, key))
    }

    /// See [`super::Client::attributes`].
    ///
    /// # Errors
    /// The same.
    pub fn attributes(
        &self,
        namespace: &str,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<Attributes> {
        let call = self.client.attributes(namespace, key);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::describe`].
    ///
    /// # Errors
    /// The same.
    pub fn describe(
        &self,
        namespace: &str,
        key: &(impl AsRef<[u8]> + ?Sized),
    ) -> Result<(Stat, Attributes)> {
        let call = self.client.describe(namespace, key);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::delete`].
    ///
    /// # Errors
    /// The same.
    pub fn delete(&self, namespace: &str, key: &(impl AsRef<[u8]> + ?Sized)) -> Result<bool> {
        self.runtime.block_on(self.client.delete(namespace, key))
    }

    /// See [`super::Client::list`].
    ///
    /// # Errors
    /// The same.
    pub fn list(&self, namespace: &str, listing: &Listing) -> Result<Page> {
        self.runtime.block_on(self.client.list(namespace, listing))
    }

    /// See [`super::Client::create_namespace`].
    ///
    /// # Errors
    /// The same.
    pub fn create_namespace(&self, name: &str, relaxed_ms: u32) -> Result<bool> {
        let call = self.client.create_namespace(name, relaxed_ms);
        self.runtime.block_on(call)
    }

    /// See [`super::Client::remove_namespace`].
    ///
    /// # Errors
    /// The same.
    pub fn remove_namespace(&self, name: &str) -> Result<()> {
        self.runtime.block_on(self.client.remove_namespace(name))
    }

    /// See [`super::Client::token`].
    ///
    /// # Errors
    /// The same.
    pub fn token<'a>(&self, request: &Request<'_>, window: impl Into<Window<'a>>) -> Result<Token> {
        self.runtime.block_on(self.client.token(request, window))
    }

    /// See [`Region::release`].
    pub fn release(&self, region: Region) {
        self.runtime.block_on(region.release());
    }
}
