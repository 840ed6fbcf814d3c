//! One client connection, from accept to close.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::context::Context;
use super::errors::End;
use super::login::login;
use super::session::session;
use crate::plane::{Client, Cut, FrontEnd, MemoryAccount, Socket, Worker, contained};
use crate::throttle::Throttle;

/// The iSCSI front end.
pub(super) struct Front(pub Arc<Context>);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        static ENDED: Throttle = Throttle::new();
        let (worker, context) = (worker.clone(), self.0.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            // A panic is logged where it is contained.
            if let Ok(Err(end)) = contained("an iSCSI connection", serve(worker, context, client)).await
                && let Some(left_out) = ENDED.permit()
            {
                tracing::info!(%end, left_out, "an iSCSI connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: Arc<Context>, client: Client) -> Result<(), End> {
    let Client { socket, admission } = client;
    let Socket::Tcp(mut stream) = socket.into_tokio()? else {
        return Err(End::Ended("iSCSI needs a TCP connection"));
    };
    let (peer, local) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    // Boxed, so that an idle connection does not keep its memory during the session.
    let login = Box::pin(login(&mut stream, &context, peer, MemoryAccount::new(worker.memory())));
    let logged_in = match admission.negotiate(&worker, login).await {
        Err(Cut::Stopping) => return Ok(()),
        done => done??,
    };
    if logged_in.session.is_some() {
        admission.keep()?;
    }
    let discovery_idle = logged_in.session.is_none().then(|| admission.negotiation_time());
    let session = session(worker, context, stream, logged_in, (peer, local), discovery_idle);
    tokio::select! {
        done = session => done,
        // Only a discovery session is evicted, since any client can start one.
        () = admission.evicted() => Err(Cut::Evicted.into()),
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
