//! `volume reset`: clones by name or pattern, to their image or to another one.

use forebay_api::client::{Client, ClientError};
use forebay_api::{DiskView, ErrorDetail, ErrorKind, Resets};

use super::remove::{Action, confirm, look_up};
use super::{CliError, output};

/// Resets clones in one request.
pub(super) async fn run(
    client: &Client,
    names: &[String],
    image: Option<String>,
    yes: bool,
    json: bool,
) -> Result<(), CliError> {
    // A pattern stands for clones only.
    let resolved = look_up(client, &["volumes"], names, |disk| disk.origin.is_some()).await?;
    if let Some(pattern) = resolved.unmatched.first() {
        let message = format!("no clone matches '{pattern}'");
        let code = ErrorKind::NotFound.code().to_owned();
        return Err(ClientError::from(ErrorDetail { code, message }).into());
    }
    if !yes {
        let question = "Discard all of their writes?";
        confirm(&Action { verb: "reset", question, noun: "volumes" }, &resolved, json)?;
    }
    let done: Vec<DiskView> = client.post(&["resets"], &Resets { volumes: resolved.names, image }).await?;
    output::print_result(&done, json, |done| text(done))
}

fn text(volumes: &[DiskView]) -> String {
    match volumes {
        [one] => {
            let origin = one.origin.as_deref().unwrap_or_default();
            format!("reset volume '{}' to '{origin}'", one.name)
        }
        many => format!("reset {} volumes", many.len()),
    }
}
