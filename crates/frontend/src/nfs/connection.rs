//! One connection, from accept to close.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::nfs::{CALL_MAX, PROGRAM, mount, portmap};
use forebay_wire::rpc::{Record, next_record};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::access::permitted;
use super::context::Context;
use super::errors::End;
use super::session::Session;
use crate::plane::{
    Backlog, Client, Conversation, Cut, Ended, FrontEnd, MemoryAccount, RawSocket, Received, Socket, Worker,
    network,
};
use crate::throttle::Throttle;

/// The name of a connection in the log.
const CONNECTION: &str = "an NFS connection";
/// Bytes of a call up to its program: mark, number, kind, version of RPC, program.
const FIRST: usize = 20;

/// The programs that a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Programs {
    /// NFS, MOUNT, and the port mapper.
    Nfs,
    /// Only the port mapper.
    PortMapper,
}

impl Programs {
    pub fn has(self, program: u32) -> bool {
        program == portmap::PROGRAM || (self == Programs::Nfs && [PROGRAM, mount::PROGRAM].contains(&program))
    }
}

/// The front end for NFS.
pub(super) struct Front {
    pub context: Arc<Context>,
    pub programs: Programs,
}

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        let (context, programs) = (self.context.clone(), self.programs);
        worker.spawn_connection(
            CONNECTION,
            move |worker| serve(worker, (context, programs), client),
            log_end,
        );
    }
}

/// Logs the end of a connection. Refused clients are limited separately, so that other ends cannot hide them.
fn log_end(end: End) {
    static ENDED: Throttle = Throttle::new();
    static REFUSED: Throttle = Throttle::new();
    let throttle = if matches!(end, End::Refused(_)) { &REFUSED } else { &ENDED };
    if let Some(left_out) = throttle.permit() {
        tracing::info!(left_out, "an NFS connection ended: {end}");
    }
}

fn tcp(socket: RawSocket) -> Result<(TcpStream, SocketAddr), End> {
    let Socket::Tcp(stream) = socket.into_tokio()? else {
        return Err(End::Ended("NFS needs a TCP connection"));
    };
    let peer = stream.peer_addr()?;
    Ok((stream, SocketAddr::new(peer.ip().to_canonical(), peer.port())))
}

/// Receives the beginning of the first call; `None` if the client ends the connection before. A client that
/// sends something else does not count as a client of NFS.
async fn first_call(stream: &mut TcpStream, programs: Programs) -> Result<Option<Vec<u8>>, End> {
    let mut input = Vec::with_capacity(FIRST);
    while input.len() < FIRST {
        let mut rest = [0; FIRST];
        let len = stream.read(&mut rest[..FIRST - input.len()]).await?;
        if len == 0 {
            return Ok(None);
        }
        input.extend_from_slice(&rest[..len]);
    }
    if let Record::Complete { .. } = next_record(&input, CALL_MAX)? {
        return Err(End::Ended("its first message is too short for a call"));
    }
    let word =
        |at: usize| input.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
    let is_call = word(8) == Some(0) && word(12) == Some(2);
    if !is_call || !word(16).is_some_and(|program| programs.has(program)) {
        return Err(End::Ended("its first message is not a call of a program that is served"));
    }
    Ok(Some(input))
}

async fn serve(
    worker: Rc<Worker>,
    (context, programs): (Arc<Context>, Programs),
    client: Client,
) -> Result<(), End> {
    let Client { socket, admission, .. } = client;
    let (mut stream, peer) = tcp(socket)?;
    let Some(permitted) = permitted(&context.access, peer.ip()) else {
        return Err(End::Refused(peer.ip()));
    };
    // A call of few bytes at a time would otherwise wait for the acknowledgement of the reply before.
    stream.set_nodelay(true)?;
    let account = MemoryAccount::new(worker.memory());
    let first = match admission.negotiate(&worker, Box::pin(first_call(&mut stream, programs))).await {
        Err(Cut::Stopping) => return Ok(()),
        first => first??,
    };
    drop(account);
    let Some(input) = first else { return Ok(()) };
    admission.keep()?;
    let backlog = Backlog::new(&worker);
    backlog.account().join(&format!("nfs {}", network(peer.ip())));
    let session = Session::new(worker.clone(), context, backlog.clone(), (programs, permitted, peer.ip()));
    let received = Received::after_negotiation(input);
    let mut conversation =
        std::pin::pin!(Conversation::new(worker, stream, None, received, backlog, session));
    let ended = conversation.as_mut().await;
    ended.map(|ended| debug_assert!(matches!(ended, Ended::Closed), "no connection is handed over"))
}
