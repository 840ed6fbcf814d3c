//! Errors after which a connection ends (Transport 3.5 and 3.6.2.5).

/// A transport error that is fatal for the connection. [`FatalError::status`] is what a C2HTermReq reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FatalError {
    /// A field of a PDU header is invalid.
    #[error("byte {offset} of the header of a PDU is invalid: {why}")]
    Header {
        /// Offset of the field in the header.
        offset: u8,
        /// The defect.
        why: &'static str,
    },
    /// A PDU that is not allowed at this point.
    #[error("a PDU out of sequence: {0}")]
    Sequence(&'static str),
    /// The digest of a header is wrong, so its lengths are unknown.
    #[error("the digest of a header is wrong")]
    HeaderDigest {
        /// The digest that was received.
        received: u32,
    },
    /// Data beyond the range that was requested.
    #[error("data from offset {0} on is outside of the requested range")]
    OutOfRange(u32),
    /// A PDU with more data than allowed.
    #[error("a PDU has {0} bytes of data, more than allowed")]
    LimitExceeded(u32),
    /// A parameter of the initialization that is not supported.
    #[error("byte {offset} of the initialization request has a value that is not supported")]
    Unsupported {
        /// Offset of the parameter in the header.
        offset: u8,
    },
}

impl FatalError {
    /// The fatal error status and its information (Transport 3.6.2.5, FES and FEI).
    pub fn status(self) -> (u16, u32) {
        match self {
            FatalError::Header { offset, .. } => (0x01, offset.into()),
            FatalError::Sequence(_) => (0x02, 0),
            FatalError::HeaderDigest { received } => (0x03, received),
            FatalError::OutOfRange(_) => (0x04, 0),
            FatalError::LimitExceeded(_) => (0x05, 0),
            FatalError::Unsupported { offset } => (0x06, offset.into()),
        }
    }
}
