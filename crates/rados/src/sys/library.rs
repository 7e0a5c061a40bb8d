//! librados' functions, found when the library is opened.
#![expect(
    unsafe_code,
    reason = "functions of a C library that is opened at run time"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// The name under which the C library's binary interface is installed; never that of the development package.
const SONAME: &str = "librados.so.2";

/// Why librados is not there.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{SONAME} cannot be used: {0} (Debian and Ubuntu have it in the package librados2)")]
pub struct Missing(String);

/// Any of the library's handles.
pub(super) type Handle = *mut c_void;
/// Called when an operation is complete.
pub(super) type OnComplete = unsafe extern "C" fn(Handle, *mut c_void);
/// Called for a notification: argument, notification, watch, notifier, bytes.
pub(super) type OnNotify = unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// Called when a watch broke: argument, watch, error.
pub(super) type OnWatchError = unsafe extern "C" fn(*mut c_void, u64, c_int);
type Text = *const c_char;
type Texts = *const Text;
type Out<T> = *mut T;

macro_rules! functions {
    ($($(#[$only:meta])? $name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are used, each with its C signature (`rados/librados.h` of Ceph 14 and later).
        pub(super) struct Api {
            $($(#[$only])? pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are.
            _library: Library,
        }

        impl Api {
            fn load() -> Result<Api, libloading::Error> {
                // SAFETY: librados' initialisers make no assumption about who loads it.
                let library = unsafe { Library::new(SONAME) }?;
                Ok(Api {
                    // SAFETY: the signatures are those of the library's header, which its soname stands for.
                    $($(#[$only])? $name: *unsafe { library.get($symbol)? },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    create = b"rados_create2\0" (Out<Handle>, Text, Text, u64) -> c_int;
    shutdown = b"rados_shutdown\0" (Handle);
    conf_read_file = b"rados_conf_read_file\0" (Handle, Text) -> c_int;
    conf_set = b"rados_conf_set\0" (Handle, Text, Text) -> c_int;
    connect = b"rados_connect\0" (Handle) -> c_int;
    ioctx_create = b"rados_ioctx_create\0" (Handle, Text, Out<Handle>) -> c_int;
    ioctx_destroy = b"rados_ioctx_destroy\0" (Handle);
    ioctx_set_namespace = b"rados_ioctx_set_namespace\0" (Handle, Text);
    set_pool_full_try = b"rados_set_pool_full_try\0" (Handle);
    nobjects_list_open = b"rados_nobjects_list_open\0" (Handle, Out<Handle>) -> c_int;
    nobjects_list_next = b"rados_nobjects_list_next2\0" (Handle, Out<Text>, Out<Text>, Out<Text>, Out<usize>, Out<usize>, Out<usize>) -> c_int;
    nobjects_list_close = b"rados_nobjects_list_close\0" (Handle);
    aio_create_completion = b"rados_aio_create_completion\0" (*mut c_void, Option<OnComplete>, Option<OnComplete>, Out<Handle>) -> c_int;
    aio_get_return_value = b"rados_aio_get_return_value\0" (Handle) -> c_int;
    aio_get_version = b"rados_aio_get_version\0" (Handle) -> u64;
    aio_release = b"rados_aio_release\0" (Handle);
    create_write_op = b"rados_create_write_op\0" () -> Handle;
    release_write_op = b"rados_release_write_op\0" (Handle);
    write_op_assert_exists = b"rados_write_op_assert_exists\0" (Handle);
    write_op_assert_version = b"rados_write_op_assert_version\0" (Handle, u64);
    write_op_omap_cmp = b"rados_write_op_omap_cmp\0" (Handle, Text, u8, Text, usize, Out<c_int>);
    write_op_setxattr = b"rados_write_op_setxattr\0" (Handle, Text, Text, usize);
    write_op_rmxattr = b"rados_write_op_rmxattr\0" (Handle, Text);
    write_op_create = b"rados_write_op_create\0" (Handle, c_int, Text);
    write_op_write = b"rados_write_op_write\0" (Handle, Text, usize, u64);
    write_op_write_full = b"rados_write_op_write_full\0" (Handle, Text, usize);
    write_op_truncate = b"rados_write_op_truncate\0" (Handle, u64);
    write_op_remove = b"rados_write_op_remove\0" (Handle);
    write_op_omap_set = b"rados_write_op_omap_set\0" (Handle, Texts, Texts, *const usize, usize);
    write_op_omap_rm_keys = b"rados_write_op_omap_rm_keys\0" (Handle, Texts, usize);
    aio_write_op_operate = b"rados_aio_write_op_operate\0" (Handle, Handle, Handle, Text, *mut libc::time_t, c_int) -> c_int;
    create_read_op = b"rados_create_read_op\0" () -> Handle;
    release_read_op = b"rados_release_read_op\0" (Handle);
    read_op_assert_version = b"rados_read_op_assert_version\0" (Handle, u64);
    read_op_getxattrs = b"rados_read_op_getxattrs\0" (Handle, Out<Handle>, Out<c_int>);
    read_op_stat = b"rados_read_op_stat\0" (Handle, Out<u64>, Out<libc::time_t>, Out<c_int>);
    read_op_read = b"rados_read_op_read\0" (Handle, u64, usize, *mut c_char, Out<usize>, Out<c_int>);
    read_op_omap_get_vals = b"rados_read_op_omap_get_vals2\0" (Handle, Text, Text, u64, Out<Handle>, Out<u8>, Out<c_int>);
    read_op_omap_get_vals_by_keys = b"rados_read_op_omap_get_vals_by_keys\0" (Handle, Texts, usize, Out<Handle>, Out<c_int>);
    aio_read_op_operate = b"rados_aio_read_op_operate\0" (Handle, Handle, Handle, Text, c_int) -> c_int;
    getxattrs_next = b"rados_getxattrs_next\0" (Handle, Out<Text>, Out<Text>, Out<usize>) -> c_int;
    getxattrs_end = b"rados_getxattrs_end\0" (Handle);
    omap_get_next = b"rados_omap_get_next2\0" (Handle, Out<Out<c_char>>, Out<Out<c_char>>, Out<usize>, Out<usize>) -> c_int;
    omap_get_end = b"rados_omap_get_end\0" (Handle);
    watch = b"rados_watch3\0" (Handle, Text, Out<u64>, Option<OnNotify>, Option<OnWatchError>, u32, *mut c_void) -> c_int;
    watch_check = b"rados_watch_check\0" (Handle, u64) -> c_int;
    unwatch = b"rados_unwatch2\0" (Handle, u64) -> c_int;
    watch_flush = b"rados_watch_flush\0" (Handle) -> c_int;
    notify_ack = b"rados_notify_ack\0" (Handle, Text, u64, u64, Text, c_int) -> c_int;
    aio_notify = b"rados_aio_notify\0" (Handle, Text, Handle, Text, c_int, u64, Out<Out<c_char>>, Out<usize>) -> c_int;
    stat = b"rados_stat\0" (Handle, Text, Out<u64>, Out<libc::time_t>) -> c_int;
    lock_exclusive = b"rados_lock_exclusive\0" (Handle, Text, Text, Text, Text, *mut libc::timeval, u8) -> c_int;
    unlock = b"rados_unlock\0" (Handle, Text, Text, Text) -> c_int;
    version = b"rados_version\0" (Out<c_int>, Out<c_int>, Out<c_int>);
    #[cfg(test)]
    getaddrs = b"rados_getaddrs\0" (Handle, Out<Out<c_char>>) -> c_int;
    #[cfg(test)]
    buffer_free = b"rados_buffer_free\0" (*mut c_char);
}

/// `c_uint` is what the header calls a comparison; all that is used is equality.
pub(super) const COMPARE_EQUAL: c_uint = 1;

/// The library, opened once for the process.
pub(super) fn api() -> Result<&'static Api, Missing> {
    static API: OnceLock<Result<Api, Missing>> = OnceLock::new();
    let opened = API.get_or_init(|| Api::load().map_err(|error| Missing(error.to_string())));
    opened.as_ref().map_err(Clone::clone)
}

/// The version of the library's interface.
pub fn version() -> Result<(i32, i32, i32), Missing> {
    let api = api()?;
    let (mut major, mut minor, mut extra) = (0, 0, 0);
    // SAFETY: three places for three numbers.
    unsafe { (api.version)(&raw mut major, &raw mut minor, &raw mut extra) };
    Ok((major, minor, extra))
}
