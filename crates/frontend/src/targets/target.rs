//! One target: its disks, and its access control.

use std::collections::BTreeMap;

use forebay_text::Secret;
use serde::{Deserialize, Serialize};

use super::{DhChapKey, IqnName, TargetError};

/// The highest logical unit number: the largest in the one byte of peripheral device addressing (SAM-5,
/// 4.7.7.2).
pub const MAX_LUN: u16 = 255;
/// Minimum bytes of a CHAP secret: 96 bits (RFC 7143, section 9.2.1).
const MIN_SECRET: usize = 12;
/// Maximum bytes of a secret, and of a user name.
const MAX_SECRET: usize = 255;

/// A target: a set of disks, and the initiators with access to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Name of the target.
    pub name: IqnName,
    /// Number of the target, from 1 on: the relative target port identifier (SPC-4, 7.8.6.2). It never
    /// changes, and is not reused after the target is removed.
    pub number: u16,
    /// Any initiator has access, even without an entry in `initiators`.
    pub open: bool,
    /// Credentials of initiators that have no separate credentials.
    pub chap: Option<Chap>,
    /// Credentials of the target, for initiators that request mutual authentication.
    pub mutual: Option<Chap>,
    /// The key by which the target, as a subsystem, authenticates itself to NVMe hosts that request this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap: Option<DhChapKey>,
    /// Disks of the target, by logical unit number.
    #[serde(default)]
    pub luns: BTreeMap<u16, Lun>,
    /// Access control list. If it is empty and the target is not open, no initiator has access.
    pub initiators: Vec<Initiator>,
}

/// A mapped disk of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lun {
    /// Name of the disk: volume, image, or `VOLUME@SNAPSHOT`.
    pub disk: String,
    /// Whether writes to the disk are refused.
    pub read_only: bool,
    /// A write is answered before it is durable; a write cache is reported to initiators, and they flush it.
    /// Without this option, every write is durable when it is answered, also on a volume with a weaker sync
    /// mode.
    pub write_back: bool,
}

/// An entry of the access control list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initiator {
    /// Name of the initiator.
    pub name: IqnName,
    /// Credentials of the initiator, if they differ from those of the target.
    pub chap: Option<Chap>,
    /// The key with which the initiator, an NVMe host, must authenticate itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap: Option<DhChapKey>,
    /// The logical units that the initiator can access; `None` for all.
    pub luns: Option<Vec<u16>>,
}

/// A user name and secret (RFC 7143, section 12.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chap {
    /// The name of the CHAP user (`CHAP_N`), of 1 to 255 bytes.
    pub user: String,
    /// The secret that both sides share.
    pub secret: Secret,
}

impl Chap {
    /// Checks that name and secret are valid.
    ///
    /// # Errors
    /// [`TargetError::Chap`]
    pub fn check(&self) -> Result<(), TargetError> {
        let bad = |why| Err(TargetError::Chap { user: shown(&self.user), why });
        if self.user.is_empty() || self.user.len() > MAX_SECRET {
            bad("the user name must have 1 to 255 bytes")
        } else if self.user.contains(char::is_control) || self.secret.reveal().contains(char::is_control) {
            bad("name and secret must not have control characters or line ends")
        } else if self.secret.reveal().len() < MIN_SECRET {
            bad("the secret is shorter than 12 bytes")
        } else if self.secret.reveal().len() > MAX_SECRET {
            bad("the secret is longer than 255 bytes")
        } else {
            Ok(())
        }
    }
}

/// A text shortened for an error message.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(64).collect()
}

/// The access of an initiator that a target admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission<'a> {
    /// The credentials with which the initiator must authenticate itself; `None` if it need not.
    pub chap: Option<&'a Chap>,
    /// The key with which an NVMe host must authenticate itself; `None` if it need not.
    pub dhchap: Option<&'a DhChapKey>,
    luns: Option<&'a [u16]>,
}

impl Admission<'_> {
    /// Whether the initiator can access a logical unit.
    pub fn sees(&self, lun: u16) -> bool {
        self.luns.is_none_or(|luns| luns.contains(&lun))
    }
}

impl Target {
    /// The access of an initiator; `None` if it must not detect that this target exists.
    pub fn admission(&self, initiator: &IqnName) -> Option<Admission<'_>> {
        match self.initiators.iter().find(|i| i.name == *initiator) {
            Some(entry) => Some(Admission {
                chap: entry.chap.as_ref().or(self.chap.as_ref()),
                dhchap: entry.dhchap.as_ref(),
                luns: entry.luns.as_deref(),
            }),
            None if self.open => Some(Admission { chap: self.chap.as_ref(), dhchap: None, luns: None }),
            None => None,
        }
    }

    /// Whether an initiator has an entry in the access control list.
    pub fn lists(&self, initiator: &IqnName) -> bool {
        self.initiators.iter().any(|entry| entry.name == *initiator)
    }

    /// True only if each initiator can use everything that it could use before in the same way.
    pub fn permits_all_of(&self, before: &Target) -> bool {
        // An entry can restrict an initiator of an open target.
        let has_entries = match before.open {
            true => self.open && self.initiators == before.initiators,
            false => self.initiators.starts_with(&before.initiators),
        };
        let has = |(number, lun): (&u16, &Lun)| self.luns.get(number) == Some(lun);
        has_entries && self.chap == before.chap && before.luns.iter().all(has)
    }

    /// The logical unit number of a disk; `None` if the disk is not mapped.
    pub fn lun_of(&self, disk: &str) -> Option<u16> {
        self.luns.iter().find(|(_, lun)| lun.disk == disk).map(|(number, _)| *number)
    }

    /// Checks everything that does not depend on the pool.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self) -> Result<(), TargetError> {
        let of_initiators = self.initiators.iter().filter_map(|i| i.chap.as_ref());
        for chap in of_initiators.chain(&self.chap) {
            chap.check()?;
            // RFC 7143, section 9.2.1: otherwise an initiator could make the target answer the target's own
            // challenge.
            if self.mutual.as_ref().is_some_and(|mutual| mutual.secret == chap.secret) {
                return Err(TargetError::SameSecret);
            }
        }
        if let Some(mutual) = &self.mutual {
            mutual.check()?;
        }
        if let Some(key) = &self.dhchap {
            key.check()?;
        }
        for (initiator, key) in self.initiators.iter().filter_map(|i| Some((i, i.dhchap.as_ref()?))) {
            key.check()?;
            if !initiator.name.is_nqn() {
                return Err(TargetError::NoHost(initiator.name.clone()));
            }
            if self.dhchap.as_ref().is_some_and(|own| own.is_same(key)) {
                return Err(TargetError::SameSecret);
            }
        }
        for (lun, mapped) in &self.luns {
            check_lun(*lun)?;
            if self.lun_of(&mapped.disk) != Some(*lun) {
                return Err(self.mapped_twice(&mapped.disk));
            }
        }
        for (n, initiator) in self.initiators.iter().enumerate() {
            if self.initiators[..n].iter().any(|other| other.name == initiator.name) {
                return Err(TargetError::InitiatorTwice(initiator.name.clone()));
            }
            for lun in initiator.luns.iter().flatten() {
                if !self.luns.contains_key(lun) {
                    return Err(TargetError::NoLun { target: self.name.clone(), lun: *lun });
                }
            }
        }
        Ok(())
    }

    fn mapped_twice(&self, disk: &str) -> TargetError {
        let lun = self.lun_of(disk).unwrap_or_default();
        TargetError::Mapped { disk: disk.to_owned(), lun, target: self.name.clone() }
    }

    /// Maps a disk under `lun`, or under the lowest free number. A disk that is mapped under this number
    /// already gets the new options.
    pub(super) fn map(&mut self, lun: Option<u16>, mapped: Lun) -> Result<u16, TargetError> {
        let lun = match lun {
            Some(lun) => lun,
            None => (0..=MAX_LUN)
                .find(|lun| !self.luns.contains_key(lun))
                .ok_or_else(|| TargetError::Full(self.name.clone()))?,
        };
        check_lun(lun)?;
        if self.lun_of(&mapped.disk).is_some_and(|at| at != lun) {
            return Err(self.mapped_twice(&mapped.disk));
        }
        if let Some(existing) = self.luns.get(&lun).filter(|existing| existing.disk != mapped.disk) {
            let disk = existing.disk.clone();
            return Err(TargetError::LunTaken { target: self.name.clone(), lun, disk });
        }
        self.luns.insert(lun, mapped);
        Ok(lun)
    }

    /// Unmaps a disk. Its number is removed from the initiators' lists too, so that the next disk with this
    /// number is not accessible by accident.
    pub(super) fn unmap(&mut self, lun: u16) -> Result<(), TargetError> {
        self.luns.remove(&lun).ok_or_else(|| TargetError::NoLun { target: self.name.clone(), lun })?;
        for luns in self.initiators.iter_mut().filter_map(|i| i.luns.as_mut()) {
            luns.retain(|seen| *seen != lun);
        }
        Ok(())
    }
}

fn check_lun(lun: u16) -> Result<(), TargetError> {
    if lun > MAX_LUN { Err(TargetError::HighLun(lun)) } else { Ok(()) }
}
