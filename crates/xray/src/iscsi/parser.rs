//! The parser of the PDU stream. It makes the same calls however the stream is split into reads, and passes
//! data without a copy, so that a load that ignores data never copies it.

use super::IscsiError;
use super::pdu::{BHS, Reply, padding};

/// The receiver of parsed PDUs.
pub trait Sink {
    /// A header is complete.
    fn begin(&mut self, header: &Reply) -> Result<(), IscsiError>;
    /// A piece of its data, starting at `at`.
    fn data(&mut self, header: &Reply, at: usize, bytes: &[u8]);
    /// The PDU is complete.
    fn end(&mut self, header: &Reply) -> Result<(), IscsiError>;
}

/// The parser's state between two reads of the socket.
#[derive(Debug)]
pub struct Parser {
    header: Reply,
    /// Bytes of the header received.
    staged: usize,
    /// Bytes of data and padding received.
    at: usize,
}

impl Default for Parser {
    fn default() -> Self {
        Parser { header: Reply([0; BHS]), staged: 0, at: 0 }
    }
}

impl Parser {
    /// Parses all of `input`.
    pub fn feed(&mut self, mut input: &[u8], sink: &mut impl Sink) -> Result<(), IscsiError> {
        while !input.is_empty() {
            if self.staged < BHS {
                let n = (BHS - self.staged).min(input.len());
                self.header.0[self.staged..self.staged + n].copy_from_slice(&input[..n]);
                self.staged += n;
                input = &input[n..];
                if self.staged < BHS {
                    return Ok(());
                }
                if self.header.additional() > 0 {
                    return Err(IscsiError::Protocol("additional header segments"));
                }
                sink.begin(&self.header)?;
            }
            let len = self.header.data_len();
            let n = len.saturating_sub(self.at).min(input.len());
            if n > 0 {
                sink.data(&self.header, self.at, &input[..n]);
                (self.at, input) = (self.at + n, &input[n..]);
            }
            let whole = len + padding(len);
            let skipped = (whole - self.at).min(input.len());
            (self.at, input) = (self.at + skipped, &input[skipped..]);
            if self.at == whole {
                (self.staged, self.at) = (0, 0);
                sink.end(&self.header)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, PartialEq, Debug)]
    struct Seen(Vec<(u8, Vec<u8>, bool)>);

    impl Sink for Seen {
        fn begin(&mut self, header: &Reply) -> Result<(), IscsiError> {
            self.0.push((header.opcode(), Vec::new(), false));
            Ok(())
        }
        fn data(&mut self, header: &Reply, at: usize, bytes: &[u8]) {
            let (opcode, data, whole) = self.0.last_mut().expect("a PDU has begun");
            assert_eq!((*opcode, data.len(), *whole), (header.opcode(), at, false));
            data.extend_from_slice(bytes);
        }
        fn end(&mut self, _: &Reply) -> Result<(), IscsiError> {
            self.0.last_mut().expect("a PDU has begun").2 = true;
            Ok(())
        }
    }

    fn pdu(opcode: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; BHS];
        (bytes[0], bytes[7]) = (opcode, data.len() as u8);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0xee);
        bytes
    }

    #[test]
    fn every_split_of_the_stream_gives_the_same_pdus() {
        let stream =
            [pdu(0x25, b"hello"), pdu(0x21, b""), pdu(0x31, b"four"), pdu(0x20, b"x"), pdu(0x21, b"")]
                .concat();
        let mut whole = Seen::default();
        Parser::default().feed(&stream, &mut whole).expect("parses");
        let told: Vec<_> = whole.0.iter().map(|(o, d, w)| (*o, &d[..], *w)).collect();
        assert_eq!(
            told,
            [
                (0x25, &b"hello"[..], true),
                (0x21, b"", true),
                (0x31, b"four", true),
                (0x20, b"x", true),
                (0x21, b"", true)
            ]
        );
        for step in 1..stream.len() {
            let (mut parser, mut seen) = (Parser::default(), Seen::default());
            for part in stream.chunks(step) {
                parser.feed(part, &mut seen).expect("parses");
            }
            assert_eq!(seen, whole, "cut into pieces of {step}");
        }
    }

    #[test]
    fn additional_headers_are_an_error() {
        let mut bytes = pdu(0x21, b"");
        bytes[4] = 1;
        assert!(Parser::default().feed(&bytes, &mut Seen::default()).is_err());
    }
}
