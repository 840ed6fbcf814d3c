//! TLS: its modes, and the verification of client certificates.

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::nbd::{ClientCertificates, TlsConfig, TlsMode};
use forebay_wire::nbd::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{Client, option};
use super::support::TestServer;

/// A certificate authority.
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// Creates an authority and a server certificate, and writes both into `dir` under the usual names.
    pub fn new(dir: &Path) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.join("ca-cert.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let authority = Authority(Issuer::new(params, key));
        authority.write(dir, "server", "the server", &["localhost"]);
        authority
    }

    /// Creates a client certificate in `dir`, for this common name and these DNS names.
    pub fn sign(&self, dir: &Path, common_name: &str, dns: &[&str]) {
        std::fs::create_dir_all(dir).unwrap();
        self.write(dir, "client", common_name, dns);
    }

    fn write(&self, dir: &Path, role: &str, common_name: &str, dns: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(dns.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let cert = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(dir.join(format!("{role}-cert.pem")), cert.pem()).unwrap();
        let path = dir.join(format!("{role}-key.pem"));
        std::fs::write(&path, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
}

/// Writes the certificates of an authority, a server and a client under the usual names.
fn certificates(dir: &Path) {
    Authority::new(dir).sign(dir, "client", &["client"]);
}

fn server(mode: TlsMode, clients: ClientCertificates) -> TestServer {
    TestServer::with_tls(mode, |dir| {
        certificates(dir);
        TlsConfig { dir: Some(dir.to_owned()), clients }
    })
}

/// A client that has negotiated TLS, with the certificate in `identity`, if any.
pub fn upgraded(server: &TestServer, identity: Option<&Path>) -> Client {
    upgraded_at(&server.tcp(), server.dir.path(), identity)
}

/// Like [`upgraded`], for an address; the client trusts the authority in `dir`.
pub fn upgraded_at(address: &str, dir: &Path, identity: Option<&Path>) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca-cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(dir) => {
            let cert = CertificateDer::from_pem_file(dir.join("client-cert.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(dir.join("client-key.pem")).unwrap();
            config.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut clear = Client::over(socket.try_clone().unwrap());
    clear.greet();
    clear.option(OPT_STARTTLS, b"");
    assert_eq!(clear.option_reply(OPT_STARTTLS).kind, REP_ACK);
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    Client::over(StreamOwned::new(tls, socket))
}

#[test]
fn mode_on_serves_clients_with_and_without_tls() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    let mut client = upgraded(&server, None);
    client.set_up();
    client.go("vol").unwrap();
    let data = vec![5; 3 << 20];
    assert_eq!(client.put(0, 4096, &data).error, 0);
    assert!(client.ask(0, CMD_READ, 4096, data.len() as u32).data == data);
    assert_eq!(client.ask(0, CMD_FLUSH, 0, 0).error, 0);
    let mut plain = Client::open(&server.socket(), "vol");
    assert!(plain.ask(0, CMD_READ, 4096, data.len() as u32).data == data);
}

#[test]
fn mode_require_refuses_all_options_without_tls() {
    let server = server(TlsMode::Require, ClientCertificates::Optional);
    let mut client = Client::greeted(&server.socket());
    for number in [OPT_LIST, OPT_STRUCTURED_REPLY, 4711] {
        client.option(number, b"");
        assert_eq!(client.option_reply(number).kind, REP_ERR_TLS_REQD);
    }
    assert_eq!(client.go("vol").unwrap_err().kind, REP_ERR_TLS_REQD);
    client.option(OPT_EXPORT_NAME, b"vol");
    client.assert_closed();
    let mut client = upgraded(&server, None);
    client.go("vol").unwrap();
    client.assert_alive();
}

#[test]
fn a_required_certificate_must_be_present_and_valid() {
    let server = server(TlsMode::Require, ClientCertificates::Required);
    let mut known = upgraded(&server, Some(server.dir.path()));
    known.go("vol").unwrap();
    known.assert_alive();
    let mut without = upgraded(&server, None);
    assert_refused(&mut without);
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    let mut stranger = upgraded(&server, Some(other.path()));
    assert_refused(&mut stranger);
}

#[test]
fn certificates_are_reloaded_unless_they_are_invalid() {
    let server = server(TlsMode::Require, ClientCertificates::Required);
    let dir = server.dir.path();
    let old = tempfile::tempdir().unwrap();
    for name in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::copy(dir.join(name), old.path().join(name)).unwrap();
    }
    let mut before = upgraded(&server, Some(dir));
    before.go("vol").unwrap();
    let old_client = || upgraded_at(&server.tcp(), old.path(), Some(old.path()));

    // With invalid files, the old certificates stay in use.
    certificates(dir);
    std::fs::write(dir.join("server-cert.pem"), "no certificate").unwrap();
    assert!(server.certificates.reload().is_err());
    assert!(old_client().go("vol").is_ok());

    certificates(dir);
    assert!(server.certificates.reload().unwrap());
    let mut new = upgraded(&server, Some(dir));
    new.go("vol").unwrap();
    new.assert_alive();
    before.assert_alive();
    assert_refused(&mut upgraded_at(&server.tcp(), dir, Some(old.path())));
    assert!(
        !TestServer::start().certificates.reload().unwrap(),
        "without TLS there are no certificates to reload"
    );
}

#[test]
fn a_key_that_other_users_can_access_is_refused() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    // Mode 640 depends on owner and group.
    for mode in [0o644, 0o660, 0o604, 0o620] {
        std::fs::set_permissions(server.dir.path().join("server-key.pem"), Permissions::from_mode(mode))
            .unwrap();
        let refused = server.certificates.reload().unwrap_err().to_string();
        assert!(refused.contains("chmod 600") && refused.contains(&format!("{mode:03o}")), "{refused}");
    }
}

#[test]
fn an_optional_certificate_must_be_valid() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    let mut stranger = upgraded(&server, Some(other.path()));
    assert_refused(&mut stranger);
}

/// Asserts that the server closes the connection without an answer. The TLS library determines at which point
/// of the handshake the client sees that.
pub fn assert_refused(client: &mut Client) {
    let bytes = option(OPT_LIST, b"");
    let sent = client.socket.write_all(&bytes).and_then(|()| client.socket.flush());
    let mut answer = [0; 20];
    assert!(sent.is_err() || client.socket.read_exact(&mut answer).is_err(), "{answer:?}");
}

#[test]
fn starttls_is_refused_in_mode_off() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_STARTTLS, b"");
    assert_eq!(client.option_reply(OPT_STARTTLS).kind, REP_ERR_POLICY);
    client.go("vol").unwrap();
    client.assert_alive();
}

#[test]
fn options_negotiated_before_starttls_are_discarded() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    let mut client = upgraded(&server, None);
    client.option(OPT_STARTTLS, b"");
    assert_eq!(client.option_reply(OPT_STARTTLS).kind, REP_ERR_INVALID, "TLS is already in use");
    client.option(OPT_LIST_META_CONTEXT, &super::client::meta("vol", &[]));
    assert_eq!(client.option_reply(OPT_LIST_META_CONTEXT).kind, REP_ERR_INVALID);
}

#[test]
fn plain_text_after_starttls_ends_the_connection() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    let mut client = Client::greeted(&server.socket());
    client.send(&[option(OPT_STARTTLS, b""), option(OPT_LIST, b"")].concat());
    client.assert_closed();
}

#[test]
fn an_invalid_handshake_ends_the_connection() {
    let server = server(TlsMode::On, ClientCertificates::Optional);
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_STARTTLS, b"");
    assert_eq!(client.option_reply(OPT_STARTTLS).kind, REP_ACK);
    client.send(&[0x55; 100]);
    // The server may send an alert.
    let mut rest = Vec::new();
    let _ = client.socket.read_to_end(&mut rest);
    assert!(rest.len() < 100);
    server.wait_until_alone();
}
