//! Receives: streams that clients send in pieces of at most 1 MiB, each with its offset in the stream.
//!
//! A piece that was received can be sent again, as for an upload. Every part of the stream is verified before
//! it is used, and the destination changes in one commit at the end ([`forebay_engine::ReceiveRequest`]). A
//! stream that is damaged, and any error of the pool, end the receive and discard what it has.
//!
//! **Interruptions.** What was received stays until the client continues it, with a stream that begins where
//! the last record ended. It is lost with the process of the server, and after [`IDLE`].
//!
//! **Bounds.** At most [`MAX_RECEIVES`] exist, [`MAX_OF_CLIENT`] of them of one client. A receive holds one
//! piece and one record in memory. A piece is processed in a separate task: if its client disconnects
//! before the end, the piece is used as a whole nevertheless, so that the position of the receive is exact.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_api::{ErrorKind, ReceiveView};
use forebay_cluster::names::Kind;
use forebay_engine::{ReceiveError, ReceiveRequest, Receiving, check_name};
use forebay_text::{Size, quoted};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::stream::{Decoder, Header, Item, Position, StreamError};
use crate::operations::{Control, ControlError, Result};
use crate::view::disk_view;

/// Maximum number of receives of all clients.
const MAX_RECEIVES: usize = 8;
/// Maximum number of receives of one client.
const MAX_OF_CLIENT: usize = 4;
/// Time without a new byte after which a receive ends.
const IDLE: Duration = Duration::from_secs(3600);

/// Time for which the view of a complete receive is kept.
const KEEP_COMPLETE: Duration = Duration::from_secs(60);

/// The receives of all clients.
#[derive(Default)]
pub(crate) struct Receives(Mutex<All>);

#[derive(Default)]
struct All {
    receives: BTreeMap<u64, Arc<Receive>>,
    /// Number of the last receive. A number is not used again.
    last: u64,
}

struct Receive {
    id: u64,
    owner: String,
    /// Name of the client, for people.
    client: String,
    /// Name of the volume or image at this pool.
    name: String,
    state: tokio::sync::Mutex<State>,
    /// The latest view of the receive, also while a piece is processed.
    view: Mutex<ReceiveView>,
    /// When the last piece arrived.
    used: Mutex<Instant>,
}

#[derive(Default)]
struct State {
    decoder: Decoder,
    /// Bytes of the stream that were received.
    received: u64,
    /// The header of the first stream, and the hidden disk.
    begun: Option<(Header, Receiving)>,
    /// The end of what is on the hidden disk.
    position: Position,
    is_ended: bool,
}

impl From<StreamError> for ControlError {
    fn from(e: StreamError) -> ControlError {
        ControlError::new(ErrorKind::BadSource, format!("{e}; nothing was changed"))
    }
}

impl From<ReceiveError> for ControlError {
    fn from(e: ReceiveError) -> ControlError {
        let kind = match e {
            ReceiveError::Pool(e) => return e.into(),
            ReceiveError::Known(_) => ErrorKind::Exists,
            ReceiveError::NoParent => ErrorKind::NotFound,
            ReceiveError::OtherParent { .. } | ReceiveError::Changed { .. } => ErrorKind::BadState,
        };
        ControlError::new(kind, e.to_string())
    }
}

impl Receives {
    /// Returns a receive of this client.
    fn find(&self, id: u64, owner: &str) -> Result<Arc<Receive>> {
        let found = self.0.lock().receives.get(&id).filter(|receive| receive.owner == owner).cloned();
        found.ok_or_else(|| {
            let why = format!("there is no receive {id} of this client; it may have ended: begin again");
            ControlError::new(ErrorKind::NotFound, why)
        })
    }

    /// The state of a receive of this client.
    ///
    /// # Errors
    /// The client has no such receive.
    pub fn show(&self, id: u64, owner: &str) -> Result<ReceiveView> {
        Ok(self.find(id, owner)?.view.lock().clone())
    }

    /// All receives, the oldest first.
    pub fn list(&self) -> Vec<ReceiveView> {
        self.0.lock().receives.values().map(|receive| receive.view.lock().clone()).collect()
    }

    /// Ends a receive, and discards what it has. Does nothing if it does not exist.
    pub async fn remove(&self, control: &Control, id: u64) {
        let removed = self.0.lock().receives.remove(&id);
        if let Some(receive) = removed {
            let mut state = receive.state.lock().await;
            discard(control, &mut state).await;
        }
    }
}

/// Removes the hidden disk.
async fn discard(control: &Control, state: &mut State) {
    state.is_ended = true;
    if let Some((_, receiving)) = state.begun.take()
        && let Err(error) = control.pool().abandon_receive(receiving).await
    {
        tracing::warn!(%error, "cannot remove what was received; the next start removes it");
    }
}

/// Begins a receive into a volume, or of an image, with this name.
///
/// # Errors
/// The name is invalid, or there are too many receives.
pub(crate) fn begin(control: &Control, owner: &str, client: &str, name: String) -> Result<ReceiveView> {
    check_name(&name)?;
    let mut all = control.receives().0.lock();
    // Of a complete receive, only the view is left, for a client that has not received its last response.
    all.receives.retain(|_, receive| {
        receive.view.lock().disk.is_none() || receive.used.lock().elapsed() < KEEP_COMPLETE
    });
    let of_client = all.receives.values().filter(|receive| receive.owner == owner).count();
    if of_client >= MAX_OF_CLIENT || all.receives.len() >= MAX_RECEIVES {
        let why = format!(
            "too many receives: a client has at most {MAX_OF_CLIENT}, and all clients {MAX_RECEIVES}; continue or \
             end one first (GET and DELETE /receives)"
        );
        return Err(ControlError::new(ErrorKind::BadState, why));
    }
    all.last = (all.last + 1).max(forebay_host::clock::unix_ms());
    let id = all.last;
    let view = ReceiveView { id, name: name.clone(), client: client.to_owned(), ..ReceiveView::default() };
    let receive = Receive {
        id,
        owner: owner.to_owned(),
        client: client.to_owned(),
        name,
        state: Default::default(),
        view: Mutex::new(view.clone()),
        used: Mutex::new(Instant::now()),
    };
    all.receives.insert(id, Arc::new(receive));
    drop(all);
    tokio::spawn(expire(control.clone(), id));
    Ok(view)
}

/// Ends a receive that gets nothing for [`IDLE`].
async fn expire(control: Control, id: u64) {
    loop {
        let Some(used) = control.receives().0.lock().receives.get(&id).map(|receive| *receive.used.lock())
        else {
            return;
        };
        let end = used + IDLE;
        if Instant::now() >= end {
            return control.receives().remove(&control, id).await;
        }
        tokio::time::sleep_until(end).await;
    }
}

/// Prepares a receive for another stream, which begins where the last record ended.
///
/// # Errors
/// The client has no such receive.
pub(crate) async fn resume(control: &Control, owner: &str, id: u64) -> Result<ReceiveView> {
    let receive = control.receives().find(id, owner)?;
    let mut state = receive.state.lock().await;
    (state.decoder, state.received) = (Decoder::default(), 0);
    *receive.used.lock() = Instant::now();
    receive.view.lock().received_bytes = 0;
    Ok(receive.view.lock().clone())
}

/// Uses a piece of a stream.
///
/// # Errors
/// The client has no such receive, bytes before the piece are missing, the stream is damaged, or the pool
/// refuses it. In the latter two cases the receive has ended, and nothing was changed.
pub(crate) async fn append(
    control: &Control,
    owner: &str,
    id: u64,
    offset: u64,
    piece: Bytes,
) -> Result<ReceiveView> {
    let receive = control.receives().find(id, owner)?;
    let control = control.clone();
    let task = tokio::spawn(async move {
        let mut state = receive.state.lock().await;
        if state.is_ended {
            // Only its view is left, which a client requests that has not received its last response.
            return Ok(receive.view.lock().clone());
        }
        if offset > state.received {
            let why = format!("the stream continues at byte {}, not at byte {offset}", state.received);
            return Err(ControlError::new(ErrorKind::OutOfRange, why));
        }
        let known = usize::try_from(state.received - offset).unwrap_or(usize::MAX);
        let rest = piece.get(known..).unwrap_or_default();
        if !rest.is_empty() {
            *receive.used.lock() = Instant::now();
            state.received += rest.len() as u64;
            state.decoder.push(rest);
            if let Err(e) = apply(&control, &receive, &mut state).await {
                control.receives().0.lock().receives.remove(&receive.id);
                discard(&control, &mut state).await;
                tracing::info!(by = receive.client, error = %e, "receive failed: {}", quoted(&receive.name));
                return Err(e);
            }
            receive.view.lock().received_bytes = state.received;
        }
        Ok(receive.view.lock().clone())
    });
    task.await.unwrap_or_else(|_| Err(ControlError::internal("a piece of a stream was not processed")))
}

/// Uses everything that the decoder has.
async fn apply(control: &Control, receive: &Receive, state: &mut State) -> Result<()> {
    while let Some(item) = state.decoder.next()? {
        let missing = || ControlError::internal("a stream without a header was decoded");
        match item {
            Item::Header(header) => start(control, receive, state, header).await?,
            Item::Data(offset, data) => {
                state.begun.as_ref().ok_or_else(missing)?.1.write(offset, &data).await?;
            }
            Item::Zero(offset, len) => {
                state.begun.as_ref().ok_or_else(missing)?.1.zero(offset, len).await?;
            }
            Item::End => {
                let (header, receiving) = state.begun.take().ok_or_else(missing)?;
                finish(control, receive, header, receiving).await?;
                state.is_ended = true;
            }
        }
        state.position = state.decoder.position();
        let Position { offset, records, data } = state.position;
        let mut view = receive.view.lock();
        (view.offset_bytes, view.records, view.data_bytes) = (offset, records, data);
    }
    Ok(())
}

/// Begins or continues with the header of a stream.
async fn start(control: &Control, receive: &Receive, state: &mut State, header: Header) -> Result<()> {
    if let Some((first, _)) = &state.begun {
        let continued = Header { position: first.position, name: first.name.clone(), ..header.clone() };
        if continued != *first || header.position != state.position {
            let why =
                "this stream does not continue what was received: it has another disk or another position";
            return Err(ControlError::new(ErrorKind::BadSource, why));
        }
        return Ok(());
    }
    if header.position != Position::default() {
        let why =
            "this stream continues another one, of which nothing was received; send it from the beginning";
        return Err(ControlError::new(ErrorKind::BadSource, why));
    }
    let request = ReceiveRequest {
        name: receive.name.clone(),
        snapshot: (!header.is_image).then(|| header.name.clone()),
        uuid: header.uuid,
        parent: header.parent,
        size: header.size,
    };
    let receiving = control.pool().begin_receive(request).await?;
    {
        let mut view = receive.view.lock();
        view.size_bytes = header.size;
        view.snapshot = (!header.is_image).then(|| header.name.clone());
    }
    state.begun = Some((header, receiving));
    Ok(())
}

/// Makes what was received visible.
async fn finish(control: &Control, receive: &Receive, header: Header, receiving: Receiving) -> Result<()> {
    let exists = control.pool().disk(&receive.name).is_ok();
    let work = async { Ok(control.pool().finish_receive(receiving).await?) };
    let kind = if header.is_image { Kind::Image } else { Kind::Volume };
    let made = match exists {
        true => work.await?,
        false => control.create_named(&[&receive.name], kind, work).await?,
    };
    tracing::info!(by = receive.client, "received {} of {}", quoted(&made.name), Size(made.size));
    receive.view.lock().disk = disk_view(&made);
    Ok(())
}
