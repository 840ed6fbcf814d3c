//! The descriptor of a VMDK: a text with a line for each extent.

use super::super::Result;
use super::super::file::ImageFile;

/// First line of a descriptor, in any letter case, after optional blank lines.
const MARK: &[u8] = b"# disk descriptorfile";
/// `parentCID` of a disk without a parent.
const NO_PARENT: &str = "ffffffff";

/// A parsed descriptor.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub extents: Vec<ExtentLine>,
}

/// The line of an extent of at least one sector.
#[derive(Debug)]
pub(super) struct ExtentLine {
    pub sectors: u64,
    pub kind: ExtentKind,
}

/// The type of an extent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    Zero,
    Flat { name: String, offset_sectors: u64 },
    Sparse { name: String },
}

/// Whether `head` is the start of a descriptor.
pub fn is_descriptor(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    text.get(..MARK.len()).is_some_and(|start| start.eq_ignore_ascii_case(MARK))
}

impl Descriptor {
    /// Parses a descriptor file, or a descriptor embedded in an extent, whose extent lines are not used.
    pub fn parse(file: &ImageFile, text: &[u8]) -> Result<Descriptor> {
        if !is_descriptor(text) {
            return file.damaged("it is neither a sparse VMDK nor a descriptor");
        }
        let text = String::from_utf8_lossy(text);
        let mut extents = Vec::new();
        for line in text.lines().map(|l| l.trim_matches(['\0', ' ', '\t', '\r'])) {
            if let Some((key, value)) = line.split_once('=')
                && key.trim().eq_ignore_ascii_case("parentCID")
                && !value.trim().eq_ignore_ascii_case(NO_PARENT)
            {
                return file.unsupported("is a delta disk, which is not supported");
            }
            let access = line.split_ascii_whitespace().next().unwrap_or_default();
            if matches!(access, "RW" | "RDONLY" | "NOACCESS") {
                extents.extend(extent(file, line)?);
                if extents.len() > super::MAX_EXTENTS {
                    return file.damaged("its descriptor lists more than 4096 extents");
                }
            }
        }
        Ok(Descriptor { extents })
    }
}

/// Parses an extent line: `RW 4192256 SPARSE "disk-s001.vmdk"`, `RW 2048 FLAT "disk-flat.vmdk" 0`, `RW 2048
/// ZERO`. Returns `None` for an extent of 0 sectors.
fn extent(file: &ImageFile, line: &str) -> Result<Option<ExtentLine>> {
    let bad = || file.damaged_or("its descriptor has an invalid extent line");
    let (head, quoted) = match line.split_once('"') {
        Some((head, rest)) => (head, Some(rest.rsplit_once('"').ok_or_else(bad)?)),
        None => (line, None),
    };
    let mut words = head.split_ascii_whitespace();
    let (access, sectors, kind) = (words.next(), words.next(), words.next());
    if access == Some("NOACCESS") {
        return file.unsupported("has an extent with access NOACCESS");
    }
    let sectors: u64 = sectors.and_then(|s| s.parse().ok()).ok_or_else(bad)?;
    let kind = match (kind, quoted) {
        (Some("ZERO"), _) => ExtentKind::Zero,
        (Some("FLAT" | "VMFS"), Some((name, offset))) => {
            let offset = offset.trim();
            let offset_sectors = if offset.is_empty() { 0 } else { offset.parse().map_err(|_| bad())? };
            ExtentKind::Flat { name: name.to_owned(), offset_sectors }
        }
        (Some("SPARSE"), Some((name, _))) => ExtentKind::Sparse { name: name.to_owned() },
        (Some("VMFSSPARSE" | "SESPARSE" | "VMFSRDM" | "VMFSRAW"), _) => {
            return file.unsupported("has an extent of a type that only ESX supports");
        }
        _ => return Err(bad()),
    };
    Ok((sectors != 0).then_some(ExtentLine { sectors, kind }))
}
