//! `forebay volume connect`: what a client needs in order to use a disk, as lines to copy.

use std::fmt::Write;

use forebay_api::client::Client;
use forebay_api::{ClientKind, ConnectView, WayView};

use super::{CliError, output};

pub(super) async fn run(
    client: &Client,
    name: &str,
    only: Option<ClientKind>,
    json: bool,
) -> Result<(), CliError> {
    let ConnectView { mut ways, missing } = client.get(&["volumes", name, "connect"]).await?;
    ways.retain(|way| only.is_none_or(|only| way.client == only));
    if ways.is_empty() {
        let meant = missing.iter().filter(|one| only.is_none_or(|only| one.protocol == only.protocol()));
        let reasons: Vec<_> = meant.map(|one| one.message.as_str()).collect();
        return Err(CliError::NoWay(name.to_owned(), reasons.join("; ")));
    }
    output::print_result(&ways, json, |ways| page(ways))
}

/// The lines of all ways. Titles and notes are comments of the shell.
fn page(ways: &[WayView]) -> String {
    // The notes of an address are the same for all of its clients.
    let (mut page, mut noted) = (String::new(), None);
    for way in ways {
        let WayView { client, title, address, lun, text, notes, .. } = way;
        let place = (address, &way.target);
        if noted.replace(place) != Some(place) {
            for note in notes {
                let _ = writeln!(page, "# {note}");
            }
        }
        // With one kind only, the text can be copied as a whole.
        if ways.iter().any(|other| other.client != *client) {
            let number = lun.map(|lun| format!(", LUN {lun}")).unwrap_or_default();
            let _ = writeln!(page, "# {title}{number}");
        }
        let _ = writeln!(page, "{text}\n");
    }
    page.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_and_notes_are_comments_once_for_an_address() {
        let way = |client: ClientKind, address: &str| WayView {
            client,
            title: client.title().into(),
            address: address.into(),
            target: None,
            lun: None,
            text: format!("{} {address}", client.title()),
            notes: vec!["Replace SERVER.".into()],
        };
        let two = [way(ClientKind::Uri, "a:1"), way(ClientKind::Qemu, "a:1"), way(ClientKind::Uri, "b:2")];
        assert_eq!(
            page(&two),
            "# Replace SERVER.\n# NBD URI\nNBD URI a:1\n\n# QEMU\nQEMU a:1\n\n# Replace SERVER.\n# NBD URI\nNBD URI b:2"
        );
        assert_eq!(page(&two[..1]), "# Replace SERVER.\nNBD URI a:1", "one kind has no title");
    }
}
