//! The address of a server: `unix:PATH` or `HOST:PORT`; with an export, as an NBD URI.

use std::path::PathBuf;
use std::str::FromStr;

/// The address of an NBD server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A UNIX socket.
    Unix(PathBuf),
    /// Host and port, in the resolver's format.
    Tcp(String),
}

/// An address that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid address \"{0}\": use unix:PATH or HOST:PORT")]
pub struct TargetError(String);

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let bad = || TargetError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Target::Unix(path.into())) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(bad());
        }
        Ok(Target::Tcp(text.to_owned()))
    }
}

/// Default port of NBD.
const PORT: u16 = 10809;

/// The address of a server, and the export if the address is an NBD URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri {
    /// The server.
    pub target: Target,
    /// The export, if a URI names it.
    pub export: Option<String>,
}

/// An address that is neither of the forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not an address.
    #[error(
        "invalid address \"{0}\": use unix:PATH, HOST:PORT, nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH"
    )]
    Bad(String),
    /// The URI requires TLS.
    #[error("\"{0}\" requires TLS, which loads do not use; add a listener without TLS for the measurement")]
    Tls(String),
}

/// Parses the two short forms, and the URIs that `forebay volume connect` and libnbd use.
impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let bad = || UriError::Bad(text.to_owned());
        if text.starts_with("nbds") {
            return Err(UriError::Tls(text.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (export, query) = rest.split_once('?').ok_or_else(bad)?;
            let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket=")).ok_or_else(bad)?;
            let (export, socket) = (decode(export).ok_or_else(bad)?, decode(socket).ok_or_else(bad)?);
            return Ok(Uri { target: Target::Unix(socket.into()), export: Some(export) });
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
            let has_port = server.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            let server = if has_port { server.to_owned() } else { format!("{server}:{PORT}") };
            let target = server.parse().map_err(|_| bad())?;
            return Ok(Uri { target, export: Some(decode(export).ok_or_else(bad)?) });
        }
        Ok(Uri { target: text.parse().map_err(|_| bad())?, export: None })
    }
}

/// Decodes a part of a URI; `None` if it is not UTF-8.
fn decode(part: &str) -> Option<String> {
    Some(percent_encoding::percent_decode_str(part).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_server_and_export() {
        let parsed = |text: &str| text.parse::<Uri>().map(|found| (found.target, found.export));
        let unix = |path: &str| Target::Unix(path.into());
        let tcp = |address: &str| Target::Tcp(address.into());
        let export = |name: &str| Some(name.to_owned());
        assert_eq!(parsed("nbd+unix:///pc%401?socket=/run/a%20b"), Ok((unix("/run/a b"), export("pc@1"))));
        assert_eq!(parsed("nbd://host/v"), Ok((tcp("host:10809"), export("v"))));
        assert_eq!(parsed("nbd://[::1]/v"), Ok((tcp("[::1]:10809"), export("v"))));
        assert_eq!(parsed("nbd://[::1]:7/a%2Fb"), Ok((tcp("[::1]:7"), export("a/b"))));
        assert_eq!(parsed("nbd://host:7"), Ok((tcp("host:7"), export(""))));
        assert_eq!(parsed("unix:/a"), Ok((unix("/a"), None)));
        assert!(matches!(parsed("nbds://host/v"), Err(UriError::Tls(_))));
        for bad in ["nbd+unix:///v", "nbd://", "nbd://:1/v", "nbd://host/%ff", "http://host/v"] {
            assert!(matches!(parsed(bad), Err(UriError::Bad(_))), "{bad}: {:?}", parsed(bad));
        }
    }

    #[test]
    fn both_forms_are_parsed_and_others_rejected() {
        assert_eq!("unix:/a b".parse(), Ok(Target::Unix("/a b".into())));
        assert_eq!("[::1]:10809".parse(), Ok(Target::Tcp("[::1]:10809".into())));
        for bad in ["", "unix:", "host", ":1", "host:", "host:70000"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
