//! The table of targets as a document in the pool; see [`crate::document`].

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Table, Target};

/// Name of the document.
pub(super) const NAME: &str = "targets";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<T> {
    version: u32,
    /// The number of the next target.
    next_number: u32,
    targets: Vec<T>,
}

pub(super) fn encode(table: &Table) -> Vec<u8> {
    let targets: Vec<&Target> = table.targets.values().map(|target| &**target).collect();
    let document = Document { version: VERSION, next_number: table.next_number, targets };
    serde_json::to_vec(&document).expect("names and numbers can be represented in JSON")
}

/// Decodes a document; the error states the defect.
pub(super) fn decode(bytes: &[u8]) -> Result<Table, String> {
    let document: Document<Target> = crate::document::decode(bytes, VERSION, ["it is", "it has"])?;
    if document.next_number == 0 {
        return Err("it is damaged: next_number is 0".into());
    }
    let mut numbers = BTreeSet::new();
    let mut table = Table { next_number: document.next_number, ..Table::default() };
    for target in document.targets {
        target.check().map_err(|e| format!("it is damaged: {e}"))?;
        let number = target.number;
        if number == 0 || u32::from(number) >= table.next_number || !numbers.insert(number) {
            return Err(format!("it is damaged: target {} has the number {number}", target.name));
        }
        if let Some(other) = table.targets.insert(target.name.clone(), Arc::new(target)) {
            return Err(format!("it is damaged: target {} is listed twice", other.name));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"next_number":8,"targets":[{"name":"iqn.2026-01.org.example:a","number":7,
        "open":false,"chap":{"user":"u","secret":"twelve bytes"},"mutual":null,
        "luns":{"0":{"disk":"v","read_only":false,"write_back":true},"255":{"disk":"v@s","read_only":true,"write_back":false}},
        "initiators":[{"name":"iqn.1993-08.org.debian:01:x","chap":null,"luns":[0]}]}]}"#;

    #[test]
    fn an_encoded_table_decodes_to_the_same() {
        let table = decode(GOOD.as_bytes()).unwrap();
        let target = table.targets.values().next().unwrap();
        assert_eq!((target.number, target.luns[&255].disk.as_str(), table.next_number), (7, "v@s", 8));
        assert_eq!(target.chap.as_ref().unwrap().secret.reveal(), "twelve bytes");
        assert!(!format!("{table:?}").contains("twelve"), "{table:?}");
        let again = decode(&encode(&table)).unwrap();
        assert_eq!((again.targets, again.next_number), (table.targets.clone(), 8));
    }

    #[test]
    fn invalid_documents_are_refused() {
        for (from, to, why) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"version\":1,", "", "missing field `version`"),
            ("\"open\":false", "\"open\":false,\"alua\":1", "unknown field `alua`"),
            ("\"next_number\":8", "\"next_number\":7", "number 7"),
            ("\"number\":7", "\"number\":0", "number 0"),
            ("\"next_number\":8", "\"next_number\":0", "next_number is 0"),
            ("\"number\":7", "\"number\":65536", "damaged"),
            ("\"255\"", "\"256\"", "256 cannot be a LUN"),
            ("v@s", "v", "'v' is LUN 0"),
            ("[0]", "[1]", "no LUN 1"),
            ("twelve bytes", "short", "shorter than 12"),
            ("iqn.2026-01.org.example:a", "a", "not an iSCSI or NVMe name"),
            ("]}]}", "]}]", "damaged"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = decode(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{to}: {error}");
        }
        let start = GOOD.find("{\"name\"").unwrap();
        let one = &GOOD[start..GOOD.len() - 2];
        for other in [one.to_owned(), one.replace(":a", ":b")] {
            let twice = format!("{}{one},{other}]}}", &GOOD[..start]);
            assert!(decode(twice.as_bytes()).is_err(), "{twice}");
        }
        assert!(decode(b"").is_err());
    }
}
