//! The certificate authorities of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// The variable that names a bundle in place of the system's bundle, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Bundles of Debian, Arch and Gentoo; Fedora and RHEL; SUSE; Alpine and FreeBSD.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Creates the configuration of TLS clients.
///
/// # Errors
///
/// The reason and the remedy if there are no authorities.
pub(super) fn client_config() -> Result<Arc<ClientConfig>, String> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    let roots = match named {
        Some(file) => {
            let found = read(&file).map_err(|e| format!("{VARIABLE} names {}: {e}", file.display()))?;
            (!found.is_empty())
                .then_some(found)
                .ok_or_else(|| format!("{VARIABLE} names {}, which has no certificates", file.display()))?
        }
        None => first(&BUNDLES.map(Path::new)).ok_or_else(|| {
            format!("the system has no CA certificates; install ca-certificates, or set {VARIABLE}")
        })?,
    };
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = versions.map_err(|e| e.to_string())?.with_root_certificates(store).with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns the certificates of the first bundle that has any.
fn first(bundles: &[&Path]) -> Option<Vec<CertificateDer<'static>>> {
    bundles.iter().filter_map(|bundle| read(bundle).ok()).find(|found| !found.is_empty())
}

/// Returns the certificates in a file; damaged certificates are skipped.
fn read(bundle: &Path) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    Ok(CertificateDer::pem_file_iter(bundle)?.flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bundle_with_certificates_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let own = rcgen::generate_simple_self_signed(vec!["host".to_owned()]).unwrap();
        let (empty, bundle) = (file("empty", ""), file("bundle", &own.cert.pem()));
        let found = first(&[Path::new("/nonexistent"), &empty, &bundle]).unwrap();
        assert_eq!(found, [own.cert.der().clone()]);
        assert!(first(&[&empty]).is_none());
    }
}
