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

#[cfg(test)]
mod tests {
    use forebay_fabric::{Access, Connection, Link, RemoteRange, shm};
    use forebay_mem::RegionSlice;
    use tokio::net::UnixStream;

    use super::*;
    use crate::direct::loans::Use;

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    }

    /// A client, and the server's end of its link in a runtime that outlives the client's.
    fn linked() -> (Client, Runtime, Connection) {
        let (sessions, proof) = super::super::Client::session();
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let servers = runtime();
        let accepted = servers.spawn(async move {
            there.set_nonblocking(true).unwrap();
            let stream = UnixStream::from_std(there).unwrap();
            let accepted = shm::accept(stream, &sessions).await.unwrap();
            (accepted.link, sessions)
        });
        let runtime = runtime();
        let client = runtime.block_on(async {
            here.set_nonblocking(true).unwrap();
            let stream = UnixStream::from_std(here).unwrap();
            let link = Connection::Shm(Arc::new(shm::connect(stream, &proof).await.unwrap()));
            super::super::Client::over(&link, "http://127.0.0.1:1", Options::default()).await
        });
        let (server, _sessions) = servers.block_on(accepted).unwrap();
        let client = Client {
            client,
            runtime: Arc::new(runtime),
        };
        (client, servers, server)
    }

    /// The server's device begins to write.
    async fn device(client: &Client, server: &Connection, region: &Region) -> RegionSlice {
        let connected = client.client.connected();
        let remote = region.on(connected.lane().unwrap()).await.unwrap();
        let range = RemoteRange {
            stag: remote.stag,
            offset: remote.base,
            len: region.len() as u64,
        };
        server.mapped(range, Access::Write).unwrap()
    }

    /// The client is gone, and its runtime: its bytes come back when the server has let go, and not before.
    fn come_back(region: &Region, servers: &Runtime, server: &Connection, device: RegionSlice) {
        let is_lent = || region.try_lend(0..1, Use::Target).is_none();
        assert!(is_lent());
        servers.block_on(server.closed());
        assert!(is_lent());
        drop(device);
        servers.block_on(region.idle());
    }

    #[test]
    fn bytes_of_a_call_that_was_given_up_outlive_the_runtime_until_the_server_has_let_go() {
        let (client, servers, server) = linked();
        let region = Region::alloc(4096).unwrap();
        let device = client.runtime.block_on(async {
            let call = client.client.get_into("ns", "key", .., &region);
            let mut message = Vec::new();
            tokio::select! {
                done = call => panic!("{done:?}"),
                asked = server.recv(&mut message) => asked.unwrap().unwrap(),
            }
            device(&client, &server, &region).await
        });
        drop(client);
        come_back(&region, &servers, &server, device);
    }

    #[test]
    fn bytes_of_a_token_that_was_given_up_outlive_the_runtime_until_the_server_has_let_go() {
        let get = Request {
            method: "GET",
            path: "/ns/key",
            query: "",
            range: "",
        };
        for token_first in [true, false] {
            let (client, servers, server) = linked();
            let region = Region::alloc(4096).unwrap();
            let token = client.token(&get, &region).unwrap();
            let device = client.runtime.block_on(device(&client, &server, &region));
            match token_first {
                true => drop((token, client)),
                false => drop((client, token)),
            }
            come_back(&region, &servers, &server, device);
        }
    }
}
