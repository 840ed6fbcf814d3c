//! `forebay volume diff`, `send` and `receive`: what has changed, and copies of disks in other pools.
//!
//! `send` writes the stream of the server to standard output, and `receive` sends standard input to a server
//! in pieces. Only servers read the contents of a stream.

use std::io::{IsTerminal, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser as Name;
use clap::{Args, Subcommand};
use forebay_api::client::{Client, ClientError, path, query_value};
use forebay_api::export::JOB_HEADER;
use forebay_api::{CreateReceive, ReceiveView};
use forebay_text::{Size, quoted};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Bytes;

use super::{CliError, diff, export, output};

/// Bytes per request: the longest body that the server accepts.
const PIECE: usize = 1 << 20;
/// Attempts to send a piece, and the delay between them.
const ATTEMPTS: u32 = 10;
const DELAY: Duration = Duration::from_millis(500);
const STDIN: &str = "standard input";

/// The commands of `forebay volume` about differences.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// List the ranges of a volume or snapshot that have changed since an earlier snapshot or image
    Diff(diff::DiffArgs),
    /// Write a snapshot or image to standard output, as a stream that another pool receives
    Send(SendArgs),
    /// Read a stream of 'volume send' from standard input, into a new volume or as the next snapshot of one
    Receive(ReceiveArgs),
}

/// Options of `volume send`.
#[derive(Debug, Args)]
pub struct SendArgs {
    /// VOLUME@SNAPSHOT or IMAGE
    #[arg(value_name = "NAME@SNAPSHOT", value_parser = Name::new())]
    pub name: String,
    /// Send only what has changed since a snapshot or image, which the receiver has received before
    #[arg(long, value_name = "SNAPSHOT", value_parser = Name::new())]
    pub from: Option<String>,
    /// Continue an interrupted stream at the position that 'volume receive' has printed
    #[arg(long, value_name = "POSITION", value_parser = Name::new())]
    pub resume: Option<String>,
}

/// Options of `volume receive`.
#[derive(Debug, Args)]
pub struct ReceiveArgs {
    /// Name of the volume, or of the new image
    #[arg(value_parser = Name::new())]
    pub name: String,
    /// Continue the interrupted receive with this number, which 'volume receive' has printed
    #[arg(long, value_name = "ID")]
    pub resume: Option<u64>,
}

/// Runs a command.
pub(super) async fn run(client: &Client, command: TransferCommand, json: bool) -> Result<(), CliError> {
    match command {
        TransferCommand::Diff(args) => diff::run(client, &args, json).await,
        TransferCommand::Send(args) => send(client, &args).await,
        TransferCommand::Receive(args) => receive(client, &args, json).await,
    }
}

async fn send(client: &Client, args: &SendArgs) -> Result<(), CliError> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        let why = "it is a terminal; redirect it to a file or to 'forebay volume receive'";
        return Err(CliError::FileName("standard output".into(), why.into()));
    }
    let file = stdout.as_fd().try_clone_to_owned().map_err(CliError::Output)?.into();
    let mut url = path(&["volumes", &args.name, "send"]);
    let mut separator = '?';
    for (name, value) in [("from", &args.from), ("resume", &args.resume)] {
        if let Some(value) = value {
            url = format!("{url}{separator}{name}={}", query_value(value));
            separator = '&';
        }
    }
    let response = client.send(Method::GET, url, None::<&()>).await?;
    let job = response.headers().get(JOB_HEADER).and_then(|job| job.to_str().ok()?.parse::<u64>().ok());
    let mut out = export::Stream::begin(file, "standard output".into())?;
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => out.append(frame.into_data().unwrap_or_default()).await?,
            // The server closes the connection when it cannot send the disk; its job has the reason.
            Err(e) => {
                let broken = ClientError::Broken(e.to_string());
                return Err(export::reason(client, job).await.unwrap_or(broken).into());
            }
        }
    }
    out.complete().await
}

async fn receive(client: &Client, args: &ReceiveArgs, json: bool) -> Result<(), CliError> {
    if std::io::stdin().is_terminal() {
        let why = "it is a terminal; redirect it from a file or from 'forebay volume send'";
        return Err(CliError::FileName(STDIN.into(), why.into()));
    }
    let begun = Instant::now();
    let view: ReceiveView = match args.resume {
        Some(id) => client.post(&["receives", &id.to_string(), "resume"], &serde_json::json!({})).await?,
        None => client.post(&["receives"], &CreateReceive { name: args.name.clone() }).await?,
    };
    let id = view.id.to_string();
    let sent = tokio::select! {
        sent = pieces(client, &id) => sent,
        _ = tokio::signal::ctrl_c() => Err(CliError::Interrupted("keeps what it has received")),
    };
    let done = match sent {
        Ok(done) => done,
        Err(e) => {
            // After an error of the stream, the server has discarded it.
            if let Ok(view) = client.get::<ReceiveView>(&["receives", &id]).await {
                report(client, &view).await;
            }
            return Err(e);
        }
    };
    if done.disk.is_none() {
        report(client, &done).await;
        let why = "the stream ends before its end; nothing was changed";
        return Err(CliError::FileName(STDIN.into(), why.into()));
    }
    // The server removes it later if this fails.
    let _ = client.delete::<serde_json::Value>(&["receives", &id]).await;
    let seconds = begun.elapsed().as_secs_f64();
    output::print_result(&done, json, |done| {
        let name = done.disk.as_ref().map_or(&done.name, |disk| &disk.name);
        let (data, received) = (Size(done.data_bytes), Size(done.received_bytes));
        format!("received {} in {seconds:.1} s: {data} of data, {received} transferred", quoted(name))
    })
}

/// Reports how an interrupted receive is continued. Ends the receive if nothing was received.
async fn report(client: &Client, view: &ReceiveView) {
    if view.records == 0 {
        let _ = client.delete::<serde_json::Value>(&["receives", &view.id.to_string()]).await;
        return;
    }
    let line = format!(
        "forebay: what was received stays for an hour; continue with 'forebay volume send ... --resume {}' and \
         'forebay volume receive {} --resume {}'",
        view.position(),
        view.name,
        view.id
    );
    eprintln!("{}", forebay_text::one_line(&line));
}

/// Sends standard input to the server. Returns the last state of the receive.
async fn pieces(client: &Client, id: &str) -> Result<ReceiveView, CliError> {
    let mut offset = 0;
    loop {
        // A read may wait for the sender for any time.
        let piece = tokio::task::spawn_blocking(read_piece).await;
        let piece = piece.map_err(|e| std::io::Error::other(e.to_string())).flatten();
        let piece = piece.map_err(|e| CliError::FileName(STDIN.into(), e.to_string()))?;
        if piece.is_empty() {
            return Ok(client.get(&["receives", id]).await?);
        }
        let mut attempts = 0;
        let view: ReceiveView = loop {
            match client.put_bytes(&["receives", id, &offset.to_string()], piece.clone()).await {
                Ok(view) => break view,
                // The connection failed. The server may have received the piece.
                Err(ClientError::Broken(_) | ClientError::Unreachable { .. }) if attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(DELAY).await;
                }
                Err(e) => return Err(e.into()),
            }
        };
        offset += piece.len() as u64;
        if piece.len() < PIECE && view.disk.is_some() {
            return Ok(view);
        }
    }
}

/// The next bytes of standard input; empty at its end.
fn read_piece() -> std::io::Result<Bytes> {
    let mut piece = Vec::with_capacity(PIECE);
    std::io::stdin().lock().take(PIECE as u64).read_to_end(&mut piece)?;
    Ok(piece.into())
}
