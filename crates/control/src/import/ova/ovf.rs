//! The disks in an OVF descriptor (DMTF DSP0243): the elements `File` and `Disk` with their attributes.
//!
//! The descriptor is XML. Only its tags are scanned. Document types, and entities other than the predefined
//! entities of XML, are not supported, so a descriptor cannot refer to other files, and cannot expand to a
//! large text.

/// Maximum number of attributes of a tag that are read.
const MAX_ATTRIBUTES: usize = 64;

/// A disk with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The id of the disk.
    pub id: String,
    /// Name of its file in the archive.
    pub href: String,
    /// What is not supported about the disk, as the predicate of a sentence.
    pub unsupported: Option<&'static str>,
}

/// Lists the disks that have files, in their order; `None` if the text is no XML.
pub fn disks(text: &str) -> Option<Vec<Disk>> {
    let tags = tags(text)?;
    let files: Vec<&Tag<'_>> = tags.iter().filter(|tag| tag.name == "File").collect();
    let disks = tags.iter().filter(|tag| tag.name == "Disk").filter_map(|disk| {
        // A disk without a file is empty.
        let reference = disk.attribute("fileRef")?;
        let file = files.iter().find(|file| file.attribute("id") == Some(reference))?;
        let compression = file.attribute("compression").unwrap_or("identity");
        let unsupported = match () {
            () if disk.attribute("parentRef").is_some() => Some("has a disk that needs a parent"),
            () if compression != "identity" => Some("has a disk that is compressed as a whole"),
            () if file.attribute("chunkSize").is_some() => {
                Some("has a disk that is divided into several files")
            }
            () => None,
        };
        let (id, href) = (disk.attribute("diskId").unwrap_or(reference), file.attribute("href")?);
        Some(Disk { id: id.to_owned(), href: href.to_owned(), unsupported })
    });
    Some(disks.collect())
}

/// A start tag.
struct Tag<'a> {
    /// The name without its prefix.
    name: &'a str,
    /// Name, without its prefix, and value of each attribute.
    attributes: Vec<(&'a str, String)>,
}

impl Tag<'_> {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }
}

/// The start tags of files and disks.
fn tags(text: &str) -> Option<Vec<Tag<'_>>> {
    let (mut rest, mut found) = (text, Vec::new());
    while let Some((_, markup)) = rest.split_once('<') {
        let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>"), ("!", ">"), ("/", ">")];
        let skipped = skipped.iter().find_map(|(begin, end)| Some((markup.strip_prefix(begin)?, *end)));
        if let Some((inside, end)) = skipped {
            rest = inside.split_once(end)?.1;
            continue;
        }
        let (tag, after) = start_tag(markup)?;
        if matches!(tag.name, "File" | "Disk") {
            found.push(tag);
        }
        rest = after;
    }
    Some(found)
}

/// Parses a start tag after its `<`; also returns what follows the tag.
fn start_tag(text: &str) -> Option<(Tag<'_>, &str)> {
    let end = text.find(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>'))?;
    let (name, mut rest) = text.split_at(end);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix("/>").or_else(|| rest.strip_prefix('>')) {
            return Some((Tag { name: local(name), attributes }, after));
        }
        let (key, value) = rest.split_once('=')?;
        let value = value.trim_ascii_start();
        let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let (value, after) = value[1..].split_once(quote)?;
        if attributes.len() < MAX_ATTRIBUTES {
            attributes.push((local(key.trim_ascii_end()), unescaped(value)?));
        }
        rest = after;
    }
}

/// A name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// The value of an attribute, with the entities of XML replaced.
fn unescaped(value: &str) -> Option<String> {
    let (mut out, mut rest) = (String::new(), value);
    while let Some((before, entity)) = rest.split_once('&') {
        let (entity, after) = entity.split_once(';')?;
        out.push_str(before);
        out.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            number => {
                let number = number.strip_prefix('#')?;
                let code = match number.strip_prefix('x') {
                    Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                    None => number.parse().ok()?,
                };
                char::from_u32(code)?
            }
        });
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVELOPE: &str = r#"<?xml version="1.0"?>
<!-- <File ovf:id="no" ovf:href="no.vmdk"/> -->
<Envelope xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
  <References>
    <File ovf:href="disk &amp; &#x31;.vmdk" ovf:id="file1" ovf:size="68096"/>
    <File ovf:href='cd.iso' ovf:id='file2' />
    <ovf:File ovf:href="two.vmdk.gz" ovf:id="file3" ovf:compression="gzip"></ovf:File>
  </References>
  <DiskSection><Info>List of the <![CDATA[<Disk/>]]> disks</Info>
    <Disk ovf:capacity="8" ovf:diskId="vmdisk1" ovf:fileRef="file1"
          ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
    <Disk ovf:capacity="8" ovf:diskId="empty"/>
    <Disk ovf:capacity="8" ovf:diskId="vmdisk2" ovf:fileRef="file3"/>
  </DiskSection>
</Envelope>"#;

    #[test]
    fn disks_with_files_are_listed() {
        let found = disks(ENVELOPE).unwrap();
        let shown: Vec<_> = found.iter().map(|disk| (&*disk.id, &*disk.href)).collect();
        assert_eq!(shown, [("vmdisk1", "disk & 1.vmdk"), ("vmdisk2", "two.vmdk.gz")]);
        assert_eq!(found[0].unsupported, None);
        assert!(found[1].unsupported.unwrap().contains("compressed"));
    }

    #[test]
    fn texts_that_are_no_xml_have_no_disks() {
        for bad in
            ["<a", "<a b>", "<a b=c>", "<a b=\"c>", "<a b='&x;'/>", "<a b='&#xd800;'/>", "<!-- ", "<?x"]
        {
            assert_eq!(disks(bad), None, "{bad}");
        }
        for none in
            ["", "no markup", "<a b='c'/><Disk fileRef='x'/>", "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>"]
        {
            assert_eq!(disks(none), Some(Vec::new()), "{none}");
        }
    }
}
