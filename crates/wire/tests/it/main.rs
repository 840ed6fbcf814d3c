//! The protocols from outside, and the corpus of their fuzz targets.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod corpus;
mod nbd_negotiation;
mod nbd_transmission;
mod scsi_cdbs;
