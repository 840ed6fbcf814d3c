//! "Did you mean": the disk whose name is nearest to a name that does not exist.

use forebay_api::client::{Client, ClientError};
use forebay_api::{DiskView, ErrorKind};

use super::CliError;
use crate::config::nearest::nearest;

/// Adds the nearest name to the error of a disk that does not exist. The server lists only the disks that
/// the client may see. The error stays as it is if the lists cannot be read.
pub(super) async fn named(client: &Client, error: CliError) -> CliError {
    let CliError::Client(ClientError::Refused { code, message, remedy }) = error else { return error };
    let found = match missing(&code, &message) {
        Some(name) => meant(client, name).await,
        None => None,
    };
    let message = match found {
        Some(meant) => format!("{message}; did you mean '{meant}'?"),
        None => message,
    };
    ClientError::Refused { code, message, remedy }.into()
}

/// The name of the disk that does not exist, in an error of the engine.
fn missing<'a>(code: &str, message: &'a str) -> Option<&'a str> {
    let name = message.strip_prefix("no volume, snapshot or image is named '")?.strip_suffix('\'')?;
    (code == ErrorKind::NotFound.code()).then_some(name)
}

async fn meant(client: &Client, name: &str) -> Option<String> {
    let lists: &[&[&str]] = match name.split_once('@') {
        Some((volume, _)) => &[&["volumes", volume, "snapshots"]],
        None => &[&["volumes"], &["images"]],
    };
    let mut disks: Vec<DiskView> = Vec::new();
    for list in lists {
        disks.extend(client.get::<Vec<DiskView>>(list).await.ok()?);
    }
    nearest(name, disks.iter().map(|disk| disk.name.as_str())).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_a_disk_is_looked_up() {
        let message = "no volume, snapshot or image is named 'wbe'";
        assert_eq!(missing("not_found", message), Some("wbe"));
        assert_eq!(missing("exists", message), None);
        assert_eq!(missing("not_found", "there is no job 7"), None);
    }
}
