//! `forebay volume classes`: the classes of a disk's blocks, as derived from the guest's file systems.

use forebay_api::ClassesView;
use forebay_api::client::Client;
use forebay_guest::Content;
use forebay_host::clock::unix_ms;
use forebay_text::Size;

use super::CliError;
use super::output::{age, print_result, render, table};

/// Shows the classes of a disk, after a scan if `refresh` is set.
pub(super) async fn run(client: &Client, name: &str, refresh: bool, as_json: bool) -> Result<(), CliError> {
    let path = ["volumes", name, "classes"];
    let classes: ClassesView =
        if refresh { client.post(&path, &serde_json::json!({})).await? } else { client.get(&path).await? };
    print_result(&classes, as_json, describe)
}

fn describe(view: &ClassesView) -> String {
    let Some(learned) = view.learned_ms else {
        return "the disk has not been scanned yet; scan it with --refresh".into();
    };
    let file_systems: Vec<&str> = view.file_systems.iter().map(|content| file_system(*content)).collect();
    let head = format!("{}; scanned {} ago", file_systems.join(", "), age(unix_ms(), learned));
    let total = view.classes.iter().map(|class| class.bytes).sum::<u64>().max(1);
    let mut t = table(&["CLASS", "BYTES", "SHARE", "READ HITS", "WRITTEN"], &[1, 2, 3, 4]);
    for class in &view.classes {
        t.add_row([
            class.class.name().to_owned(),
            Size(class.bytes).to_string(),
            format!("{:.1} %", class.bytes as f64 * 100.0 / total as f64),
            class.hit_rate.map_or("-".into(), |rate| format!("{:.0} %", rate * 100.0)),
            Size(class.written_bytes).to_string(),
        ]);
    }
    format!("{head}\n{}", render(t))
}

fn file_system(content: Content) -> &'static str {
    match content {
        Content::Ntfs => "ntfs",
        Content::Ext => "ext",
        Content::Xfs => "xfs",
        Content::Swap => "swap",
        Content::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use forebay_guest::Class;

    use super::*;
    use forebay_api::ClassView;

    #[test]
    fn classes_are_shown_as_a_table() {
        let none = ClassesView::default();
        assert_eq!(describe(&none), "the disk has not been scanned yet; scan it with --refresh");
        let class = |class, bytes, hit_rate| ClassView {
            class,
            bytes,
            written_bytes: 4096,
            read_hits: 3,
            read_misses: 1,
            hit_rate,
        };
        let view = ClassesView {
            learned_ms: Some(unix_ms()),
            file_systems: vec![Content::Ntfs, Content::Unknown],
            classes: vec![class(Class::Page, 1 << 20, None), class(Class::Code, 3 << 20, Some(0.75))],
        };
        let lines = [
            "ntfs, unknown; scanned 0 s ago",
            "CLASS  BYTES   SHARE  READ HITS  WRITTEN",
            "page   1 MiB  25.0 %          -    4 KiB",
            "code   3 MiB  75.0 %       75 %    4 KiB",
        ];
        assert_eq!(describe(&view), lines.join("\n"));
    }
}
