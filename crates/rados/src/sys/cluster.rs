//! Connections to a cluster, and places in it.
//!
//! An OSD serves all that comes by one connection with one thread, and so does the library: where there are processors enough, several
//! connections carry more. All operations on an object take the same one, by its name, and so keep their order.
#![expect(unsafe_code, reason = "calls of librados")]

use std::cell::Cell;
use std::ffi::{CString, c_int};
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use super::leaving::{AtEnd, wait_at_exit};
use super::library::{Api, Handle, Missing, api};
use super::names::name;
use super::operation::Errno;

thread_local! {
    /// Whether this thread is the library's, in one of our callbacks.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// What connections are made with.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How many; at least one is made.
    pub connections: usize,
    /// The cluster's configuration; without one the library looks where it always does.
    pub conf: Option<PathBuf>,
    /// The client's name without `client.`.
    pub id: String,
    /// The client's key; without one the configuration says where it is.
    pub keyring: Option<PathBuf>,
    /// Options set after the file was read.
    pub options: Vec<(&'static str, String)>,
}

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("{what}: {errno}")]
    Failed { what: String, errno: Errno },
}

/// Connections; their last user closes them.
pub(crate) struct Cluster {
    api: &'static Api,
    handles: Vec<Handle>,
    connected: Option<AtEnd>,
}

// SAFETY: librados' handles may be used from any thread, by several at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects; waits for the monitors as long as the options say.
    pub(crate) fn connect(settings: &Settings) -> Result<Arc<Cluster>, ConnectError> {
        let mut cluster = Cluster {
            api: api()?,
            handles: Vec::new(),
            connected: Some(AtEnd::connected()),
        };
        for _ in 0..settings.connections.max(1) {
            cluster.add(settings)?;
        }
        wait_at_exit();
        Ok(Arc::new(cluster))
    }

    fn add(&mut self, settings: &Settings) -> Result<(), ConnectError> {
        let api = self.api;
        let failed = |what: &str, code: c_int| ConnectError::Failed {
            what: what.to_owned(),
            errno: Errno::from_code(code),
        };
        let text = |bytes: &[u8]| {
            name(bytes).map_err(|errno| ConnectError::Failed {
                what: "a name holds a NUL".to_owned(),
                errno,
            })
        };
        let user = text(format!("client.{}", settings.id).as_bytes())?;
        let mut handle = null_mut();
        // SAFETY: a place for the handle and a name that lives through the call.
        let code = unsafe { (api.create)(&raw mut handle, null(), user.as_ptr(), 0) };
        if code < 0 {
            return Err(failed("librados was not set up", code));
        }
        self.handles.push(handle);
        let path = settings.conf.as_ref();
        let shown = path.map_or_else(|| "ceph.conf".to_owned(), |path| path.display().to_string());
        let path = path
            .map(|path| text(path.as_os_str().as_encoded_bytes()))
            .transpose()?;
        let file = path.as_ref().map_or(null(), |path: &CString| path.as_ptr());
        // SAFETY: the handle is open; null stands for the usual places.
        let code = unsafe { (api.conf_read_file)(handle, file) };
        if code < 0 {
            return Err(failed(&format!("{shown} cannot be read"), code));
        }
        let keyring = settings.keyring.as_ref();
        let keyring = keyring.map(|path| ("keyring", path.display().to_string()));
        for (option, value) in settings.options.iter().cloned().chain(keyring) {
            let (name, value) = (text(option.as_bytes())?, text(value.as_bytes())?);
            // SAFETY: the handle is open; both names live through the call.
            let code = unsafe { (api.conf_set)(handle, name.as_ptr(), value.as_ptr()) };
            if code < 0 {
                return Err(failed(&format!("the option {option} is refused"), code));
            }
        }
        // SAFETY: the handle is open and not yet connected.
        let code = unsafe { (api.connect)(handle) };
        match code {
            0.. => Ok(()),
            _ => Err(failed("no connection to the cluster", code)),
        }
    }

    /// A pool, and a RADOS namespace in it.
    pub(crate) fn place(
        self: &Arc<Self>,
        pool: &str,
        namespace: &str,
    ) -> Result<Arc<Place>, Errno> {
        let (pool, space) = (name(pool.as_bytes())?, name(namespace.as_bytes())?);
        let mut place = Place {
            cluster: self.clone(),
            handles: Vec::with_capacity(self.handles.len()),
        };
        for connection in &self.handles {
            let mut handle = null_mut();
            // SAFETY: the connection is open; a place for the handle and a name that lives through the call.
            Errno::check(unsafe {
                (self.api.ioctx_create)(*connection, pool.as_ptr(), &raw mut handle)
            })?;
            place.handles.push(handle);
            // SAFETY: the handle is open and not used by anybody else yet.
            unsafe { (self.api.ioctx_set_namespace)(handle, space.as_ptr()) };
            // A full pool answers ENOSPC at once, rather than have everybody wait for room: what removes, and what a gateway says of
            // itself, goes on.
            // SAFETY: as above.
            unsafe { (self.api.set_pool_full_try)(handle) };
        }
        Ok(Arc::new(place))
    }

    /// Of the first connection, by which all is watched.
    pub(super) fn handle(&self) -> Handle {
        self.handles[0]
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        struct Last(&'static Api, Vec<usize>, [Option<AtEnd>; 2]);
        let handles = self.handles.iter().map(|handle| *handle as usize);
        let until_closed = [Some(AtEnd::leaving()), self.connected.take()];
        let last = Last(self.api, handles.collect(), until_closed);
        let close = move || {
            let Last(api, handles, _until_closed) = last;
            for handle in handles {
                // SAFETY: nobody else has the handle any more: every place and operation holds the cluster.
                unsafe { (api.shutdown)(handle as Handle) };
            }
        };
        // Closing waits for the library's threads, so none of them may do it.
        match IN_CALLBACK.get() {
            true => drop(std::thread::spawn(close)),
            false => close(),
        }
    }
}

/// In place of the name of a RADOS namespace: all of them (`LIBRADOS_ALL_NSPACES`). Objects can be listed there, nothing else.
pub(crate) const ALL: &str = "\u{1}";

/// A pool with a RADOS namespace. Made once and never changed, so that any thread may use it.
pub(crate) struct Place {
    cluster: Arc<Cluster>,
    /// One of each connection.
    handles: Vec<Handle>,
}

// SAFETY: an I/O context whose namespace no longer changes may be used from any thread, by several at once.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    pub(super) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    pub(super) fn api(&self) -> &'static Api {
        self.cluster.api
    }

    /// Of the first connection, by which locks are held and all is watched.
    pub(super) fn handle(&self) -> Handle {
        self.handles[0]
    }

    /// Of all other connections.
    pub(super) fn other_handles(&self) -> &[Handle] {
        &self.handles[1..]
    }

    /// The address by which a connection is blocklisted.
    #[cfg(test)]
    pub(crate) fn address_of(&self, connection: usize) -> String {
        let mut text = null_mut();
        // SAFETY: the connection is open; a place for the text, which is ours until it is freed.
        unsafe {
            let code = (self.api().getaddrs)(self.cluster.handles[connection], &raw mut text);
            assert_eq!(Errno::check(code), Ok(()));
            let address = std::ffi::CStr::from_ptr(text).to_str().unwrap().to_owned();
            (self.api().buffer_free)(text);
            address
        }
    }

    /// By which operations on this object go.
    pub(super) fn handle_for(&self, object: &[u8]) -> Handle {
        self.handles[self.connection_for(object)]
    }

    /// Which connection that is.
    pub(crate) fn connection_for(&self, object: &[u8]) -> usize {
        let connections = self.handles.len();
        if connections == 1 {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(object);
        (hasher.finish() % connections as u64) as usize
    }

    /// The names of all objects of this RADOS namespace, each with that of its RADOS namespace, as the pool has them. Blocks; stops early
    /// when `each` says so.
    pub(crate) fn for_each_name(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Errno> {
        let api = self.api();
        let mut list = null_mut();
        // SAFETY: the context is open; a place for the list.
        Errno::check(unsafe { (api.nobjects_list_open)(self.handle(), &raw mut list) })?;
        let outcome = loop {
            let (mut object, mut locator, mut space) = (null(), null(), null());
            let mut lengths = [0; 3];
            let [len, locator_len, space_len] = &mut lengths;
            // SAFETY: the list is open; places for three names and their lengths.
            let code = unsafe {
                (api.nobjects_list_next)(
                    list,
                    &raw mut object,
                    &raw mut locator,
                    &raw mut space,
                    len,
                    locator_len,
                    space_len,
                )
            };
            match code {
                code if code == -libc::ENOENT => break Ok(()),
                code if code < 0 => break Err(Errno::from_code(code)),
                // What ends like this is not all that there is.
                _ if object.is_null() || space.is_null() => break Err(Errno(libc::EIO)),
                _ => {}
            }
            // SAFETY: the library says where the names are and how long; they stay until the next call.
            let (space, object) = unsafe {
                (
                    std::slice::from_raw_parts(space.cast::<u8>(), lengths[2]),
                    std::slice::from_raw_parts(object.cast::<u8>(), lengths[0]),
                )
            };
            if !each(space, object) {
                break Ok(());
            }
        };
        // SAFETY: the list is open and not used afterwards.
        unsafe { (api.nobjects_list_close)(list) };
        outcome
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for handle in &self.handles {
            // SAFETY: nobody else has the handle any more: every operation under way holds its place.
            unsafe { (self.api().ioctx_destroy)(*handle) };
        }
    }
}

/// Runs what a callback does: it neither unwinds into the library nor closes the connection from its thread.
pub(super) fn in_callback(work: impl FnOnce()) {
    IN_CALLBACK.set(true);
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        tracing::error!("a completion of librados panicked");
    }
    IN_CALLBACK.set(false);
}
