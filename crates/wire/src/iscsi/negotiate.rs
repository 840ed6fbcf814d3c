//! Negotiation of the operational keys (RFC 7143, 13): the offers of an initiator, and the answers of this
//! target.

use super::pdu::Digests;
use super::text::{number, push};

/// The negotiated parameters of a session. The lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The digests that PDUs carry.
    pub digests: Digests,
    /// Data that is not immediate waits for an R2T.
    pub initial_r2t: bool,
    /// A command may carry data.
    pub immediate_data: bool,
    /// Maximum data segment that the initiator accepts, in bytes.
    pub max_send: usize,
    /// Maximum bytes of a sequence of Data-In, or of Data-Out for one R2T.
    pub max_burst: usize,
    /// Maximum bytes of unsolicited data of a command, immediate data included.
    pub first_burst: usize,
    /// Maximum number of R2Ts of a command at the same time.
    pub max_outstanding_r2t: usize,
}

impl Default for Parameters {
    /// The defaults without negotiation (13.1 to 13.20).
    fn default() -> Parameters {
        Parameters {
            digests: Digests::default(),
            initial_r2t: true,
            immediate_data: true,
            max_send: 8192,
            max_burst: 256 << 10,
            first_burst: 64 << 10,
            max_outstanding_r2t: 1,
        }
    }
}

/// The limits of this target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Maximum data segment that the target accepts, in bytes.
    pub max_recv: usize,
    /// See [`Parameters::max_burst`].
    pub max_burst: usize,
    /// See [`Parameters::first_burst`].
    pub first_burst: usize,
    /// See [`Parameters::max_outstanding_r2t`].
    pub max_outstanding_r2t: usize,
}

/// Answers keys, and records the agreed values.
#[derive(Debug)]
pub struct Negotiator {
    offer: Offer,
    parameters: Parameters,
    declared: bool,
}

/// Largest length that a key may state.
const MAX_LENGTH: u64 = (1 << 24) - 1;

impl Negotiator {
    /// A negotiation without any keys so far.
    pub fn new(offer: Offer) -> Negotiator {
        Negotiator { offer, parameters: Parameters::default(), declared: false }
    }

    /// The values agreed on so far.
    pub fn parameters(&self) -> Parameters {
        let mut agreed = self.parameters;
        agreed.first_burst = agreed.first_burst.min(agreed.max_burst);
        agreed
    }

    /// Answers a key. In a `discovery` session the keys for data transfer are irrelevant.
    pub fn answer(&mut self, key: &str, value: &str, discovery: bool, out: &mut Vec<u8>) {
        let p = &mut self.parameters;
        let reply = match key {
            "HeaderDigest" => digest(value, &mut p.digests.header),
            "DataDigest" => digest(value, &mut p.digests.data),
            "MaxRecvDataSegmentLength" => match length(value) {
                Some(len) => {
                    p.max_send = len;
                    return;
                }
                None => "Reject".into(),
            },
            "MaxConnections" => least(value, 1, 65535, 1, |_| ()),
            "ErrorRecoveryLevel" => least(value, 0, 2, 0, |_| ()),
            "DefaultTime2Wait" => match number(value) {
                Some(n @ 0..=3600) => n.max(2).to_string(),
                _ => "Reject".into(),
            },
            "DefaultTime2Retain" => least(value, 0, 3600, 0, |_| ()),
            "TaskReporting" => "RFC3720".into(),
            "iSCSIProtocolLevel" => least(value, 0, 31, 1, |_| ()),
            "IFMarker" | "OFMarker" => "No".into(),
            "IFMarkInt" | "OFMarkInt" => "Irrelevant".into(),
            "InitialR2T"
            | "ImmediateData"
            | "MaxBurstLength"
            | "FirstBurstLength"
            | "MaxOutstandingR2T"
            | "DataPDUInOrder"
            | "DataSequenceInOrder"
                if discovery =>
            {
                "Irrelevant".into()
            }
            "InitialR2T" => either(value, false, |yes| p.initial_r2t = yes),
            "ImmediateData" => match yes_or_no(value) {
                Some(yes) => {
                    p.immediate_data = yes;
                    value.into()
                }
                None => "Reject".into(),
            },
            "MaxBurstLength" => {
                least(value, 512, MAX_LENGTH, self.offer.max_burst as u64, |n| p.max_burst = n as usize)
            }
            "FirstBurstLength" => {
                least(value, 512, MAX_LENGTH, self.offer.first_burst as u64, |n| p.first_burst = n as usize)
            }
            "MaxOutstandingR2T" => least(value, 1, 65535, self.offer.max_outstanding_r2t as u64, |n| {
                p.max_outstanding_r2t = n as usize;
            }),
            "DataPDUInOrder" | "DataSequenceInOrder" => either(value, true, |_| ()),
            _ => "NotUnderstood".into(),
        };
        push(out, key, &reply);
    }

    /// Declares the limits of this target, once.
    pub fn declare(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.declared, true) {
            push(out, "MaxRecvDataSegmentLength", &self.offer.max_recv.to_string());
        }
    }
}

fn length(value: &str) -> Option<usize> {
    number(value).filter(|n| (512..=MAX_LENGTH).contains(n)).map(|n| n as usize)
}

/// Agrees on the minimum of both offers.
fn least(value: &str, min: u64, max: u64, mine: u64, keep: impl FnOnce(u64)) -> String {
    match number(value).filter(|n| (min..=max).contains(n)) {
        Some(theirs) => {
            let agreed = theirs.min(mine);
            keep(agreed);
            agreed.to_string()
        }
        None => "Reject".into(),
    }
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Agrees on `Yes` if either side offers it.
fn either(value: &str, mine: bool, keep: impl FnOnce(bool)) -> String {
    match yes_or_no(value) {
        Some(theirs) => {
            keep(theirs || mine);
            if theirs || mine { "Yes".into() } else { "No".into() }
        }
        None => "Reject".into(),
    }
}

/// Chooses the first offered digest that is supported.
fn digest(value: &str, on: &mut bool) -> String {
    match value.split(',').find(|d| matches!(*d, "CRC32C" | "None")) {
        Some(chosen) => {
            *on = chosen == "CRC32C";
            chosen.into()
        }
        None => "Reject".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer =
        Offer { max_recv: 65536, max_burst: 1 << 20, first_burst: 128 << 10, max_outstanding_r2t: 4 };

    fn answer(n: &mut Negotiator, key: &str, value: &str) -> String {
        let mut out = Vec::new();
        n.answer(key, value, false, &mut out);
        String::from_utf8(out).unwrap().trim_end_matches('\0').into()
    }

    #[test]
    fn each_key_is_answered_by_its_rule() {
        let mut n = Negotiator::new(OFFER);
        for (key, value, reply) in [
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("DataDigest", "X-foo,None", "None"),
            ("DataDigest", "X-foo", "Reject"),
            ("InitialR2T", "No", "No"),
            ("ImmediateData", "No", "No"),
            ("MaxBurstLength", "16776192", "1048576"),
            ("FirstBurstLength", "0x10000", "65536"),
            ("FirstBurstLength", "511", "Reject"),
            ("MaxOutstandingR2T", "1", "1"),
            ("MaxConnections", "8", "1"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("DataPDUInOrder", "No", "Yes"),
            ("DefaultTime2Wait", "0", "2"),
            ("DefaultTime2Retain", "20", "0"),
            ("OFMarker", "Yes", "No"),
            ("X-com.example.thing", "1", "NotUnderstood"),
        ] {
            assert_eq!(answer(&mut n, key, value), format!("{key}={reply}"));
        }
        assert_eq!(answer(&mut n, "MaxRecvDataSegmentLength", "262144"), "", "declarations are not answered");
        let p = n.parameters();
        assert_eq!((p.max_send, p.max_burst, p.first_burst), (262144, 1 << 20, 65536));
        assert!(p.digests.header && !p.digests.data && !p.initial_r2t && !p.immediate_data);
    }

    #[test]
    fn the_first_burst_is_at_most_the_maximum_burst() {
        let mut n = Negotiator::new(OFFER);
        answer(&mut n, "MaxBurstLength", "4096");
        answer(&mut n, "FirstBurstLength", "65536");
        assert_eq!(n.parameters().first_burst, 4096);
    }
}
