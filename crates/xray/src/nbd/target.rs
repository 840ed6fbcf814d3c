//! The address of a server: `unix:PATH` or `HOST:PORT`.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_parsed_and_others_rejected() {
        assert_eq!("unix:/a b".parse(), Ok(Target::Unix("/a b".into())));
        assert_eq!("[::1]:10809".parse(), Ok(Target::Tcp("[::1]:10809".into())));
        for bad in ["", "unix:", "host", ":1", "host:", "host:70000"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }
}
