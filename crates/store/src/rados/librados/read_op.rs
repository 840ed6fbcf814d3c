//! Operations that read attributes, keys and lengths.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::ptr::{null, null_mut};

use super::api::{self, Api, Raw};
use super::operations::{Output, Submit, as_answer, c_string};
use super::write_op::pointers;
use crate::IoBuf;
use crate::rados::{Answer, Contents, Entries, Errno, Wanted};

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

/// A page of entries, or of keys only; the first one has the attributes and the first bytes as well.
pub(super) struct Page {
    api: &'static Api,
    attributes: Raw,
    entries: Raw,
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
        if !self.entries.is_null() {
            // SAFETY: as above.
            unsafe { (self.api.omap_get_end)(self.entries) };
        }
    }
}

impl Page {
    fn new(api: &'static Api, bytes: IoBuf) -> Output<Page> {
        Output::new(Page { api, attributes: null_mut(), entries: null_mut(), more: 0, read: 0, bytes })
    }

    /// Requests a page of the wanted entries after the key `after`, and the attributes if it is the first
    /// page.
    pub(super) fn request_entries(
        api: &'static Api,
        wanted: &Wanted,
        after: Option<&str>,
    ) -> Answer<(ReadOp, Output<Page>)> {
        let (op, page) = (ReadOp::new(api), Page::new(api, IoBuf::with_capacity(0)));
        let p = page.as_ptr();
        // SAFETY: the completion owns the page, to whose fields the library writes only before it calls the
        // completion.
        let (entries, more) = unsafe { (&raw mut (*p).entries, &raw mut (*p).more) };
        match wanted {
            Wanted::Prefix(prefix) => {
                let (after, prefix) = (c_string(after.unwrap_or(""))?, c_string(prefix)?);
                let (after, prefix) = (after.as_ptr(), prefix.as_ptr());
                // SAFETY: the operation and the strings are valid; the strings are copied.
                unsafe {
                    (api.read_op_omap_get_vals2)(op.raw, after, prefix, PAGE_KEYS, entries, more, null_mut());
                }
            }
            Wanted::Keys(keys) => {
                let (keys, lengths) = pointers(keys)?;
                let (keys, lengths, n) = (keys.as_ptr(), lengths.as_ptr(), lengths.len());
                // SAFETY: the arrays have one element for each key; the keys are copied.
                unsafe {
                    (api.read_op_omap_get_vals_by_keys2)(op.raw, keys, n, lengths, entries, null_mut());
                }
            }
        }
        if after.is_none() {
            // SAFETY: as above.
            unsafe { (api.read_op_getxattrs)(op.raw, &raw mut (*p).attributes, null_mut()) };
        }
        Ok((op, page))
    }

    /// Adds the page to the entries that are known; also returns whether there are more.
    pub(super) fn take_entries(&mut self, mut known: Entries) -> Answer<(Entries, bool)> {
        let before = known.entries.len();
        self.take_attributes(&mut known.attributes)?;
        self.take_keys(|key, value| {
            known.entries.push((key, value));
        })?;
        match self.more != 0 && known.entries.len() == before {
            true => Err(Errno(libc::EIO)),
            false => Ok((known, self.more != 0)),
        }
    }

    /// Requests a page of the keys after `after`; with the attributes and `first` bytes, if it is the first.
    pub(super) fn request(api: &'static Api, after: &CStr, first: Option<usize>) -> (ReadOp, Output<Page>) {
        let op = ReadOp::new(api);
        let page = Page::new(api, IoBuf::with_capacity(first.unwrap_or(0)));
        let p = page.as_ptr();
        // SAFETY: the operation is valid. The completion owns the page, to whose fields the library writes
        // only before it calls the completion; `bytes` owns memory that stays in place. Results of the single
        // steps are optional.
        unsafe {
            let (keys, more) = (&raw mut (*p).entries, &raw mut (*p).more);
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
        self.take_keys(|key, _| known.keys.push(key))?;
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

    fn take_keys(&self, mut take: impl FnMut(String, Vec<u8>)) -> Answer<()> {
        if self.entries.is_null() {
            return Ok(());
        }
        loop {
            let (mut key, mut key_len, mut value, mut value_len) = (null_mut(), 0, null_mut(), 0);
            let (k, v) = (&raw mut key, &raw mut value);
            // SAFETY: the iterator is valid.
            let result = unsafe {
                (self.api.omap_get_next2)(self.entries, k, v, &raw mut key_len, &raw mut value_len)
            };
            as_answer(result)?;
            if key.is_null() {
                return Ok(());
            }
            // SAFETY: the key and the value have these lengths, and are valid until the iterator is released.
            let (key, value) = unsafe { (copied(key, key_len), copied(value, value_len)) };
            take(String::from_utf8(key).map_err(|_| Errno(libc::EILSEQ))?, value);
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
