//! The audit log: one event for each request that changes state or is denied, and for each login.
//!
//! Events go to the log of the server (target `audit`), and as lines of JSON to a file if one is configured.
//! The file is only appended to, one `write` for each event; it is opened again on SIGHUP, so that it can be
//! rotated. Events have no secrets: paths and names only.

use std::borrow::Cow;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_api::Role;
use forebay_host::clock::unix_ms;
use forebay_text::{quoted, shorten};
use parking_lot::Mutex;
use serde::Serialize;

use super::principal::{Principal, Via};

/// Maximum length of a path in an event, and in the log, in bytes; the path of a request may have many KiB.
pub(crate) const MAX_PATH: usize = 256;

/// Maximum length of a method in an event, in bytes.
const MAX_METHOD: usize = 16;

/// An event of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditRecord<'a> {
    /// Time of the event in Unix milliseconds.
    time_ms: u64,
    /// Name of the principal; `None` for a client without a principal.
    who: Option<&'a str>,
    role: Option<Role>,
    via: Option<Via>,
    /// Address of the client; `None` if the client does not use TCP.
    from: Option<IpAddr>,
    method: Cow<'a, str>,
    path: Cow<'a, str>,
    /// HTTP status of the response.
    status: u16,
    /// Code of the error; `None` if the request succeeded.
    code: Option<&'a str>,
}

impl<'a> AuditRecord<'a> {
    /// The event of a request. A long path is shortened.
    pub fn new(
        principal: Option<&'a Principal>,
        from: Option<IpAddr>,
        (method, path): (&'a str, &'a str),
        (status, code): (u16, Option<&'a str>),
    ) -> AuditRecord<'a> {
        AuditRecord {
            time_ms: unix_ms(),
            who: principal.map(|p| &*p.name),
            role: principal.map(|p| p.role),
            via: principal.map(|p| p.via),
            from,
            method: shorten(method, MAX_METHOD),
            path: shorten(path, MAX_PATH),
            status,
            code,
        }
    }
}

/// The event as a sentence: who, what, and with which result.
impl fmt::Display for AuditRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who {
            Some(who) => quoted(who).fmt(f)?,
            None => f.write_str("a client without a valid token")?,
        }
        let role = self.role.map(|role| role.name().to_owned());
        // The names of clients without a token state how they connected.
        let by_token = |via: &Via| matches!(via, Via::Token | Via::Session);
        let via = self.via.filter(by_token).map(|via| format!("by {}", via.name()));
        let from = self.from.map(|address| format!("from {address}"));
        let details: Vec<String> = [role, via, from].into_iter().flatten().collect();
        if !details.is_empty() {
            write!(f, " ({})", details.join(", "))?;
        }
        let result = match self.status {
            ..=399 => "succeeded",
            401 | 403 => "was refused",
            _ => "failed",
        };
        // The result is written before the text that the client chose.
        write!(f, ": {result} ({}", self.status)?;
        self.code.map_or(Ok(()), |code| write!(f, " {code}"))?;
        write!(f, "): {} {}", self.method, quoted(&self.path))
    }
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: File,
}

/// The audit log.
#[derive(Debug, Default)]
pub struct Audit(Option<Mutex<Output>>);

impl Audit {
    /// Opens the file, if one is configured; creates it with mode 0600.
    ///
    /// # Errors
    /// Those of the file.
    pub fn open(path: Option<&Path>) -> io::Result<Audit> {
        let output = |path: &Path| Ok::<_, io::Error>(Output { path: path.to_owned(), file: append(path)? });
        Ok(Audit(path.map(output).transpose()?.map(Mutex::new)))
    }

    /// Opens the file again, after a rotation.
    ///
    /// # Errors
    /// Those of the file; the one in use stays in use.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(output) = &self.0 {
            let mut output = output.lock();
            output.file = append(&output.path)?;
        }
        Ok(())
    }

    /// Writes an event. A failure is logged: the request was done already.
    pub fn write(&self, record: &AuditRecord<'_>) {
        let AuditRecord { who, status, code, .. } = record;
        let (role, via) = (record.role.map(Role::name), record.via.map(Via::name));
        let from = record.from.map(|address| address.to_string());
        let (method, path) = (&*record.method, &*record.path);
        tracing::info!(target: "audit", who, role, via, from, method, path, status, code, "{record}");
        let Some(output) = &self.0 else { return };
        let Ok(line) = serde_json::to_string(record) else { return };
        // The escapes of JSON keep a name from forging lines or controlling a terminal.
        let line = format!("{}\n", forebay_text::json(&line));
        if let Err(error) = output.lock().file.write_all(line.as_bytes()) {
            tracing::error!(%error, "cannot write the audit log");
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_shortened() {
        let long = format!("/api/v1/volumes/{}", "v".repeat(45_000));
        let record = AuditRecord::new(None, None, ("DELETE", &long), (404, None));
        assert_eq!(record.path, format!("{}…", &long[..MAX_PATH]));
        assert!(serde_json::to_string(&record).unwrap().len() < 2 * MAX_PATH);
    }

    #[test]
    fn an_event_is_a_sentence_without_absent_fields() {
        let principal = Principal::local();
        let from = Some(IpAddr::from([192, 0, 2, 1]));
        let create = ("POST", "/api/v1/volumes");
        let by = |principal, from, result| AuditRecord::new(principal, from, create, result).to_string();
        let done = "'control socket' (administrator): succeeded (201): POST '/api/v1/volumes'";
        assert_eq!(by(Some(&principal), None, (201, None)), done);
        let failed =
            "'control socket' (administrator, from 192.0.2.1): failed (409 exists): POST '/api/v1/volumes'";
        assert_eq!(by(Some(&principal), from, (409, Some("exists"))), failed);
        let session = Principal { name: "loopback".into(), via: Via::Session, ..Principal::local() };
        let done = "'loopback' (administrator, by session): succeeded (201): POST '/api/v1/volumes'";
        assert_eq!(by(Some(&session), None, (201, None)), done);
        let refused = "a client without a valid token (from 192.0.2.1): was refused (401 bad_token): POST '/api/v1/volumes'";
        assert_eq!(by(None, from, (401, Some("bad_token"))), refused);
    }

    #[test]
    fn events_are_lines_of_json_and_the_file_can_be_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let (path, rotated) = (dir.path().join("audit.log"), dir.path().join("audit.log.1"));
        let audit = Audit::open(Some(&path)).unwrap();
        let principal = Principal::local();
        let request = ("DELETE", "/api/v1/volumes/a\u{202e}\nb");
        audit.write(&AuditRecord::new(Some(&principal), None, request, (409, Some("in_use"))));
        std::fs::rename(&path, &rotated).unwrap();
        audit.reopen().unwrap();
        let from = Some(IpAddr::from([192, 0, 2, 1]));
        audit.write(&AuditRecord::new(None, from, ("GET", "/api/v1/pool"), (401, Some("bad_token"))));

        let line = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(!text.contains('\u{202e}'));
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        };
        let first = line(&rotated);
        assert_eq!((&first["who"], &first["code"]), (&"control socket".into(), &"in_use".into()));
        assert_eq!(first["path"], request.1);
        let second = line(&path);
        assert_eq!((&second["who"], &second["from"]), (&serde_json::Value::Null, &"192.0.2.1".into()));
        assert_eq!(forebay_host::modes::open_to_others(&path), None);
    }
}
