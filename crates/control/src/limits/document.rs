//! The limits as a document in the pool; see [`forebay_frontend::document`].

use forebay_api::LimitSet;
use serde::{Deserialize, Serialize};

use super::{Entry, Table};

/// Name of the document of limits.
pub(super) const NAME: &str = "limits";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    volumes: Vec<VolumeEntry>,
    tenants: Vec<TenantEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeEntry {
    /// UUID of the volume as 32 hexadecimal digits.
    uuid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    limits: LimitSet,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantEntry {
    name: String,
    limits: LimitSet,
}

pub(super) fn encode(table: &Table) -> Vec<u8> {
    let volume = |(uuid, entry): (&[u8; 16], &Entry)| VolumeEntry {
        uuid: format!("{:032x}", u128::from_be_bytes(*uuid)),
        tenant: entry.tenant.clone(),
        limits: entry.limits,
    };
    let tenant = |(name, limits): (&String, &LimitSet)| TenantEntry { name: name.clone(), limits: *limits };
    let document = Document {
        version: VERSION,
        volumes: table.volumes.iter().map(volume).collect(),
        tenants: table.tenants.iter().map(tenant).collect(),
    };
    serde_json::to_vec(&document).expect("names and numbers can be represented in JSON")
}

/// Decodes a document; the error states the defect.
pub(super) fn decode(bytes: &[u8]) -> Result<Table, String> {
    let document: Document = forebay_frontend::document::decode(bytes, VERSION, ["they are", "they have"])?;
    let mut table = Table::default();
    for entry in document.volumes {
        super::check_volume(&entry.limits).map_err(|e| format!("they are damaged: {e}"))?;
        let uuid = u128::from_str_radix(&entry.uuid, 16)
            .map_err(|_| format!("they are damaged: '{}' is not a UUID", entry.uuid.escape_debug()))?;
        let (tenant, limits) = (entry.tenant, entry.limits);
        table.volumes.insert(uuid.to_be_bytes(), Entry { tenant, limits });
    }
    for entry in document.tenants {
        super::check(&entry.limits).map_err(|e| format!("they are damaged: {e}"))?;
        table.tenants.insert(entry.name, entry.limits);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"volumes":[{"uuid":"000102030405060708090a0b0c0d0e0f","tenant":"a",
        "limits":{"iops":500,"weight":200}}],"tenants":[{"name":"a","limits":{"bandwidth":1000,"quota":4096}}]}"#;

    #[test]
    fn an_encoded_table_decodes_to_the_same() {
        let table = decode(GOOD.as_bytes()).unwrap();
        let uuid = std::array::from_fn(|i| i as u8);
        assert_eq!(table.volumes[&uuid].limits.iops, Some(500));
        assert_eq!((table.tenants["a"].bandwidth, table.tenants["a"].quota), (Some(1000), Some(4096)));
        assert_eq!(decode(&encode(&table)).unwrap(), table);
    }

    #[test]
    fn invalid_documents_are_refused() {
        for (from, to, why) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"iops\":500", "\"iops\":0", "at least 1"),
            ("\"weight\":200", "\"weight\":10001", "10000"),
            ("\"weight\":200", "\"quota\":4096", "for a tenant"),
            ("\"quota\":4096", "\"quota\":0", "at least 1"),
            ("\"iops\":500", "\"latency\":500", "unknown field `latency`"),
            ("0001", "zz01", "not a UUID"),
            ("]}", "]", "damaged"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = decode(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{to}: {error}");
        }
    }
}
