//! A client of the server's API over its control socket: one connection, one request at a time. Running the
//! command line once per request would use more CPU than the requests themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::error::{During, Error, Result};

/// A connection to the control socket of a server.
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Connects to a control socket.
    pub fn connect(socket: &Path) -> Result<Control> {
        let stream =
            UnixStream::connect(socket).during(|| format!("cannot connect to {}", socket.display()))?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Makes a request that must succeed.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let what = || format!("{method} {path}");
        let status = self.exchange(method, path, body).during(what)?;
        match status {
            200..=299 => Ok(()),
            _ => Err(Error::Command { command: what(), stderr: format!("status {status}") }),
        }
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<u16> {
        let request = format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nX-Forebay: 1\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.0.get_mut().write_all(request.as_bytes())?;
        let unusable = || std::io::Error::other("no HTTP");
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if let Some((name, value)) = line.split_once(':') {
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse().map_err(|_| unusable())?;
                }
            } else if line.is_empty() {
                break;
            } else {
                status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
            }
        }
        self.0.read_exact(&mut vec![0; length])?;
        status.ok_or_else(unusable)
    }
}
