//! The status of a command (Base 3.3.3.2.1).

/// Status of a command: type and code, and whether a repetition would fail too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Status code type (SCT).
    pub kind: u8,
    /// Status code (SC).
    pub code: u8,
    /// Do not retry (DNR).
    pub is_final: bool,
}

macro_rules! statuses {
    ($($name:ident = $kind:literal, $code:literal, $is_final:literal, $doc:literal;)*) => {
        impl Status {
            $(#[doc = $doc] pub const $name: Status =
                Status { kind: $kind, code: $code, is_final: $is_final };)*
        }
    };
}

statuses! {
    SUCCESS = 0, 0x00, false, "Success.";
    INVALID_OPCODE = 0, 0x01, true, "The command is not supported.";
    INVALID_FIELD = 0, 0x02, true, "A field has a value that is invalid or not supported.";
    ID_CONFLICT = 0, 0x03, false, "Another command with the identifier is in progress.";
    INTERNAL_ERROR = 0, 0x06, false, "The server or its store failed.";
    ABORTED_BY_REQUEST = 0, 0x07, false, "An Abort command aborted the command.";
    FAILED_FUSED = 0, 0x09, false, "The other command of the fused operation failed.";
    MISSING_FUSED = 0, 0x0a, true, "The other command of the fused operation is missing.";
    INVALID_NAMESPACE = 0, 0x0b, true, "The namespace does not exist, or the host has no access to it.";
    SEQUENCE_ERROR = 0, 0x0c, true, "The command is not possible in the present state of the controller.";
    SGL_LENGTH_INVALID = 0, 0x0f, true, "The length of the data does not fit the command.";
    HOST_ID_FORMAT = 0, 0x18, true, "The command needs host identifiers of 128 bits.";
    SGL_TYPE_INVALID = 0, 0x11, true, "The descriptor of the data has a type that is not supported.";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0, 0x14, true, "A fused operation is longer than an atomic one may be.";
    SGL_OFFSET_INVALID = 0, 0x16, true, "The offset of data in the capsule is invalid.";
    NAMESPACE_PROTECTED = 0, 0x20, true, "The namespace refuses changes.";
    COMMAND_INTERRUPTED = 0, 0x21, false, "The command was ended, and is to be repeated.";
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, false, "The digest of data is wrong.";
    LBA_OUT_OF_RANGE = 0, 0x80, true, "The range ends beyond the namespace.";
    CAPACITY_EXCEEDED = 0, 0x81, true, "The store is full.";
    NAMESPACE_NOT_READY = 0, 0x82, false, "The namespace is not ready.";
    NAMESPACE_NEEDS_ATTENTION = 0, 0x82, true, "The namespace is not ready until an administrator acts.";
    RESERVATION_CONFLICT = 0, 0x83, true, "Another host has reserved the namespace.";
    INVALID_LOG_PAGE = 1, 0x09, true, "The log page is not supported.";
    ASYNC_EVENT_LIMIT = 1, 0x05, true, "More Asynchronous Event Requests than allowed.";
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, true, "The feature cannot be changed.";
    CONNECT_FORMAT = 1, 0x80, true, "The format of a Connect is not supported.";
    CONNECT_BUSY = 1, 0x81, false, "The controller cannot accept a Connect at present.";
    CONNECT_INVALID = 1, 0x82, true, "A parameter of a Connect is invalid.";
    CONNECT_INVALID_HOST = 1, 0x84, true, "The host has no access to the subsystem.";
    AUTHENTICATION_REQUIRED = 1, 0x91, true, "The host has to authenticate itself on the queue first.";
    WRITE_FAULT = 2, 0x80, false, "The store failed to write.";
    READ_ERROR = 2, 0x81, true, "Stored data is damaged.";
    COMPARE_FAILURE = 2, 0x85, true, "The stored data differs from the sent data.";
}

impl Status {
    /// Whether the command has succeeded.
    pub fn is_success(self) -> bool {
        (self.kind, self.code) == (0, 0)
    }

    /// The status field of a completion queue entry, without the phase tag.
    pub fn encode(self) -> u16 {
        u16::from(self.code) << 1 | u16::from(self.kind & 7) << 9 | u16::from(self.is_final) << 15
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_encoded() {
        assert_eq!(Status::SUCCESS.encode(), 0);
        assert_eq!(Status::COMPARE_FAILURE.encode(), 0x8000 | 2 << 9 | 0x85 << 1);
        assert_eq!(Status::TRANSIENT_TRANSPORT_ERROR.encode(), 0x22 << 1);
    }
}
