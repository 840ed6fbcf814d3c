//! One client connection, from accept to close.

use std::rc::Rc;
use std::sync::Arc;

use forebay_host::clock::unix_ms;

use super::attachments::Peer;
use super::context::{Context, MetaContexts, Negotiated};
use super::errors::End;
use super::handover::HandedOver;
use super::negotiate::negotiate;
use super::peer;
use super::stream::Stream;
use super::transmission::transmit;
use crate::plane::{
    Client, Cut, Ended, FrontEnd, ListenAddr, MemoryAccount, Parked, RawSocket, Resume, Resumed, Worker,
};
use crate::throttle::Throttle;

/// The name of a connection in the log.
const CONNECTION: &str = "an NBD connection";

/// The NBD front end of one listener.
pub struct Front(pub Context);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        let context = self.0.clone();
        let serve = |worker| async move { serve(worker, &context, client).await };
        worker.spawn_connection(CONNECTION, serve, log_end);
    }

    fn resume(&self, state: serde_json::Value, socket: &RawSocket) -> Result<Resume, String> {
        let state: HandedOver = serde_json::from_value(state).map_err(|e| e.to_string())?;
        let context = &self.0;
        if context.is_relay {
            return Err("its node connects again".into());
        }
        // The access may have been restricted since the client connected.
        if context.tls.required || !context.access.grant(None).sees(&state.export) {
            return Err(format!("its listener does not offer '{}' any more", state.export));
        }
        let client = peer::client_of(socket);
        let disk = context.pool.attach_as(&state.export, client).map_err(|e| e.to_string())?;
        let since = state.changed_since.as_deref().map(|earlier| context.pool.since(&state.export, earlier));
        let since = since.transpose().map_err(|e| e.to_string())?.map(Arc::new);
        let contexts = MetaContexts { allocation: state.block_status, since };
        let read_only = context.access.read_only;
        let is_writable = !read_only && !disk.read_only();
        // The socket is made known before any client is accepted: if its peer is gone, the next connection to
        // the disk waits for this connection, which may have writes to execute.
        let (peer, name) = (Some(Peer::of(socket)), peer::name_of(socket));
        let since_ms = state.since_ms.unwrap_or_else(unix_ms);
        let attached = context.attached((&state.export, disk), is_writable, (peer, name), None, since_ms);
        Ok(Box::new(move |worker, Resumed { socket, listener, admission, received, .. }| {
            let serve = |worker: Rc<Worker>| async move {
                let _admission = admission;
                let stream = Stream::Plain(socket.into_tokio()?);
                let structured = state.structured;
                let is_relayed = false;
                let negotiated =
                    Negotiated { attached, stream, structured, contexts, read_only, is_relayed, received };
                transmit_or_park(worker, negotiated, &listener).await
            };
            worker.spawn_connection(CONNECTION, serve, log_end);
        }))
    }
}

/// Logs the end of a connection.
fn log_end(end: End) {
    static ENDED: Throttle = Throttle::new();
    if let Some(left_out) = ENDED.permit() {
        tracing::info!(left_out, "an NBD connection ended: {end}");
    }
}

async fn serve(worker: Rc<Worker>, context: &Context, client: Client) -> Result<(), End> {
    let Client { socket, admission, listener } = client;
    let stream = Stream::Plain(socket.into_tokio()?);
    // Boxed, so that an idle connection does not keep its memory during transmission.
    let negotiated = match admission
        .negotiate(&worker, Box::pin(negotiate(stream, context, MemoryAccount::new(worker.memory()))))
        .await
    {
        Err(Cut::Stopping) => return Ok(()),
        negotiated => negotiated??,
    };
    let Some(negotiated) = negotiated else { return Ok(()) };
    admission.keep()?;
    transmit_or_park(worker, negotiated, &listener).await
}

/// Serves a client that has chosen its disk, until it disconnects or is handed over.
async fn transmit_or_park(
    worker: Rc<Worker>,
    negotiated: Negotiated,
    listener: &Arc<ListenAddr>,
) -> Result<(), End> {
    if let Ended::Parked(stream) = transmit(worker.clone(), negotiated).await? {
        worker.park(Parked { listener: ListenAddr::clone(listener), stream: *stream });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use forebay_engine::{Pool, PoolConfig, SyncMode};
    use forebay_store::MemoryStore;

    use super::super::tls::Certificates;
    use super::*;
    use crate::nbd::{Config, ListenerConfig};
    use forebay_host::EngineThread;

    #[tokio::test]
    async fn a_connection_that_was_handed_over_and_is_gone_is_waited_for_before_it_is_served() {
        let engine = EngineThread::start(1).unwrap();
        let config = PoolConfig { read_cache: 4 << 20, map_cache: 4 << 20, ..PoolConfig::default() };
        let opening = Pool::open(Arc::new(MemoryStore::new()), engine.host(), config);
        let pool = engine.run(opening).await.unwrap();
        pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        let tls = Certificates::load(&Config::default()).unwrap().listener(&ListenerConfig::default());
        let context = Context {
            pool,
            tls,
            access: Default::default(),
            attachments: Arc::default(),
            clients: Default::default(),
            is_relay: false,
        };
        let (client, server) = UnixStream::pair().unwrap();
        let socket = RawSocket::Unix(server);
        let (export, changed_since) = ("v".into(), None);
        let state =
            HandedOver { export, structured: true, block_status: false, changed_since, since_ms: None };
        let resume = Front(context.clone()).resume(serde_json::to_value(state).unwrap(), &socket).unwrap();
        context.attachments.end_gone("v", None).await.expect("the client is connected");
        drop(client);
        let mut next = std::pin::pin!(context.attachments.end_gone("v", None));
        let waits = tokio::time::timeout(Duration::from_millis(50), next.as_mut()).await.is_err();
        assert!(waits, "the next connection did not wait for writes of the one that is gone");
        drop(resume);
        next.await.expect("the connection has ended");
    }
}
