//! The certificate of the API: read again when its files change, and on SIGHUP. If the new files cannot be
//! used, the certificate in use stays in use.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::pem::{self, PemError};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::config::HttpsFiles;

/// Minimum time between two checks whether the files have changed.
const CHECK: Duration = Duration::from_secs(2);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HttpsError {
    /// A file is missing, unreadable or invalid.
    #[error("cannot read {}: {error}; the API needs PEM files with its certificate chain and its key", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        error: rustls::pki_types::pem::Error,
    },
    /// Other users than the owner can read or change the key.
    #[error("{} can be read or changed by other users (mode {mode:03o}): chmod 600 {}", path.display(), path.display())]
    OpenKey {
        /// Path of the file of the key.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// A certificate has X.509 version 1.
    #[error("{}: {}", path.display(), pem::VERSION_1)]
    Version1 {
        /// Path of the file of the certificate.
        path: PathBuf,
    },
    /// The files do not match each other.
    #[error("the certificate {} and its key cannot be used: {error}", path.display())]
    Unusable {
        /// Path of the file of the certificate.
        path: PathBuf,
        /// Why certificate and key cannot be used.
        error: rustls::Error,
    },
}

/// What changes when a file is replaced or written.
type Stamp = Option<(u64, i64, i64, u64)>;

struct State {
    acceptor: TlsAcceptor,
    stamps: [Stamp; 2],
    checked: Instant,
}

/// The certificate of the API.
pub(crate) struct HttpsCertificate {
    files: HttpsFiles,
    state: Mutex<State>,
}

impl HttpsCertificate {
    /// Reads the files of certificate and key.
    pub fn load(files: &HttpsFiles) -> Result<HttpsCertificate, HttpsError> {
        let state = State { acceptor: read(files)?, stamps: stamps(files), checked: Instant::now() };
        Ok(HttpsCertificate { files: files.clone(), state: Mutex::new(state) })
    }

    /// Returns the acceptor for the next handshake. Reads files that have changed.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut state = self.state.lock();
        if state.checked.elapsed() >= CHECK {
            state.checked = Instant::now();
            if stamps(&self.files) != state.stamps {
                match self.replace(&mut state) {
                    Ok(()) => tracing::info!("the certificate of the API has changed and was read again"),
                    Err(e) => tracing::error!("cannot reload the certificate of the API: {e}"),
                }
            }
        }
        state.acceptor.clone()
    }

    /// Reads the files of certificate and key again.
    pub fn reload(&self) -> Result<(), HttpsError> {
        self.replace(&mut self.state.lock())
    }

    fn replace(&self, state: &mut State) -> Result<(), HttpsError> {
        // The times of the files are recorded before the files are read, so that the next check notices a
        // change at the same time.
        state.stamps = stamps(&self.files);
        state.acceptor = read(&self.files)?;
        Ok(())
    }
}

fn stamps(files: &HttpsFiles) -> [Stamp; 2] {
    [&files.certificate, &files.key].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
    })
}

fn read(files: &HttpsFiles) -> Result<TlsAcceptor, HttpsError> {
    let HttpsFiles { certificate, key } = files;
    let (chain, key) = (pem::chain(certificate)?, pem::private_key(key)?);
    let unusable = |error| HttpsError::Unusable { path: certificate.clone(), error };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl From<PemError> for HttpsError {
    fn from(e: PemError) -> HttpsError {
        match e {
            PemError::File { path, error } => HttpsError::File { path, error },
            PemError::OpenKey { path, mode } => HttpsError::OpenKey { path, mode },
            PemError::Version1 { path } => HttpsError::Version1 { path },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(files: &HttpsFiles) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_change_are_read_again_and_bad_ones_leave_the_certificate_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let files = HttpsFiles { certificate: dir.path().join("c"), key: dir.path().join("k") };
        assert!(matches!(HttpsCertificate::load(&files), Err(HttpsError::File { .. })));
        write(&files);
        let certificate = HttpsCertificate::load(&files).unwrap();
        let current = |c: &HttpsCertificate| Arc::as_ptr(c.acceptor().config());
        let first = current(&certificate);
        write(&files);
        assert_eq!(current(&certificate), first, "not checked again yet");
        tokio::time::advance(CHECK).await;
        let second = current(&certificate);
        assert_ne!(second, first);
        fs::write(&files.key, "no key").unwrap();
        tokio::time::advance(CHECK).await;
        assert_eq!(current(&certificate), second);
        assert!(certificate.reload().is_err());
        write(&files);
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(certificate.reload(), Err(HttpsError::OpenKey { mode: 0o644, .. })));
    }
}
