//! Login (RFC 7143, 6) without authentication, with parameters for low overhead of small and large requests.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::IscsiError;
use super::pdu::{self, BHS, FINAL, Numbers, Reply, opcode, padding};

/// Security negotiation, operational negotiation, full feature phase (11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;
/// Maximum number of responses of a target to one stage of the login.
const MAX_ANSWERS: usize = 16;

/// Maximum data segment that this initiator accepts, in bytes.
const MAX_RECV: usize = 256 << 10;

/// The parameters that initiator and target have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Whether data that is not immediate requires an R2T.
    pub initial_r2t: bool,
    /// Whether a command PDU may contain data.
    pub immediate_data: bool,
    /// Maximum data segment that the target accepts, in bytes.
    pub max_send: usize,
    /// Maximum bytes of data for one R2T.
    pub max_burst: usize,
    /// Maximum bytes of unsolicited data of a command, immediate data included.
    pub first_burst: usize,
}

impl Default for Agreed {
    /// The values of the standard for keys that are not negotiated.
    fn default() -> Agreed {
        Agreed {
            initial_r2t: true,
            immediate_data: true,
            max_send: 8192,
            max_burst: 256 << 10,
            first_burst: 64 << 10,
        }
    }
}

impl Agreed {
    /// Applies the keys that the target answered or declared.
    fn hear(&mut self, text: &[u8]) -> Result<(), IscsiError> {
        let text = str::from_utf8(text).map_err(|_| IscsiError::Protocol("text that is not UTF-8"))?;
        for pair in text.split('\0').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or(IscsiError::Protocol("text without an equals sign"))?;
            let length = || match value.parse() {
                Ok(n @ 512..=0xff_ffff) => Ok(n),
                _ => Err(IscsiError::Protocol("an invalid length")),
            };
            match key {
                "MaxRecvDataSegmentLength" => self.max_send = length()?,
                "MaxBurstLength" => self.max_burst = length()?,
                "FirstBurstLength" => self.first_burst = length()?,
                "InitialR2T" => self.initial_r2t = value == "Yes",
                "ImmediateData" => self.immediate_data = value == "Yes",
                "HeaderDigest" | "DataDigest" | "AuthMethod" if value != "None" => {
                    return Err(IscsiError::Protocol("a choice that was not offered"));
                }
                "DataPDUInOrder" | "DataSequenceInOrder" if value != "Yes" => {
                    return Err(IscsiError::Protocol("data out of order"));
                }
                _ => {}
            }
        }
        self.first_burst = self.first_burst.min(self.max_burst);
        Ok(())
    }
}

/// The result of a successful login.
#[derive(Debug)]
pub struct LoggedIn {
    pub agreed: Agreed,
    /// The numbers of the first command.
    pub numbers: Numbers,
    pub max_cmd_sn: u32,
}

/// Logs in. The stream must be blocking.
pub fn login(
    stream: &mut (impl Read + Write),
    initiator: &str,
    target: &str,
    isid: &[u8; 6],
) -> Result<LoggedIn, IscsiError> {
    let names =
        format!("InitiatorName={initiator}\0TargetName={target}\0SessionType=Normal\0AuthMethod=None\0");
    let wishes = format!(
        "HeaderDigest=None\0DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0MaxRecvDataSegmentLength={MAX_RECV}\0\
         MaxBurstLength=1048576\0FirstBurstLength=262144\0MaxOutstandingR2T=4\0MaxConnections=1\0\
         ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0"
    );
    let mut exchange = Exchange { stream, isid, agreed: Agreed::default(), numbers: Numbers::default() };
    exchange.numbers.cmd_sn = 1;
    exchange.stage((SECURITY, OPERATIONAL), &names)?;
    let last = exchange.stage((OPERATIONAL, FULL_FEATURE), &wishes)?;
    Ok(LoggedIn { agreed: exchange.agreed, numbers: exchange.numbers, max_cmd_sn: last.max_cmd_sn() })
}

struct Exchange<'a, S> {
    stream: &'a mut S,
    isid: &'a [u8; 6],
    agreed: Agreed,
    numbers: Numbers,
}

impl<S: Read + Write> Exchange<'_, S> {
    /// Sends `text` and continues until the target allows the next stage.
    fn stage(&mut self, stages: (u8, u8), text: &str) -> Result<Reply, IscsiError> {
        let mut text = text.as_bytes();
        for _ in 0..MAX_ANSWERS {
            let mut request = pdu::login(stages, self.isid, self.numbers, text.len()).to_vec();
            request.extend_from_slice(text);
            request.resize(request.len() + padding(text.len()), 0);
            self.stream.write_all(&request)?;
            let answer = self.answer()?;
            // Only the target can have more text to send.
            text = &[];
            if answer.flag(FINAL) {
                return Ok(answer);
            }
        }
        Err(IscsiError::Protocol("an endless login"))
    }

    fn answer(&mut self) -> Result<Reply, IscsiError> {
        let mut header = [0; BHS];
        self.stream.read_exact(&mut header)?;
        let reply = Reply(header);
        if reply.opcode() != opcode::LOGIN_RESPONSE || reply.additional() > 0 {
            return Err(IscsiError::Protocol("a PDU other than a login response"));
        }
        let len = reply.data_len();
        let mut data = vec![0; len + padding(len)];
        self.stream.read_exact(&mut data)?;
        if reply.login_status() != 0 {
            return Err(IscsiError::Refused(reply.login_status()));
        }
        self.numbers.exp_stat_sn = reply.stat_sn().wrapping_add(1);
        self.agreed.hear(&data[..len])?;
        Ok(reply)
    }
}

/// Returns the ISID of an initiator's session number `n`: of the random type (11.12.5), and always the same,
/// so that a new session replaces a stale session.
pub fn isid(n: u16) -> [u8; 6] {
    let [high, low] = n.to_be_bytes();
    [0x80, b'F', b'B', b'X', high, low]
}

/// Connects with the options that every connection here uses.
pub fn connect(portal: &str) -> Result<TcpStream, IscsiError> {
    let stream = TcpStream::connect(portal)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(super::STALL))?;
    stream.set_write_timeout(Some(super::STALL))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// A target with prepared responses.
    struct Ready(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Ready {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Write for Ready {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answer(flags: u8, stat_sn: u8, status: u8, text: &str) -> Vec<u8> {
        let mut bytes = vec![0; BHS];
        (bytes[0], bytes[1], bytes[7], bytes[27]) = (0x23, flags, text.len() as u8, stat_sn);
        (bytes[35], bytes[36]) = (64, status);
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn log_in(answers: &[Vec<u8>]) -> (Result<LoggedIn, IscsiError>, Vec<u8>) {
        let mut stream = Ready(io::Cursor::new(answers.concat()), Vec::new());
        (login(&mut stream, "iqn.2026-01.org.example:i", "iqn.2026-01.org.example:t", &isid(1)), stream.1)
    }

    #[test]
    fn negotiated_values_are_used() {
        let (done, sent) = log_in(&[
            answer(0x81, 1, 0, "AuthMethod=None\0TargetPortalGroupTag=1\0"),
            answer(0x04, 2, 0, "InitialR2T=No\0FirstBurstLength=65536\0"),
            answer(0x87, 3, 0, "MaxRecvDataSegmentLength=32768\0MaxBurstLength=16384\0"),
        ]);
        let done = done.expect("logs in");
        assert_eq!((done.numbers.cmd_sn, done.numbers.exp_stat_sn, done.max_cmd_sn), (1, 4, 64));
        let wanted = Agreed {
            initial_r2t: false,
            immediate_data: true,
            max_send: 32768,
            max_burst: 16384,
            first_burst: 16384,
        };
        assert_eq!(done.agreed, wanted);
        assert!(sent.starts_with(&[0x43, 0x81]), "it begins with security, and may go on");
    }

    #[test]
    fn failed_logins_return_the_cause() {
        assert!(matches!(log_in(&[answer(0, 1, 2, "")]).0, Err(IscsiError::Refused(0x0200))));
        for bad in ["HeaderDigest=CRC32C\0", "AuthMethod=CHAP\0", "MaxBurstLength=7\0", "nothing\0"] {
            let (done, _) = log_in(&[answer(0x81, 1, 0, bad)]);
            assert!(matches!(done, Err(IscsiError::Protocol(_))), "{bad}");
        }
        let (done, _) = log_in(&vec![answer(0, 1, 0, ""); MAX_ANSWERS]);
        assert!(matches!(done, Err(IscsiError::Protocol(_))), "a target that never allows the next stage");
    }
}
