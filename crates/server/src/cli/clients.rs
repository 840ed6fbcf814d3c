//! `forebay volume clients`: the clients of a disk.

use forebay_api::client::Client;
use forebay_api::{DiskClientView, Protocol};
use forebay_host::clock::unix_ms;

use super::CliError;
use super::output::{age, print_result, render, table};

pub(super) async fn run(client: &Client, name: &str, as_json: bool) -> Result<(), CliError> {
    let clients: Vec<DiskClientView> = client.get(&["volumes", name, "clients"]).await?;
    print_result(&clients, as_json, |clients| describe(clients, unix_ms()))
}

pub(super) async fn disconnect(client: &Client, name: &str, id: &str, as_json: bool) -> Result<(), CliError> {
    let done: serde_json::Value = client.delete(&["volumes", name, "clients", id]).await?;
    print_result(&done, as_json, |_| format!("disconnected client {id} of '{name}'"))
}

fn describe(clients: &[DiskClientView], now_ms: u64) -> String {
    if clients.is_empty() {
        return "no clients".into();
    }
    let mut t = table(&["ID", "PROTOCOL", "CLIENT", "INITIATOR", "TARGET", "ACCESS", "SINCE"], &[0]);
    for client in clients {
        let protocol = match client.protocol {
            Protocol::Nbd => "nbd",
            Protocol::Iscsi => "iscsi",
            Protocol::Nvme => "nvme",
        };
        t.add_row([
            client.id.as_str(),
            protocol,
            &client.client,
            client.initiator.as_deref().unwrap_or("-"),
            client.target.as_deref().unwrap_or("-"),
            if client.read_only { "read" } else { "read, write" },
            &age(now_ms, client.since_ms),
        ]);
    }
    render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_shown_as_a_table() {
        assert_eq!(describe(&[], 0), "no clients");
        let nbd = DiskClientView {
            id: "8191".into(),
            protocol: Protocol::Nbd,
            client: "10.0.0.7:51422".into(),
            initiator: None,
            target: None,
            read_only: false,
            since_ms: 1_000,
        };
        let name = |name: &str| Some(format!("iqn.2026-01.org.example:{name}"));
        let iscsi = DiskClientView {
            protocol: Protocol::Iscsi,
            initiator: name("host"),
            target: name("disks"),
            read_only: true,
            ..nbd.clone()
        };
        let text = describe(&[nbd, iscsi], 61_000);
        let row = |at: usize| text.lines().nth(at).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(row(1).starts_with("8191 nbd 10.0.0.7:51422 - - read, write "), "{text}");
        assert!(
            row(2).contains("iqn.2026-01.org.example:host iqn.2026-01.org.example:disks read "),
            "{text}"
        );
    }
}
