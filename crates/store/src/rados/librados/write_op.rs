//! Translates the steps of an operation that writes into calls of the library.

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

use super::api::{self, Api, Raw};
use super::operations::{Submit, c_string};
use crate::rados::{Answer, Errno, Step};

/// Number of bytes that a step counts.
pub(super) fn cost_of(step: &Step) -> usize {
    match step {
        Step::Write(_, bytes) => bytes.len(),
        Step::AddKeys(keys) | Step::RemoveKeys(keys) => keys.iter().map(|k| k.len() + 16).sum(),
        Step::Require(name, value) | Step::RequireAtMost(name, value) | Step::Set(name, value) => {
            name.len() + value.len()
        }
        Step::RequireEntry(key, value) => key.len() + value.len(),
        Step::SetEntries(entries) => entries.iter().map(|(key, value)| key.len() + value.len() + 16).sum(),
        Step::Create | Step::AssertExists | Step::Remove | Step::Expect(_) => 0,
    }
}

/// An operation that writes, not submitted yet.
pub(super) struct WriteOp {
    api: &'static Api,
    raw: Raw,
}

// SAFETY: an operation is memory that is not bound to a thread.
unsafe impl Send for WriteOp {}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: it was created by `new`.
        unsafe { (self.api.release_write_op)(self.raw) };
    }
}

impl WriteOp {
    /// Makes the operation of these steps. The library copies all that it needs of the steps.
    pub(super) fn new(api: &'static Api, steps: Vec<Step>) -> Answer<WriteOp> {
        // SAFETY: no preconditions.
        let op = WriteOp { api, raw: unsafe { (api.create_write_op)() } };
        steps.into_iter().try_for_each(|step| op.add(step))?;
        Ok(op)
    }

    pub(super) fn submit(self, object: CString, flags: c_int) -> Submit {
        Box::new(move |c, completion| {
            let op = &self;
            // SAFETY: all handles are valid. The library copies the name and takes the steps out of the
            // operation, which may be released after the call.
            unsafe {
                (c.api.aio_write_op_operate)(op.raw, c.io, completion, object.as_ptr(), null_mut(), flags)
            }
        })
    }

    fn add(&self, step: Step) -> Answer<()> {
        let (api, op) = (self.api, self.raw);
        match step {
            // SAFETY: the operation is valid, and a category is optional.
            Step::Create => unsafe { (api.write_op_create)(op, api::CREATE_EXCLUSIVE, null()) },
            // SAFETY: the operation is valid.
            Step::AssertExists => unsafe { (api.write_op_assert_exists)(op) },
            Step::Require(name, value) => self.compare(name, &value, api::EQUAL)?,
            Step::RequireAtMost(name, value) => self.compare(name, &value, api::GREATER_OR_EQUAL)?,
            Step::Set(name, value) => {
                let name = c_string(name)?;
                // SAFETY: the strings are valid during the call, and copied by it.
                unsafe { (api.write_op_setxattr)(op, name.as_ptr(), value.as_ptr().cast(), value.len()) };
            }
            // SAFETY: the bytes are valid during the call, and copied by it.
            Step::Write(offset, bytes) => unsafe {
                (api.write_op_write)(op, bytes.as_ptr().cast(), bytes.len(), offset);
            },
            Step::AddKeys(keys) => {
                self.set_entries(&keys.into_iter().map(|key| (key, Vec::new())).collect::<Vec<_>>())?;
            }
            Step::SetEntries(entries) => self.set_entries(&entries)?,
            Step::RequireEntry(key, value) => {
                let (name, val) = (pointer(&key)?, value.as_ptr().cast());
                let (len, val_len) = (key.len(), value.len());
                // SAFETY: the key and the value are valid during the call, and copied by it. The result of
                // the single step is optional.
                unsafe { (api.write_op_omap_cmp2)(op, name, api::EQUAL, val, len, val_len, null_mut()) };
            }
            Step::RemoveKeys(keys) if !keys.is_empty() => {
                let (keys, lengths) = pointers(&keys)?;
                // SAFETY: as above.
                unsafe {
                    (api.write_op_omap_rm_keys2)(op, keys.as_ptr(), lengths.as_ptr(), lengths.len());
                }
            }
            Step::RemoveKeys(_) => {}
            // SAFETY: the operation is valid.
            Step::Remove => unsafe { (api.write_op_remove)(op) },
            // SAFETY: the operation is valid. An expected size of the writes is optional.
            Step::Expect(size) => unsafe { (api.write_op_set_alloc_hint2)(op, size, 0, api::HINT_APPENDS) },
        }
        Ok(())
    }

    fn set_entries(&self, entries: &[(String, Vec<u8>)]) -> Answer<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let keys = entries.iter().map(|(key, _)| pointer(key)).collect::<Answer<Vec<_>>>()?;
        let values: Vec<_> = entries.iter().map(|(_, value)| value.as_ptr().cast::<c_char>()).collect();
        let (key_lens, value_lens): (Vec<_>, Vec<_>) =
            entries.iter().map(|(key, value)| (key.len(), value.len())).unzip();
        let (keys, values, key_lens, n) = (keys.as_ptr(), values.as_ptr(), key_lens.as_ptr(), keys.len());
        // SAFETY: the arrays have one element for each entry. Keys and values are copied.
        unsafe { (self.api.write_op_omap_set2)(self.raw, keys, values, key_lens, value_lens.as_ptr(), n) };
        Ok(())
    }

    fn compare(&self, name: &str, value: &str, operator: u8) -> Answer<()> {
        let (name, value, len) = (c_string(name)?, value.as_ptr().cast(), value.len());
        // SAFETY: the strings are valid during the call, and copied by it.
        unsafe { (self.api.write_op_cmpxattr)(self.raw, name.as_ptr(), operator, value, len) };
        Ok(())
    }
}

/// Pointers and lengths of keys, valid as long as these.
pub(super) fn pointers(keys: &[String]) -> Answer<(Vec<*const c_char>, Vec<usize>)> {
    keys.iter().map(|key| Ok((pointer(key)?, key.len()))).collect()
}

/// Pointer to a key, valid as long as the key. A key with a zero byte could not be listed.
fn pointer(key: &str) -> Answer<*const c_char> {
    if key.contains('\0') { Err(Errno(libc::EINVAL)) } else { Ok(key.as_ptr().cast()) }
}
