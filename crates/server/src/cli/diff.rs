//! `forebay volume diff`: lists what has changed since an earlier snapshot or image.
//!
//! Each range is printed when it is received, so that a long list needs no memory.

use clap::Args;
use clap::builder::NonEmptyStringValueParser as Name;
use forebay_api::client::{Client, ClientError, path, query_value};
use forebay_api::export::{DifferenceLine, JOB_HEADER};
use forebay_text::Size;
use hyper::Method;

use super::{CliError, export, output};

/// Options of `volume diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// VOLUME or VOLUME@SNAPSHOT
    #[arg(value_name = "NAME[@SNAPSHOT]", value_parser = Name::new())]
    pub name: String,
    /// The earlier disk: a snapshot of the volume, an image, or VOLUME@SNAPSHOT [default: an empty disk]
    #[arg(long, value_name = "SNAPSHOT", value_parser = Name::new())]
    pub from: Option<String>,
}

/// Runs the command. With `json`, prints a JSON value in each line.
pub(super) async fn run(client: &Client, args: &DiffArgs, json: bool) -> Result<(), CliError> {
    let mut url = path(&["volumes", &args.name, "differences"]);
    if let Some(from) = &args.from {
        url = format!("{url}?from={}", query_value(from));
    }
    let response = client.send(Method::GET, url, None::<&()>).await?;
    let job = response.headers().get(JOB_HEADER).and_then(|job| job.to_str().ok()?.parse::<u64>().ok());
    let mut lines = Client::lines(response);
    loop {
        let line: DifferenceLine = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(ClientError::Broken("the list ended before its end".into()).into()),
            // The server closes the connection when a comparison fails; its job has the reason.
            Err(e @ ClientError::Broken(_)) => {
                return Err(export::reason(client, job).await.unwrap_or(e).into());
            }
            Err(e) => return Err(e.into()),
        };
        match json {
            true => output::json(&line)?,
            false => output::line(&text(&line))?,
        }
        if matches!(line, DifferenceLine::End { .. }) {
            return Ok(());
        }
    }
}

fn text(line: &DifferenceLine) -> String {
    match line {
        DifferenceLine::Data { offset_bytes, length_bytes } => {
            format!("{offset_bytes:>16} {length_bytes:>14} data")
        }
        DifferenceLine::Zero { offset_bytes, length_bytes } => {
            format!("{offset_bytes:>16} {length_bytes:>14} zero")
        }
        DifferenceLine::End { size_bytes, from_size_bytes, data_bytes, zero_bytes } => {
            let (size, data, zero) = (Size(*size_bytes), Size(*data_bytes), Size(*zero_bytes));
            let resized = match from_size_bytes {
                Some(from) if from != size_bytes => format!(", {} before", Size(*from)),
                _ => String::new(),
            };
            format!("{data} written and {zero} zeroed of {size}{resized}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_states_the_sums() {
        let end = |from_size_bytes| {
            let (size_bytes, data_bytes, zero_bytes) = (1 << 30, 2 << 20, 4096);
            text(&DifferenceLine::End { size_bytes, from_size_bytes, data_bytes, zero_bytes })
        };
        assert_eq!(end(None), "2 MiB written and 4 KiB zeroed of 1 GiB");
        assert_eq!(end(Some(1 << 30)), end(None));
        assert_eq!(end(Some(1 << 29)), "2 MiB written and 4 KiB zeroed of 1 GiB, 512 MiB before");
    }
}
