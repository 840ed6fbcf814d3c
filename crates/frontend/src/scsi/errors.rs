//! The only table of the sense data for engine errors, in the SCSI device server.

use forebay_engine::Error;
use forebay_wire::scsi::{Code, Sense, SenseKey, codes};

/// The sense data with which a command fails.
pub fn sense_of(error: &Error) -> Sense {
    const fn medium(code: Code) -> Sense {
        Sense::new(SenseKey::MediumError, code)
    }
    match error {
        Error::OutOfRange => Sense::illegal(codes::LBA_OUT_OF_RANGE),
        // Both ranges of a copy are in its parameter list.
        Error::Overlap => Sense::illegal(codes::INVALID_FIELD_IN_PARAMETER_LIST),
        Error::ReadOnly(_) => Sense::new(SenseKey::DataProtect, codes::WRITE_PROTECTED),
        Error::NoSpace | Error::OverQuota { .. } => {
            Sense::new(SenseKey::DataProtect, codes::SPACE_ALLOCATION_FAILED)
        }
        Error::Damaged(_) | Error::MapDamaged(_) | Error::MapsDamaged { .. } | Error::Format(_) => {
            medium(codes::UNRECOVERED_READ_ERROR)
        }
        Error::MemoryLost { .. } => Sense::new(SenseKey::NotReady, codes::MANUAL_INTERVENTION_REQUIRED),
        // The transport does not send this sense data after the pool is lost, but ends its connections.
        Error::Closed | Error::Fenced => Sense::new(SenseKey::NotReady, codes::NOT_READY),
        // The store failed. The other errors concern administration and the opening of a pool; no command
        // causes them.
        Error::Latched(_)
        | Error::Store(_)
        | Error::NotFound(_)
        | Error::Exists(_)
        | Error::InUse { .. }
        | Error::Resetting(_)
        | Error::HasClones { .. }
        | Error::TooManyDisks { .. }
        | Error::HasSnapshots { .. }
        | Error::WrongKind { .. }
        | Error::BadName { .. }
        | Error::BadSize { .. }
        | Error::OtherSize { .. }
        | Error::NoPool(_)
        | Error::LogDamaged(_)
        | Error::Memory(_)
        | Error::OtherLoss(_) => Sense::new(SenseKey::HardwareError, codes::INTERNAL_TARGET_FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use forebay_engine::LogDamage;
    use forebay_format::FormatError;
    use forebay_store::StoreError;

    use super::*;

    #[test]
    fn each_engine_error_has_its_sense_data() {
        let name = || "a".to_owned();
        let log_damage = LogDamage {
            id: 1,
            intact_until: 0,
            places: Vec::new(),
            missing_batches: 1,
            lost_batches: 0,
            lost_groups: 0,
            disks: Vec::new(),
            catalogue: Vec::new(),
        };
        let medium_error = (0x03, codes::UNRECOVERED_READ_ERROR);
        let hardware_error = (0x04, codes::INTERNAL_TARGET_FAILURE);
        let table = [
            (Error::OutOfRange, (0x05, codes::LBA_OUT_OF_RANGE)),
            (Error::Overlap, (0x05, codes::INVALID_FIELD_IN_PARAMETER_LIST)),
            (Error::ReadOnly(name()), (0x07, codes::WRITE_PROTECTED)),
            (Error::NoSpace, (0x07, codes::SPACE_ALLOCATION_FAILED)),
            (Error::OverQuota { tenant: name(), bytes: 1 }, (0x07, codes::SPACE_ALLOCATION_FAILED)),
            (Error::Damaged(name()), medium_error),
            (Error::MapDamaged(name()), medium_error),
            (Error::MapsDamaged { disks: name(), freed_bytes: 0 }, medium_error),
            (Error::Format(FormatError::Checksum("batch")), medium_error),
            (Error::Closed, (0x02, codes::NOT_READY)),
            (
                Error::MemoryLost { name: name(), remedy: "resume" },
                (0x02, codes::MANUAL_INTERVENTION_REQUIRED),
            ),
            (Error::Fenced, (0x02, codes::NOT_READY)),
            (Error::Latched(name()), hardware_error),
            (Error::Store(StoreError::ReadOnly), hardware_error),
            (Error::NotFound(name()), hardware_error),
            (Error::Exists(name()), hardware_error),
            (Error::InUse { name: name(), clients: 1 }, hardware_error),
            (Error::Resetting(name()), hardware_error),
            (Error::HasClones { name: name(), clones: 1, example: name() }, hardware_error),
            (Error::TooManyDisks { most: 1 }, hardware_error),
            (Error::HasSnapshots { name: name(), snapshots: 1 }, hardware_error),
            (Error::WrongKind { name: name(), is: "an image", needs: "a volume" }, hardware_error),
            (Error::BadName { name: name(), why: "it is empty" }, hardware_error),
            (Error::BadSize { size: 1, why: "it is too small" }, hardware_error),
            (Error::NoPool(name()), hardware_error),
            (Error::LogDamaged(Box::new(log_damage)), hardware_error),
            (Error::OtherLoss(name()), hardware_error),
            (Error::Memory(name()), hardware_error),
        ];
        for (error, (key, code)) in &table {
            let sense = sense_of(error).encode(false);
            assert_eq!((sense[2] & 0x0f, Code(sense[12], sense[13])), (*key, *code), "{error:?}");
        }
        let variants: HashSet<_> = table.iter().map(|(error, _)| discriminant(error)).collect();
        assert_eq!(variants.len(), table.len(), "each error once");
    }
}
