//! `docs/format.md` has a table for each layout, and says what the code does.

use forebay_format::{LAYOUTS, Layout};

const PAGE: &str = include_str!("../../../docs/format.md");

/// The table as the page must have it.
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

/// What the page has from the heading of a layout to the end of its table.
fn drawn(layout: &Layout) -> &'static str {
    let heading = format!("### {} (", layout.name);
    let Some(at) = PAGE.find(&heading) else { return "nothing" };
    let section = &PAGE[at..];
    let rows = section.find("|---:|").and_then(|head| section[head..].find("\n\n").map(|end| head + end + 1));
    &section[..rows.unwrap_or(section.len())]
}

/// Where they differ, the message has the table to put in.
#[test]
fn every_layout_is_drawn_as_it_is() {
    let wrong: Vec<_> = LAYOUTS.iter().filter(|layout| drawn(layout) != table(layout)).collect();
    let right: String = wrong.iter().map(|layout| table(layout) + "\n").collect();
    assert!(wrong.is_empty(), "docs/format.md differs from the code; it must have:\n\n{right}");
}

#[test]
fn the_page_has_the_layouts_in_order_and_no_others() {
    let headings = PAGE.lines().filter(|line| line.starts_with("### "));
    let named: Vec<_> =
        headings.filter_map(|line| line[4..].split_once(" (")).map(|(name, _)| name).collect();
    assert_eq!(named, LAYOUTS.iter().map(|layout| layout.name).collect::<Vec<_>>());
}
