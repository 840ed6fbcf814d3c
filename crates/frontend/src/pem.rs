//! PEM files of a server's certificate chain and key.

use std::io;
use std::path::{Path, PathBuf};

use forebay_host::modes;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, OtherError};

/// Why a file cannot be used.
#[derive(Debug)]
pub enum PemError {
    /// The file is missing, unreadable or invalid.
    File {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        error: Error,
    },
    /// Other users than the owner can read or change the key.
    OpenKey {
        /// Path of the file of the key.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// A certificate has X.509 version 1.
    Version1 {
        /// Path of the file of the certificate.
        path: PathBuf,
    },
}

/// Why a certificate of version 1 cannot be used, and the remedy.
pub const VERSION_1: &str = "the certificate cannot be used: it has X.509 version 1, which has no \
    extensions; issue it again with one, such as subjectAltName (openssl x509 -req -extfile FILE)";

/// The certificates in a file; there is at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let text = text(path)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().map_err(file(path))?;
    if found.is_empty() {
        return Err(file(path)(Error::NoItemsFound));
    }
    Ok(found)
}

/// The certificates in a file with which a server proves its identity.
pub fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain = certificates(path)?;
    // Certificates of authorities may have version 1, but then they are not part of the chain.
    let is_version_1 = |certificate| {
        matches!(webpki::EndEntityCert::try_from(certificate), Err(webpki::Error::UnsupportedCertVersion))
    };
    if chain.iter().any(is_version_1) {
        return Err(PemError::Version1 { path: path.to_owned() });
    }
    Ok(chain)
}

/// The text of an error of a TLS connection. A certificate of version 1 is named: the text of the library
/// does not explain it.
pub(crate) fn in_words(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other))))
            if matches!(other.downcast_ref(), Some(webpki::Error::UnsupportedCertVersion)) =>
        {
            format!("of the peer, {VERSION_1}")
        }
        _ => error.to_string(),
    }
}

/// The key in a file that no other user can access.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    if let Some(mode) = modes::open_to_others(path) {
        return Err(PemError::OpenKey { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_slice(&text(path)?).map_err(file(path))
}

/// The bytes of a file, without a byte-order mark.
fn text(path: &Path) -> Result<Vec<u8>, PemError> {
    let mut bytes = std::fs::read(path).map_err(Error::Io).map_err(file(path))?;
    if bytes.starts_with(forebay_text::BYTE_ORDER_MARK.as_bytes()) {
        bytes.drain(..forebay_text::BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

fn file(path: &Path) -> impl Fn(Error) -> PemError {
    move |error| PemError::File { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A certificate of version 1, made by `openssl x509 -req` without extensions.
    const CERTIFICATE_V1: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBGDCBvwIUDlCfVYXe2+kM5kzI8XCq8bYBBOAwCgYIKoZIzj0EAwIwDjEMMAoG\n\
        A1UEAwwDb2xkMCAXDTI2MTEyNzIyMDYzN1oYDzIxMjYxMTAzMjIwNjM3WjAOMQww\n\
        CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQarCnVUKFIdSQF\n\
        xWl9ekBL6gE70NwQVPSFUunEj+OOVXzi/45WO5v5O7yN0dh19xG7yoJDV2LQ6964\n\
        CcNWjYuzMAoGCCqGSM49BAMCA0gAMEUCIQDETAC5wK5ck6UAjPy88+Fnz97oxRtZ\n\
        OSWXcp7fcJ00qQIgYj9miK7Jus38V5B4/xlZThcO4rdjqhHaGdWWMfdLxi0=\n\
        -----END CERTIFICATE-----\n";

    #[test]
    fn a_certificate_of_version_1_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server-cert.pem");
        std::fs::write(&path, CERTIFICATE_V1).unwrap();
        assert!(certificates(&path).is_ok(), "authorities may have version 1");
        assert!(matches!(chain(&path), Err(PemError::Version1 { path: found }) if found == path));
    }

    #[test]
    fn a_peer_with_a_certificate_of_version_1_is_reported_in_words() {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE_V1.as_bytes()).unwrap();
        let why = webpki::EndEntityCert::try_from(&certificate).err().unwrap();
        let error = rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))));
        let text = in_words(&io::Error::new(io::ErrorKind::InvalidData, error));
        assert!(text.contains("X.509 version 1") && text.contains("subjectAltName"), "{text}");
        assert_eq!(in_words(&io::Error::other("reset")), "reset");
    }
}
