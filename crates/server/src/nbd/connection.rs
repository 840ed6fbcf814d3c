//! One client connection, from accept to close.

use std::rc::Rc;

use super::context::Context;
use super::errors::End;
use super::negotiate::negotiate;
use super::stream::Stream;
use super::transmission::transmit;
use crate::plane::{Client, Cut, FrontEnd, MemoryAccount, Worker, contained};
use crate::throttle::Throttle;

/// The NBD front end of one listener.
pub(super) struct Front(pub Context);

impl FrontEnd for Front {
    fn spawn(&self, worker: &Rc<Worker>, client: Client) {
        static ENDED: Throttle = Throttle::new();
        let (worker, context) = (worker.clone(), self.0.clone());
        let entered = worker.enter();
        tokio::task::spawn_local(async move {
            let _entered = entered;
            // A panic is logged where it is contained.
            if let Ok(Err(end)) = contained("an NBD connection", serve(worker, &context, client)).await
                && let Some(left_out) = ENDED.permit()
            {
                tracing::info!(%end, left_out, "an NBD connection ended");
            }
        });
    }
}

async fn serve(worker: Rc<Worker>, context: &Context, client: Client) -> Result<(), End> {
    let Client { socket, admission } = client;
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
    transmit(worker, negotiated).await
}
