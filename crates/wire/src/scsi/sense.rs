//! Sense data (SPC-4, "Sense data"): the reason why a command failed.

/// Sense key: the kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SenseKey {
    /// There was no failure.
    NoSense = 0x0,
    /// The unit cannot be used at present.
    NotReady = 0x2,
    /// The stored data is damaged.
    MediumError = 0x3,
    /// The server or its store failed.
    HardwareError = 0x4,
    /// The command or its parameters are wrong.
    IllegalRequest = 0x5,
    /// A change that must be reported to the initiator first.
    UnitAttention = 0x6,
    /// The unit does not permit the change.
    DataProtect = 0x7,
    /// A third-party copy failed.
    CopyAborted = 0xa,
    /// The command was aborted.
    AbortedCommand = 0xb,
    /// The stored data differs from the sent data.
    Miscompare = 0xe,
}

/// Additional sense code and its qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u8, pub u8);

/// The additional sense codes that this server returns (SPC-4, "ASC and ASCQ assignments"), by name.
pub mod codes {
    use super::Code;

    macro_rules! codes {
        ($($name:ident = $asc:literal, $ascq:literal, $doc:literal;)*) => {
            $(#[doc = $doc] pub const $name: Code = Code($asc, $ascq);)*
        };
    }

    codes! {
        NO_ADDITIONAL_SENSE = 0x00, 0x00, "No additional information.";
        NOT_READY = 0x04, 0x00, "Logical unit not ready, cause not reportable.";
        MANUAL_INTERVENTION_REQUIRED = 0x04, 0x03, "Logical unit not ready, manual intervention required.";
        STANDBY = 0x04, 0x0b, "Logical unit not accessible, target port in standby state.";
        INVALID_FIELD_IN_INFORMATION_UNIT = 0x0e, 0x03, "The expected data transfer length does not fit the CDB.";
        THIRD_PARTY_DEVICE_FAILURE = 0x0d, 0x01, "The source or destination of a copy failed.";
        COPY_TARGET_NOT_REACHABLE = 0x0d, 0x02, "The source or destination of a copy does not exist.";
        UNRECOVERED_READ_ERROR = 0x11, 0x00, "Stored data is damaged.";
        PARAMETER_LIST_LENGTH_ERROR = 0x1a, 0x00, "The parameter list is truncated, or too long.";
        MISCOMPARE_DURING_VERIFY = 0x1d, 0x00, "The stored data differs from the sent data.";
        INVALID_OPERATION_CODE = 0x20, 0x00, "The command is not supported.";
        LBA_OUT_OF_RANGE = 0x21, 0x00, "The range ends beyond the unit.";
        TOKEN_UNKNOWN = 0x23, 0x04, "The token is unknown.";
        TOKEN_REVOKED = 0x23, 0x06, "The data that the token represents was changed.";
        INVALID_FIELD_IN_CDB = 0x24, 0x00, "A field of the CDB is invalid.";
        LOGICAL_UNIT_NOT_SUPPORTED = 0x25, 0x00, "The unit does not exist.";
        INVALID_FIELD_IN_PARAMETER_LIST = 0x26, 0x00, "A field of the parameter list is invalid.";
        INVALID_RELEASE = 0x26, 0x04, "Release of a persistent reservation of another type.";
        TOO_MANY_TARGET_DESCRIPTORS = 0x26, 0x06, "Of an EXTENDED COPY.";
        UNSUPPORTED_TARGET_DESCRIPTOR = 0x26, 0x07, "Of an EXTENDED COPY.";
        TOO_MANY_SEGMENT_DESCRIPTORS = 0x26, 0x08, "Of an EXTENDED COPY.";
        UNSUPPORTED_SEGMENT_DESCRIPTOR = 0x26, 0x09, "Of an EXTENDED COPY.";
        INLINE_DATA_LENGTH_EXCEEDED = 0x26, 0x0b, "Of an EXTENDED COPY.";
        WRITE_PROTECTED = 0x27, 0x00, "The unit is write-protected.";
        SOFTWARE_WRITE_PROTECTED = 0x27, 0x02, "The unit is write-protected by its control mode page.";
        SPACE_ALLOCATION_FAILED = 0x27, 0x07, "The store is full.";
        MEDIUM_MAY_HAVE_CHANGED = 0x28, 0x00, "Not ready to ready change, medium may have changed.";
        COMMANDS_CLEARED = 0x2f, 0x00, "Another nexus aborted the commands of this one.";
        COMMANDS_CLEARED_BY_SERVER = 0x2f, 0x02, "The server ended the commands.";
        POWER_ON_OCCURRED = 0x29, 0x01, "The unit is new to this nexus.";
        RESET_OCCURRED = 0x29, 0x03, "The unit was reset.";
        NEXUS_LOSS_OCCURRED = 0x29, 0x07, "The nexus was lost.";
        MODE_PARAMETERS_CHANGED = 0x2a, 0x01, "By another nexus.";
        RESERVATIONS_PREEMPTED = 0x2a, 0x03, "By another nexus.";
        RESERVATIONS_RELEASED = 0x2a, 0x04, "By another nexus.";
        REGISTRATIONS_PREEMPTED = 0x2a, 0x05, "By another nexus.";
        ACCESS_STATE_CHANGED = 0x2a, 0x06, "Asymmetric access state changed.";
        CAPACITY_CHANGED = 0x2a, 0x09, "The size of the unit has changed.";
        THIN_PROVISIONING_THRESHOLD = 0x38, 0x07, "The store is nearly full.";
        SAVING_NOT_SUPPORTED = 0x39, 0x00, "Mode pages cannot be saved.";
        INQUIRY_DATA_CHANGED = 0x3f, 0x03, "Another disk has the number of the unit.";
        REPORTED_LUNS_CHANGED = 0x3f, 0x0e, "The list of units has changed.";
        INTERNAL_TARGET_FAILURE = 0x44, 0x00, "The server or its store failed.";
        INSUFFICIENT_RESOURCES = 0x55, 0x03, "The server lacks resources to execute the command.";
        INSUFFICIENT_REGISTRATIONS = 0x55, 0x04, "The server lacks resources for another registration.";
    }
}

/// The invalid field of the CDB or the parameter list (SPC-4, "Field pointer sense key specific data").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The field is in the CDB; otherwise in the parameter list.
    pub in_cdb: bool,
    /// First byte of the field.
    pub byte: u16,
    /// Highest bit of the field, if the field does not consist of whole bytes.
    pub bit: Option<u8>,
}

/// Sense data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// Kind of the failure.
    pub key: SenseKey,
    /// Additional sense code of the failure.
    pub code: Code,
    /// INFORMATION, as defined for the command: the byte that differs, or the block that failed.
    pub information: Option<u64>,
    /// The field of the command or parameter list that is invalid.
    pub field: Option<Field>,
}

impl Sense {
    /// Sense data of a key and a code.
    pub const fn new(key: SenseKey, code: Code) -> Sense {
        Sense { key, code, information: None, field: None }
    }

    /// Returns sense data with the key ILLEGAL REQUEST.
    pub const fn illegal(code: Code) -> Sense {
        Sense::new(SenseKey::IllegalRequest, code)
    }

    /// INVALID FIELD IN CDB: the field that starts at `byte`.
    pub const fn cdb(byte: u16) -> Sense {
        Sense {
            field: Some(Field { in_cdb: true, byte, bit: None }),
            ..Sense::illegal(codes::INVALID_FIELD_IN_CDB)
        }
    }

    /// INVALID FIELD IN CDB: the field whose highest bit is `bit` of `byte`.
    pub const fn cdb_bit(byte: u16, bit: u8) -> Sense {
        Sense {
            field: Some(Field { in_cdb: true, byte, bit: Some(bit) }),
            ..Sense::illegal(codes::INVALID_FIELD_IN_CDB)
        }
    }

    /// INVALID FIELD IN PARAMETER LIST: the field that starts at `byte`.
    pub const fn parameter(byte: u16) -> Sense {
        Sense {
            field: Some(Field { in_cdb: false, byte, bit: None }),
            ..Sense::illegal(codes::INVALID_FIELD_IN_PARAMETER_LIST)
        }
    }

    /// PARAMETER LIST LENGTH ERROR.
    pub const fn length() -> Sense {
        Sense::illegal(codes::PARAMETER_LIST_LENGTH_ERROR)
    }

    /// Adds the field INFORMATION.
    pub const fn at(self, information: u64) -> Sense {
        Sense { information: Some(information), ..self }
    }

    /// The bytes: in descriptor format (72h), or in fixed format (70h), which omits information of more than
    /// 32 bits.
    pub fn encode(&self, descriptor: bool) -> Vec<u8> {
        if descriptor { self.encode_descriptor() } else { self.encode_fixed() }
    }

    fn encode_fixed(&self) -> Vec<u8> {
        let mut sense = vec![0; 18];
        sense[0] = 0x70;
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            sense[0] |= 0x80;
            sense[3..7].copy_from_slice(&information.to_be_bytes());
        }
        sense[2] = self.key as u8;
        sense[7] = 10;
        (sense[12], sense[13]) = (self.code.0, self.code.1);
        if let Some(field) = self.field {
            sense[15..18].copy_from_slice(&field.encode());
        }
        sense
    }

    fn encode_descriptor(&self) -> Vec<u8> {
        let mut sense = vec![0x72, self.key as u8, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            sense.extend_from_slice(&[0x00, 0x0a, 0x80, 0]);
            sense.extend_from_slice(&information.to_be_bytes());
        }
        if let Some(field) = self.field {
            sense.extend_from_slice(&[0x02, 0x06, 0, 0]);
            sense.extend_from_slice(&field.encode());
            sense.push(0);
        }
        sense[7] = (sense.len() - 8) as u8;
        sense
    }
}

impl Field {
    fn encode(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let bit = self.bit.map_or(0, |bit| 0x08 | bit & 0x07);
        [0x80 | u8::from(self.in_cdb) << 6 | bit, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_format() {
        let sense = Sense::new(SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY).at(0x0102_0304);
        let expected = [0xf0, 0, 0x0e, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0];
        assert_eq!(sense.encode(false), expected);
        // Information that does not fit is omitted, not truncated.
        assert_eq!(sense.at(1 << 32).encode(false)[..7], [0x70, 0, 0x0e, 0, 0, 0, 0]);
        let field = Sense::cdb_bit(0x0102, 5).encode(false);
        assert_eq!((field[2], field[12], &field[15..]), (5, 0x24, &[0xcd, 1, 2][..]));
        assert_eq!(Sense::parameter(3).encode(false)[15..], [0x80, 0, 3]);
    }

    #[test]
    fn descriptor_format() {
        let sense = Sense::new(SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY).at(7);
        let expected = [0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(sense.encode(true), expected);
        assert_eq!(Sense::cdb(2).encode(true), [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xc0, 0, 2, 0]);
    }
}
