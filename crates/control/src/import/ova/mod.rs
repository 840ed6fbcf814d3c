//! OVA, an appliance in one file: a tar archive with an OVF descriptor and the disks that it lists, usually
//! stream-optimised VMDK files (DMTF DSP0243).
//!
//! A disk is a contiguous part of the archive and is read there, without a copy. If the archive has a
//! manifest, the checksums of the descriptor and of the chosen disk are verified before the import.

mod manifest;
mod ovf;
mod tar;

use percent_encoding::percent_decode_str;
use tokio::sync::mpsc;

use self::manifest::Checksum;
use self::ovf::Disk;
use self::tar::Member;
use super::error::Remedy;
use super::file::ImageFile;
use super::{Image, ImportError, Result, detect, text};

pub(super) use self::tar::{MAGIC, is_header};

/// Maximum length of a descriptor or manifest.
const MAX_TEXT: u64 = 4 << 20;
/// Bytes that are verified at once.
const PIECE: u64 = 1 << 20;
/// Maximum number of disks that an error lists.
const MAX_LISTED: usize = 16;
/// What to do about a disk that is not read in its archive.
const UNPACK: Remedy = Remedy::Say("unpack the archive with 'tar -xf FILE', and import the file of the disk");

/// The disk of an archive that is to be imported.
pub(super) struct Ova {
    /// The file of the disk.
    disk: ImageFile,
    /// What the manifest states about the file of the disk.
    checksum: Option<Checksum>,
}

impl Ova {
    /// Finds the disk of an archive. `wanted` is its number, its id, or the name of its file; without it, the
    /// archive must have only one disk. Verifies the descriptor, and not yet the disk.
    pub fn open(file: &ImageFile, wanted: Option<&str>) -> Result<Ova> {
        let members = tar::members(file)?;
        let with_extension = |extension: &str| {
            members.iter().find(|member| {
                let found = member.name.rsplit_once('.').map(|(_, extension)| extension);
                found.is_some_and(|found| found.eq_ignore_ascii_case(extension))
            })
        };
        let Some(descriptor) = with_extension("ovf") else {
            let path = file.display_name().to_owned();
            return Err(ImportError::Archive { path, what: "a tar archive without an OVF descriptor" });
        };
        let bytes = contents(file, descriptor)?;
        let checksums = match with_extension("mf") {
            Some(manifest) => manifest::checksums(&contents(file, manifest)?),
            None => Vec::new(),
        };
        let checksum = |name: &str| checksums.iter().find(|(of, _)| of == name).map(|(_, sum)| sum.clone());
        if checksum(&descriptor.name).is_some_and(|sum| !sum.matches(&bytes)) {
            return file.damaged("its OVF descriptor does not have the checksum of its manifest");
        }
        let disks = ovf::disks(&String::from_utf8_lossy(&text::decoded(&bytes)));
        let disks = disks.ok_or_else(|| file.damaged_or("its OVF descriptor is no XML"))?;
        let disk = choose(file, &disks, wanted)?;
        if let Some(what) = disk.unsupported {
            return file.unsupported(what, UNPACK);
        }
        // The reference of a disk to its file is a URI.
        let decoded = percent_decode_str(&disk.href).decode_utf8_lossy();
        let named = |name: &str| members.iter().find(|member| member.name == name);
        let member = named(&disk.href).or_else(|| named(&decoded));
        let member = member.ok_or_else(|| file.damaged_or("the file of its disk is not in the archive"))?;
        let part = file.part(member.at, member.len, member.name.clone())?;
        Ok(Ova { disk: part, checksum: checksum(&member.name) })
    }

    /// Length of the file of the disk.
    pub fn len(&self) -> u64 {
        self.disk.len()
    }

    /// Verifies the checksum of the disk, if there is one. Reports the bytes that are done, and ends when the
    /// receiver of the reports is dropped.
    pub fn verify(&self, report: &mpsc::Sender<u64>) -> Result<()> {
        let Some(checksum) = &self.checksum else { return Ok(()) };
        let (mut sum, mut at) = (checksum.begin(), 0);
        while at < self.disk.len() {
            let piece = self.disk.read_vec(at, (self.disk.len() - at).min(PIECE))?;
            sum.update(&piece);
            at += piece.len() as u64;
            // A slow receiver misses reports only.
            let _ = report.try_send(at);
            if report.is_closed() {
                return Err(ImportError::Cancelled);
            }
        }
        match sum.matches() {
            true => Ok(()),
            false => self.disk.damaged("it does not have the checksum of the manifest: copy the file again"),
        }
    }

    /// Opens the disk.
    pub fn into_image(self) -> Result<Box<dyn Image>> {
        detect::open_member(self.disk)
    }
}

/// Reads a descriptor or manifest.
fn contents(file: &ImageFile, member: &Member) -> Result<Vec<u8>> {
    match member.len > MAX_TEXT {
        true => file.damaged("its OVF descriptor or manifest is longer than 4 MiB"),
        false => file.read_vec(member.at, member.len),
    }
}

fn choose<'a>(file: &ImageFile, disks: &'a [Disk], wanted: Option<&str>) -> Result<&'a Disk> {
    let number = wanted.and_then(|wanted| wanted.parse::<usize>().ok()).and_then(|n| n.checked_sub(1));
    let is_wanted = |disk: &&Disk| wanted.is_some_and(|wanted| disk.id == wanted || disk.href == wanted);
    let found = disks.iter().find(is_wanted).or_else(|| disks.get(number?));
    match (disks, wanted, found) {
        ([], ..) => file.damaged("its OVF descriptor lists no disk with a file"),
        ([only], None, _) => Ok(only),
        (_, _, Some(disk)) => Ok(disk),
        (_, wanted, None) => Err(ImportError::Disks {
            path: file.display_name().to_owned(),
            wanted: wanted.map(str::to_owned),
            count: disks.len(),
            list: listed(disks),
        }),
    }
}

/// The number, the file and the id of each disk.
fn listed(disks: &[Disk]) -> String {
    let first = disks.iter().take(MAX_LISTED).enumerate();
    let first = first.map(|(i, disk)| {
        let (href, id) = (forebay_text::quoted(&disk.href), forebay_text::quoted(&disk.id));
        forebay_text::shortened(format_args!("{}: {href} ({id})", i + 1), 200)
    });
    let more = if disks.len() > MAX_LISTED { ", …" } else { "" };
    first.collect::<Vec<_>>().join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar archive of these files.
    fn archive(files: &[(&str, &[u8])]) -> tempfile::NamedTempFile {
        let mut bytes = Vec::new();
        for (name, contents) in files {
            let mut header = [0; 512];
            header[..name.len()].copy_from_slice(name.as_bytes());
            header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
            header[156] = b'0';
            header[257..263].copy_from_slice(b"ustar\0");
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
            header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            bytes.extend(header);
            bytes.extend(*contents);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes.resize(bytes.len() + 1024, 0);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn descriptor(files: &[&str]) -> Vec<u8> {
        let each = |tag: fn((usize, &&str)) -> String| files.iter().enumerate().map(tag).collect::<String>();
        let references = each(|(i, href)| format!("<File ovf:id='f{i}' ovf:href='{href}'/>"));
        let disks = each(|(i, _)| format!("<Disk ovf:diskId='d{i}' ovf:fileRef='f{i}'/>"));
        format!("<Envelope>{references}{disks}</Envelope>").into_bytes()
    }

    fn opened(file: &tempfile::NamedTempFile, wanted: Option<&str>) -> Result<Ova> {
        Ova::open(&ImageFile::open(file.path()).unwrap(), wanted)
    }

    fn verified(file: &tempfile::NamedTempFile) -> Result<()> {
        let (report, _reports) = mpsc::channel(1);
        opened(file, None)?.verify(&report)
    }

    #[test]
    fn one_of_several_disks_is_chosen_by_number_id_or_file() {
        let ovf = descriptor(&["a%20b.vmdk", "c.vmdk"]);
        let file = archive(&[("x.ovf", &ovf), ("./a b.vmdk", &[1; 700]), ("c.vmdk", &[2; 512])]);
        let error = opened(&file, None).err().unwrap().to_string();
        assert!(
            error.contains("--disk") && error.contains("1: 'a%20b.vmdk' ('d0'), 2: 'c.vmdk' ('d1')"),
            "{error}"
        );
        for (wanted, len) in [("1", 700), ("d0", 700), ("a%20b.vmdk", 700), ("2", 512), ("c.vmdk", 512)] {
            assert_eq!(opened(&file, Some(wanted)).unwrap().len(), len, "{wanted}");
        }
        for wanted in ["0", "3", "d2", "", "-1"] {
            let error = opened(&file, Some(wanted)).err().unwrap().to_string();
            assert!(error.contains("has no disk") && error.contains("'c.vmdk'"), "{error}");
        }
    }

    #[test]
    fn checksums_of_the_manifest_are_verified() {
        let (ovf, disk) = (descriptor(&["d.vmdk"]), vec![7; 3 << 20]);
        let manifest = |of_ovf: &[u8], of_disk: &[u8]| {
            format!(
                "SHA256(x.ovf)= {}\nSHA1 (d.vmdk) = {}\r\n",
                manifest::sha256(of_ovf),
                manifest::sha1(of_disk)
            )
        };
        let with =
            |manifest: &str| archive(&[("x.ovf", &ovf), ("d.vmdk", &disk), ("x.mf", manifest.as_bytes())]);
        verified(&with(&manifest(&ovf, &disk))).unwrap();
        verified(&with("MD5(d.vmdk)= 00\n")).unwrap();
        verified(&archive(&[("x.ovf", &ovf), ("d.vmdk", &disk)])).unwrap();
        let error = verified(&with(&manifest(&ovf, b"other"))).unwrap_err().to_string();
        assert!(error.contains("d.vmdk") && error.contains("checksum"), "{error}");
        let error = verified(&with(&manifest(b"other", &disk))).unwrap_err().to_string();
        assert!(error.contains("descriptor does not have the checksum"), "{error}");
    }

    #[test]
    fn archives_without_a_usable_disk_are_refused() {
        let chunked = b"<File id='f' href='d' chunkSize='1'/><Disk diskId='d' fileRef='f'/>";
        for (files, part) in [
            (&[("a.txt", &b"text"[..])][..], "without an OVF descriptor"),
            (&[("x.ovf", b"<")], "no XML"),
            (&[("x.ovf", b"<Envelope/>")], "lists no disk"),
            (&[("x.ovf", &descriptor(&["gone.vmdk"]))], "not in the archive"),
            (&[("x.ovf", &descriptor(&["http://h/d.vmdk"]))], "not in the archive"),
            (&[("x.ovf", chunked), ("d", b"")], "several files"),
        ] {
            let error = opened(&archive(files), None).err().expect(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        // The disk of an archive is no archive again.
        let inner = std::fs::read(archive(&[("x.ovf", &descriptor(&["d"])), ("d", &[1; 512])])).unwrap();
        let outer = archive(&[("x.ovf", &descriptor(&["d.ova"])), ("d.ova", &inner)]);
        let error = opened(&outer, None).unwrap().into_image().err().unwrap().to_string();
        assert!(error.contains("archive"), "{error}");
    }

    #[test]
    fn damaged_archives_are_refused() {
        let good = archive(&[("x.ovf", &descriptor(&["d.vmdk"])), ("d.vmdk", &[1; 4096])]);
        let bytes = std::fs::read(good.path()).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(good.path(), bytes).unwrap();
            opened(&good, None).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(refused(&bytes[..2048]).contains("truncated"));
        let mut wrong = bytes.clone();
        wrong[1024 + 10] ^= 1;
        assert!(refused(&wrong).contains("header of the archive"));
        assert_eq!(refused(&bytes), "");
    }
}
