//! Operations that read attributes, keys and lengths.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::ptr::{null, null_mut};

use super::api::{self, Api, Raw};
use super::operations::{Output, Submit, as_answer};
use crate::IoBuf;
use crate::rados::{Answer, Contents, Errno};

/// Maximum number of keys that are requested at a time; OSDs limit their answers to 1,024 by default.
const PAGE_KEYS: u64 = 4_096;

/// An operation that reads, not submitted yet.
pub(super) struct ReadOp {
    api: &'static Api,
    pub(super) raw: Raw,
}

// SAFETY: as for `WriteOp`.
unsafe impl Send for ReadOp {}

impl Drop for ReadOp {
    fn drop(&mut self) {
        // SAFETY: it was created by `new`.
        unsafe { (self.api.release_read_op)(self.raw) };
    }
}

impl ReadOp {
    pub(super) fn new(api: &'static Api) -> ReadOp {
        // SAFETY: no preconditions.
        ReadOp { api, raw: unsafe { (api.create_read_op)() } }
    }

    /// Submits the operation. It is ordered after writes that were begun before. For OSDs such a read counts
    /// as a write, which would wait while the pool is full; the second flag prevents that.
    pub(super) fn submit(self, object: CString) -> Submit {
        const FLAGS: c_int = api::ORDER_READS_WRITES | api::FULL_TRY;
        Box::new(move |c, completion| {
            let op = &self;
            // SAFETY: all handles are valid, and the completion owns the outputs. The library copies the name
            // and takes the steps out of the operation, which may be released after the call.
            unsafe { (c.api.aio_read_op_operate)(op.raw, c.io, completion, object.as_ptr(), FLAGS) }
        })
    }
}

/// A page of keys. The first page also has the attributes and the first bytes of the object.
pub(super) struct Page {
    api: &'static Api,
    attributes: Raw,
    keys: Raw,
    more: c_uchar,
    read: usize,
    bytes: IoBuf,
}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.attributes.is_null() {
            // SAFETY: a valid iterator that is not used any more.
            unsafe { (self.api.getxattrs_end)(self.attributes) };
        }
        if !self.keys.is_null() {
            // SAFETY: as above.
            unsafe { (self.api.omap_get_end)(self.keys) };
        }
    }
}

impl Page {
    /// Requests a page of the keys after `after`; with the attributes and `first` bytes, if it is the first.
    pub(super) fn request(api: &'static Api, after: &CStr, first: Option<usize>) -> (ReadOp, Output<Page>) {
        let op = ReadOp::new(api);
        let bytes = IoBuf::with_capacity(first.unwrap_or(0));
        let page =
            Output::new(Page { api, attributes: null_mut(), keys: null_mut(), more: 0, read: 0, bytes });
        let p = page.as_ptr();
        // SAFETY: the operation is valid. The completion owns the page, to whose fields the library writes
        // only before it calls the completion; `bytes` owns memory that stays in place. Results of the single
        // steps are optional.
        unsafe {
            let (keys, more) = (&raw mut (*p).keys, &raw mut (*p).more);
            (api.read_op_omap_get_keys2)(op.raw, after.as_ptr(), PAGE_KEYS, keys, more, null_mut());
            if first.is_some() {
                (api.read_op_getxattrs)(op.raw, &raw mut (*p).attributes, null_mut());
            }
            // For an OSD, a read of 0 bytes is a read of the whole object.
            if let Some(len @ 1..) = first {
                let target = (*p).bytes.as_mut_ptr().cast();
                (api.read_op_read)(op.raw, 0, len, target, &raw mut (*p).read, null_mut());
            }
        }
        (op, page)
    }

    /// Adds the page to `known`; also returns whether there are more pages.
    pub(super) fn take(&mut self, mut known: Contents) -> Answer<(Contents, bool)> {
        let before = known.keys.len();
        self.take_attributes(&mut known.attributes)?;
        self.take_keys(&mut known.keys)?;
        if self.read > 0 {
            self.bytes.set_len(self.read.min(self.bytes.capacity()));
            known.bytes = self.bytes.to_vec();
        }
        let more = self.more != 0;
        match more && known.keys.len() == before {
            true => Err(Errno(libc::EIO)),
            false => Ok((known, more)),
        }
    }

    fn take_attributes(&self, into: &mut Vec<(String, Vec<u8>)>) -> Answer<()> {
        if self.attributes.is_null() {
            return Ok(());
        }
        loop {
            let (mut name, mut value, mut len) = (null(), null(), 0);
            // SAFETY: the iterator is valid.
            let result = unsafe {
                (self.api.getxattrs_next)(self.attributes, &raw mut name, &raw mut value, &raw mut len)
            };
            as_answer(result)?;
            if name.is_null() {
                return Ok(());
            }
            // SAFETY: a name ends with a zero byte, and is valid until the iterator is released.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            // SAFETY: the value has this length, and is valid as long.
            into.push((name, unsafe { copied(value, len) }));
        }
    }

    fn take_keys(&self, into: &mut Vec<String>) -> Answer<()> {
        if self.keys.is_null() {
            return Ok(());
        }
        // SAFETY: the iterator is valid.
        into.reserve(unsafe { (self.api.omap_iter_size)(self.keys) } as usize);
        loop {
            let (mut key, mut key_len, mut value, mut value_len) = (null_mut(), 0, null_mut(), 0);
            let (k, v) = (&raw mut key, &raw mut value);
            // SAFETY: the iterator is valid.
            let result =
                unsafe { (self.api.omap_get_next2)(self.keys, k, v, &raw mut key_len, &raw mut value_len) };
            as_answer(result)?;
            if key.is_null() {
                return Ok(());
            }
            // SAFETY: the key has this length, and is valid until the iterator is released.
            let key = unsafe { copied(key, key_len) };
            into.push(String::from_utf8(key).map_err(|_| Errno(libc::EILSEQ))?);
        }
    }
}

/// A copy of bytes of the library.
///
/// # Safety
/// `start` must be null, or point to `len` bytes.
unsafe fn copied(start: *const c_char, len: usize) -> Vec<u8> {
    match start.is_null() || len == 0 {
        true => Vec::new(),
        // SAFETY: as the caller guarantees.
        false => unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) }.to_vec(),
    }
}
