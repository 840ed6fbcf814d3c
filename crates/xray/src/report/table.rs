//! A table, for the terminal and as HTML.

use std::fmt::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, presets};

use super::chart::escape;

/// Columns of a terminal in which every table fits; longer text is wrapped within its cell.
pub(crate) const TABLE_WIDTH: u16 = 120;

/// A cell of a table.
pub(crate) struct Cell {
    text: String,
    /// The classes of the cell on a page.
    class: &'static str,
    /// A word in a class, before the text.
    badge: Option<(&'static str, &'static str)>,
}

impl Cell {
    /// A cell with text.
    pub fn new(text: impl ToString) -> Cell {
        Cell { text: text.to_string(), class: "", badge: None }
    }

    /// Returns the cell with this class on a page.
    pub fn class(self, class: &'static str) -> Cell {
        Cell { class, ..self }
    }

    /// Returns the cell with a word in a class, before the text.
    pub fn badge(self, class: &'static str, word: &'static str) -> Cell {
        Cell { badge: Some((class, word)), ..self }
    }

    /// Whether it has a number, and is on the right.
    fn is_number(&self) -> bool {
        self.class.starts_with('n')
    }
}

/// A cell with a number.
pub(crate) fn right(text: String) -> Cell {
    Cell::new(text).class("n")
}

/// A table; see the module documentation.
pub(crate) struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub fn new<H: ToString>(heads: impl IntoIterator<Item = H>) -> Table {
        Table { heads: heads.into_iter().map(|head| head.to_string()).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, row: impl IntoIterator<Item = Cell>) {
        self.rows.push(row.into_iter().collect());
    }

    /// Returns the table as a part of a page. Writing to a string cannot fail.
    pub fn html(&self) -> String {
        let mut out = "<div class=\"table\"><table>\n<tr>".to_owned();
        let is_number =
            |column: usize| self.rows.iter().any(|row| row.get(column).is_some_and(Cell::is_number));
        for (column, head) in self.heads.iter().enumerate() {
            let class = if is_number(column) { " class=\"n\"" } else { "" };
            let _ = write!(out, "<th{class}>{}</th>", escape(head));
        }
        out.push_str("</tr>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for Cell { text, class, badge } in row {
                let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
                let badge = badge.map(|(class, word)| format!("<span class=\"{class}\">{word}</span> "));
                let _ = write!(out, "<td{class}>{}{}</td>", badge.unwrap_or_default(), escape(text));
            }
            out.push_str("</tr>\n");
        }
        out + "</table></div>\n"
    }
}

/// The table on a terminal, in at most [`TABLE_WIDTH`] columns.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(TABLE_WIDTH);
        table.set_header(&self.heads);
        let cell = |cell: &Cell| {
            let alignment = if cell.is_number() { CellAlignment::Right } else { CellAlignment::Left };
            comfy_table::Cell::new(&cell.text).set_alignment(alignment)
        };
        table.add_rows(self.rows.iter().map(|row| row.iter().map(cell)));
        write!(f, "{table}")
    }
}

/// Asserts that a table fits a terminal, and that only cells of a table with `wrapped` cells span lines.
#[cfg(test)]
pub(crate) fn assert_fits(table: &str, rows: usize, wrapped: bool) {
    for line in table.lines() {
        let columns = line.chars().count();
        assert!(columns <= usize::from(TABLE_WIDTH), "{columns} columns: {line}");
    }
    let frame = table.lines().filter(|line| line.starts_with(['┌', '╞', '└'])).count();
    assert_eq!(frame, 3, "top, header and bottom: {table}");
    assert!(wrapped || table.lines().filter(|line| line.starts_with('│')).count() == rows + 1, "{table}");
}
