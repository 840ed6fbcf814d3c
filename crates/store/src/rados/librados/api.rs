//! The functions of librados, loaded at run time, so that the binary starts without Ceph.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::sync::OnceLock;

use libloading::Library;
use parking_lot::Mutex;

use crate::StoreError;

/// The library's file name. Its major version has been 2 since the first release.
const NAME: &str = "librados.so.2";

/// A handle of the library: `rados_t`, `rados_ioctx_t`, a completion, an operation or an iterator.
pub(super) type Raw = *mut c_void;
/// Called by the library when an operation has ended.
pub(super) type Callback = unsafe extern "C" fn(Raw, *mut c_void);
/// Strings that need not end with a zero byte.
type Strings = *const *const c_char;
/// A byte string as an input.
type Bytes = *const c_char;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(super) const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(super) const EQUAL: u8 = 1;
/// `LIBRADOS_CMPXATTR_OP_GTE`: the given value is greater than or equal to the stored value.
pub(super) const GREATER_OR_EQUAL: u8 = 4;
/// `LIBRADOS_OPERATION_ORDER_READS_WRITES`: the read does not overtake a write that was begun before it.
pub(super) const ORDER_READS_WRITES: c_int = 4;
/// `LIBRADOS_OPERATION_FULL_TRY`.
pub(super) const FULL_TRY: c_int = 64;
/// `LIBRADOS_OPERATION_FULL_FORCE`.
pub(super) const FULL_FORCE: c_int = 128;
/// `LIBRADOS_ALLOC_HINT_FLAG_SEQUENTIAL_WRITE` and `LIBRADOS_ALLOC_HINT_FLAG_APPEND_ONLY`.
pub(super) const HINT_APPENDS: u32 = 1 | 16;

/// `struct rados_cluster_stat_t`.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct ClusterStat {
    pub(super) kb: u64,
    pub(super) kb_used: u64,
    pub(super) kb_avail: u64,
    pub(super) num_objects: u64,
}

/// Declares the structure of function pointers. Each name is the name in the library, without `rados_`.
macro_rules! functions {
    ($(fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions in use, with the signatures of `rados/librados.h`.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn resolve(library: &Library) -> Result<Api, libloading::Error> {
                Ok(Api {
                    // SAFETY: the declared signature is that of the library's header.
                    $($name: unsafe { *library.get(concat!("rados_", stringify!($name), "\0"))? },)*
                })
            }
        }
    };
}

functions! {
    fn create2(*mut Raw, *const c_char, *const c_char, u64) -> c_int;
    fn conf_read_file(Raw, *const c_char) -> c_int;
    fn conf_parse_env(Raw, *const c_char) -> c_int;
    fn conf_set(Raw, *const c_char, *const c_char) -> c_int;
    fn connect(Raw) -> c_int;
    fn shutdown(Raw);
    fn ioctx_create(Raw, *const c_char, *mut Raw) -> c_int;
    fn ioctx_set_namespace(Raw, *const c_char);
    fn ioctx_destroy(Raw);
    fn cluster_stat(Raw, *mut ClusterStat) -> c_int;
    fn mon_command(
        Raw,
        *const *const c_char,
        usize,
        Bytes,
        usize,
        *mut *mut c_char,
        *mut usize,
        *mut *mut c_char,
        *mut usize,
    ) -> c_int;
    fn buffer_free(*mut c_char);
    fn getaddrs(Raw, *mut *mut c_char) -> c_int;

    fn nobjects_list_open(Raw, *mut Raw) -> c_int;
    fn nobjects_list_next2(
        Raw,
        *mut *const c_char,
        *mut *const c_char,
        *mut *const c_char,
        *mut usize,
        *mut usize,
        *mut usize,
    ) -> c_int;
    fn nobjects_list_close(Raw);

    fn aio_create_completion2(*mut c_void, Callback, *mut Raw) -> c_int;
    fn aio_get_return_value(Raw) -> c_int;
    fn aio_release(Raw);
    fn aio_read(Raw, *const c_char, Raw, *mut c_char, usize, u64) -> c_int;
    fn aio_write_op_operate(Raw, Raw, Raw, *const c_char, *mut libc::time_t, c_int) -> c_int;
    fn aio_read_op_operate(Raw, Raw, Raw, *const c_char, c_int) -> c_int;

    fn create_write_op() -> Raw;
    fn release_write_op(Raw);
    fn write_op_create(Raw, c_int, *const c_char);
    fn write_op_assert_exists(Raw);
    fn write_op_cmpxattr(Raw, *const c_char, u8, Bytes, usize);
    fn write_op_setxattr(Raw, *const c_char, Bytes, usize);
    fn write_op_write(Raw, Bytes, usize, u64);
    fn write_op_remove(Raw);
    fn write_op_omap_set2(Raw, Strings, Strings, *const usize, *const usize, usize);
    fn write_op_omap_cmp2(Raw, Bytes, u8, Bytes, usize, usize, *mut c_int);
    fn write_op_omap_rm_keys2(Raw, Strings, *const usize, usize);
    fn write_op_set_alloc_hint2(Raw, u64, u64, u32);

    fn create_read_op() -> Raw;
    fn release_read_op(Raw);
    fn read_op_stat(Raw, *mut u64, *mut libc::time_t, *mut c_int);
    fn read_op_getxattrs(Raw, *mut Raw, *mut c_int);
    fn read_op_omap_get_keys2(Raw, *const c_char, u64, *mut Raw, *mut c_uchar, *mut c_int);
    fn read_op_omap_get_vals2(Raw, Bytes, Bytes, u64, *mut Raw, *mut c_uchar, *mut c_int);
    fn read_op_omap_get_vals_by_keys2(Raw, Strings, usize, *const usize, *mut Raw, *mut c_int);
    fn read_op_read(Raw, u64, usize, *mut c_char, *mut usize, *mut c_int);
    fn getxattrs_next(Raw, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    fn getxattrs_end(Raw);
    fn omap_get_next2(Raw, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    fn omap_get_end(Raw);
}

impl Api {
    /// The library's functions. The library is loaded once, and stays loaded: its threads may outlive a
    /// connection.
    pub(super) fn get() -> Result<&'static Api, StoreError> {
        static LOADED: OnceLock<Api> = OnceLock::new();
        static LOADING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = LOADING.lock();
        if let Some(api) = LOADED.get() {
            return Ok(api);
        }
        let api = Api::load(NAME)?;
        Ok(LOADED.get_or_init(|| api))
    }

    fn load(name: &str) -> Result<Api, StoreError> {
        let error = |what: String, e: &libloading::Error| {
            let reason = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
            StoreError::Io { what, reason, errno: 0 }
        };
        // SAFETY: the initialisers of librados have no preconditions.
        let library = unsafe { Library::new(name) }.map_err(|e| {
            error(format!("{name} cannot be loaded; install the package librados2 (Debian)"), &e)
        })?;
        let api = Api::resolve(&library)
            .map_err(|e| error(format!("{name} is too old; install librados2 of Ceph 16 or newer"), &e))?;
        std::mem::forget(library);
        Ok(api)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> String {
        Api::load(name).err().expect("it cannot be loaded").to_string()
    }

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let text = refusal("librados-missing.so.2");
        let expected = "librados-missing.so.2 cannot be loaded; install the package librados2 (Debian): ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("No such file or directory"), "the loader's reason: {text}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let text = refusal("libc.so.6");
        assert!(text.starts_with("libc.so.6 is too old"), "{text}");
        assert!(text.contains("rados_"), "{text}");
    }
}
