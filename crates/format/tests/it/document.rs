//! Checks that the table of each layout in `docs/format.md` matches the code.

use forebay_format::{LAYOUTS, Layout, RETAINED_LAYOUTS};

const PAGE: &str = include_str!("../../../../docs/format.md");

/// The documented layouts: of the store, and of retained memory.
fn layouts() -> impl Iterator<Item = &'static Layout> {
    LAYOUTS.iter().chain(RETAINED_LAYOUTS)
}

/// The correct table of a layout.
fn table(layout: &Layout) -> String {
    let mut out = format!(
        "### {} ({} bytes)\n\n| offset | bytes | field | meaning |\n|---:|---:|---|---|\n",
        layout.name, layout.size
    );
    let mut end = 0;
    for f in layout.fields {
        if f.offset > end {
            out += &format!("| {end} | {} | | reserved, zero |\n", f.offset - end);
        }
        out += &format!("| {} | {} | {} | {} |\n", f.offset, f.len, f.name.to_lowercase(), f.what);
        end = f.offset + f.len;
    }
    if end < layout.size {
        out += &format!("| {end} | {} | | reserved, zero |\n", layout.size - end);
    }
    out
}

/// The section of the page from the heading of a layout to the end of its table.
fn drawn(layout: &Layout) -> &'static str {
    let heading = format!("### {} (", layout.name);
    let Some(at) = PAGE.find(&heading) else { return "nothing" };
    let section = &PAGE[at..];
    let rows = section.find("|---:|").and_then(|head| section[head..].find("\n\n").map(|end| head + end + 1));
    &section[..rows.unwrap_or(section.len())]
}

/// On failure, the message contains the correct tables.
#[test]
fn every_layout_is_documented_correctly() {
    let wrong: Vec<_> = layouts().filter(|layout| drawn(layout) != table(layout)).collect();
    let right: String = wrong.iter().map(|layout| table(layout) + "\n").collect();
    assert!(wrong.is_empty(), "docs/format.md differs from the code; the correct tables are:\n\n{right}");
}

#[test]
fn the_page_documents_all_layouts_in_order_and_no_others() {
    let headings = PAGE.lines().filter(|line| line.starts_with("### "));
    let named: Vec<_> =
        headings.filter_map(|line| line[4..].split_once(" (")).map(|(name, _)| name).collect();
    assert_eq!(named, layouts().map(|layout| layout.name).collect::<Vec<_>>());
}
