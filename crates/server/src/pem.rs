//! PEM files of a server's certificate chain and key.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::modes;

/// Why a file cannot be used.
#[derive(Debug)]
pub(crate) enum PemError {
    /// It is missing, unreadable or invalid.
    File { path: PathBuf, error: Error },
    /// Other users than the owner can read or change the key.
    OpenKey { path: PathBuf, mode: u32 },
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let text = text(path)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().map_err(file(path))?;
    if found.is_empty() {
        return Err(file(path)(Error::NoItemsFound));
    }
    Ok(found)
}

/// The key in a file that no other user can access.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    if let Some(mode) = modes::open_to_others(path) {
        return Err(PemError::OpenKey { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_slice(&text(path)?).map_err(file(path))
}

/// The bytes of a file, without a byte-order mark.
fn text(path: &Path) -> Result<Vec<u8>, PemError> {
    let mut bytes = std::fs::read(path).map_err(Error::Io).map_err(file(path))?;
    if bytes.starts_with(modes::BYTE_ORDER_MARK.as_bytes()) {
        bytes.drain(..modes::BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

fn file(path: &Path) -> impl Fn(Error) -> PemError {
    move |error| PemError::File { path: path.to_owned(), error }
}
