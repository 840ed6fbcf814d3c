//! The names in a client's verified certificate, for access control.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// DER tags (X.690, 8.1.2).
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// id-at-commonName, 2.5.4.3 (RFC 5280, appendix A.1).
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// The names in a certificate, unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CertificateNames {
    /// Common names of the certificate's subject.
    pub common: Vec<String>,
    /// Subject alternative names of type dNSName.
    pub dns: Vec<String>,
    /// Subject alternative names of type uniformResourceIdentifier.
    pub uri: Vec<String>,
}

impl CertificateNames {
    /// Reads the names in a certificate. A certificate that cannot be parsed has no names.
    pub fn of(certificate: &CertificateDer<'_>) -> CertificateNames {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else {
            return CertificateNames::default();
        };
        CertificateNames {
            common: common_names(certificate.subject()),
            dns: certificate.valid_dns_names().map(str::to_owned).collect(),
            uri: certificate.valid_uri_names().map(str::to_owned).collect(),
        }
    }
}

/// The common names in `subject`, the contents of an RDNSequence (RFC 5280, 4.1.2.4): sets of sequences of a
/// type and a value. Any other form ends the search. Values of other string types than these three are
/// ignored.
fn common_names(mut subject: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    while let Some((SET, mut set)) = element(&mut subject) {
        while let Some((SEQUENCE, mut attribute)) = element(&mut set) {
            let (kind, value) = (element(&mut attribute), element(&mut attribute));
            if kind == Some((OBJECT_IDENTIFIER, &COMMON_NAME))
                && let Some((UTF8_STRING | PRINTABLE_STRING | IA5_STRING, text)) = value
                && let Ok(text) = str::from_utf8(text)
            {
                found.push(text.to_owned());
            }
        }
    }
    found
}

/// Takes one element off the front: its tag and contents. `None` at the end, or if the encoding is invalid.
fn element<'a>(input: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let len = match first {
        0..=0x7f => usize::from(first),
        0x81 | 0x82 => {
            let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))
        }
        _ => return None,
    };
    let (contents, after) = rest.split_at_checked(len)?;
    *input = after;
    Some((tag, contents))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_are_read_unchanged() {
        let mut params = CertificateParams::new(vec!["a.example.org".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://x/y".try_into().unwrap()));
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "CN=not me");
        name.push(DnType::CommonName, DnValue::Utf8String(format!("hööst-{}", "x".repeat(200))));
        params.distinguished_name = name;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names = CertificateNames::of(certificate.der());
        assert_eq!(names.common, [format!("hööst-{}", "x".repeat(200))]);
        assert_eq!((names.dns, names.uri), (vec!["a.example.org".into()], vec!["spiffe://x/y".into()]));
    }

    #[test]
    fn truncated_values_and_other_string_types_are_ignored() {
        let cn = |tag: u8, text: &[u8]| {
            let value = [&[tag, text.len() as u8], text].concat();
            let attribute = [&[0x06, 3, 0x55, 4, 3], value.as_slice()].concat();
            let sequence = [&[0x30, attribute.len() as u8], attribute.as_slice()].concat();
            [&[0x31, sequence.len() as u8], sequence.as_slice()].concat()
        };
        let two = [cn(0x13, b"one"), cn(0x0c, b"two")].concat();
        assert_eq!(common_names(&two), ["one", "two"]);
        for end in 0..two.len() {
            assert!(common_names(&two[..end]).len() < 2);
        }
        assert!(common_names(&cn(0x1e, b"\0o\0n")).is_empty(), "BMPString");
        assert!(common_names(&cn(0x0c, b"\xff")).is_empty());
        assert!(common_names(&[0x31, 0x84, 0xff, 0xff, 0xff, 0xff]).is_empty());
    }
}
