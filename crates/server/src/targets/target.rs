//! One target: what it shows, and to whom.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::{IqnName, TargetError};

/// The highest logical unit number: what fits into the one byte of peripheral device addressing (SAM-5, 4.7.7.2).
pub const MAX_LUN: u16 = 255;
/// Fewest bytes of a secret of CHAP: 96 bits (RFC 7143, section 9.2.1).
const MIN_SECRET: usize = 12;
/// Most bytes of a secret, and of a user's name.
const MAX_SECRET: usize = 255;

/// A target: a set of disks that some initiators may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Its name.
    pub name: IqnName,
    /// A number from 1 on that stays the same, and that no other target gets when it is gone: the relative target
    /// port identifier (SPC-4, 7.8.6.2).
    pub number: u16,
    /// Any initiator may come, also one without an entry in `initiators`.
    pub open: bool,
    /// With what initiators authenticate themselves that have nothing of their own.
    pub chap: Option<Chap>,
    /// With what it authenticates itself to initiators that ask for it.
    pub mutual: Option<Chap>,
    /// Its disks by logical unit number.
    #[serde(default)]
    pub luns: BTreeMap<u16, Lun>,
    /// Who may come. Nobody, where there is no entry and it is not open.
    pub initiators: Vec<Initiator>,
}

/// A disk under its number in a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lun {
    /// Volume, image, or `VOLUME@SNAPSHOT`.
    pub disk: String,
    /// Writes are refused.
    pub read_only: bool,
    /// A write is answered before it is durable; initiators are told of a write cache, and flush it. Without, every
    /// write is durable when it is answered, also on a volume that says otherwise.
    pub write_back: bool,
}

/// Who may come to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Initiator {
    /// Its name.
    pub name: IqnName,
    /// With what it authenticates itself, if not with what the target says.
    pub chap: Option<Chap>,
    /// The logical units that it sees; all, where nothing is said.
    pub luns: Option<Vec<u16>>,
}

/// A user's name and secret (RFC 7143, section 12.1.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chap {
    /// `CHAP_N`: 1 to 255 bytes.
    pub user: String,
    /// What both sides know.
    pub secret: Secret,
}

/// A secret of 12 to 255 bytes. It prints as nothing. It has a form in JSON for the pool's own document and for
/// requests; no answer of the API has a field of this type.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes any text; [`Chap::check`] says whether it is one.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Reads a secret from where it is all that there is, but for one line end.
    ///
    /// # Errors
    /// Those of `from`; `InvalidData` for what is not UTF-8 or too much.
    pub fn read(from: impl Read) -> io::Result<Secret> {
        // Longer than any secret with its line end.
        const MOST: u64 = 1024;
        let mut text = String::new();
        if from.take(MOST).read_to_string(&mut text)? as u64 == MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long for a secret"));
        }
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Secret(line.strip_suffix('\r').unwrap_or(line).to_owned()))
    }

    /// What has to be kept from everybody else.
    pub fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Chap {
    /// Refuses what cannot be used.
    ///
    /// # Errors
    /// [`TargetError::Chap`]
    pub fn check(&self) -> Result<(), TargetError> {
        let bad = |why| Err(TargetError::Chap { user: shown(&self.user), why });
        if self.user.is_empty() || self.user.len() > MAX_SECRET {
            bad("a user's name has 1 to 255 bytes")
        } else if self.user.contains(char::is_control) || self.secret.0.contains(char::is_control) {
            bad("neither name nor secret can have control characters or line ends")
        } else if self.secret.0.len() < MIN_SECRET {
            bad("the secret is shorter than 12 bytes")
        } else if self.secret.0.len() > MAX_SECRET {
            bad("the secret is longer than 255 bytes")
        } else {
            Ok(())
        }
    }
}

/// A text cut to what fits into a message.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(64).collect()
}

/// What an initiator is at a target that it may come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission<'a> {
    /// With what it has to authenticate itself, if with anything.
    pub chap: Option<&'a Chap>,
    luns: Option<&'a [u16]>,
}

impl Admission<'_> {
    /// Whether it sees a logical unit.
    pub fn sees(&self, lun: u16) -> bool {
        self.luns.is_none_or(|luns| luns.contains(&lun))
    }
}

impl Target {
    /// What an initiator is here; `None` for one that has no business to know of this target.
    pub fn admission(&self, initiator: &IqnName) -> Option<Admission<'_>> {
        match self.initiators.iter().find(|i| i.name == *initiator) {
            Some(entry) => Some(Admission {
                chap: entry.chap.as_ref().or(self.chap.as_ref()),
                luns: entry.luns.as_deref(),
            }),
            None if self.open => Some(Admission { chap: self.chap.as_ref(), luns: None }),
            None => None,
        }
    }

    /// The logical unit that a disk is, if it is one.
    pub fn lun_of(&self, disk: &str) -> Option<u16> {
        self.luns.iter().find(|(_, lun)| lun.disk == disk).map(|(number, _)| *number)
    }

    /// Refuses what can be seen to be wrong without a look at the pool.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), TargetError> {
        let of_initiators = self.initiators.iter().filter_map(|i| i.chap.as_ref());
        for chap in of_initiators.chain(&self.chap) {
            chap.check()?;
            // RFC 7143, section 9.2.1: or an initiator could have the target answer its own challenge.
            if self.mutual.as_ref().is_some_and(|mutual| mutual.secret == chap.secret) {
                return Err(TargetError::SameSecret);
            }
        }
        if let Some(mutual) = &self.mutual {
            mutual.check()?;
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

    /// Adds a disk under `lun`, or under the lowest number that is free. A disk that is there under this very number
    /// gets the new options.
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
        if let Some(there) = self.luns.get(&lun).filter(|there| there.disk != mapped.disk) {
            let disk = there.disk.clone();
            return Err(TargetError::LunTaken { target: self.name.clone(), lun, disk });
        }
        self.luns.insert(lun, mapped);
        Ok(lun)
    }

    /// Takes a disk away. Nobody sees by accident what gets the number next: it leaves the initiators' lists, too.
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
