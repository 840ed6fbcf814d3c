//! Numbers of things in words.

/// A number and its noun, in the plural unless the number is one: "1 session", "0 sessions".
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_is_singular() {
        let said = [0, 1, 2].map(|count| counted(count, "disk"));
        assert_eq!(said, ["0 disks", "1 disk", "2 disks"]);
    }
}
