//! Text requests of a session (RFC 7143, section 11.10). An exchange can take several requests and responses.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::iscsi::text::{self, MAX_TEXT};
use forebay_wire::iscsi::{NO_TAG, reply};

use super::context::Context;
use super::discovery::send_targets;
use super::limits::MAX_TEXT_REPLY;
use super::link::Link;
use crate::plane::{COSTLY_REQUEST, Charge, Kind, Output};
use crate::targets::IqnName;

/// A text request that is not valid at this point; it is rejected.
pub(super) struct Invalid;

/// The text requests that a session has sent.
pub(super) struct TextRequests {
    context: Arc<Context>,
    link: Rc<Link>,
    initiator: IqnName,
    /// The target of the session; `None` for a discovery session.
    target: Option<IqnName>,
    /// The address to which the initiator connected.
    local: SocketAddr,
    /// The exchange that a request with this transfer tag continues.
    exchange: Option<(u32, Exchange)>,
    /// The charge for the memory of the exchange.
    charge: Option<Charge>,
}

/// An exchange of text that takes several requests.
enum Exchange {
    /// The request is incomplete; this is the text received so far.
    Request(Vec<u8>),
    /// The answer is incomplete; this is the text that is still to be sent.
    Answer(Vec<u8>),
}

impl Exchange {
    /// Bytes of memory that the exchange holds.
    fn bytes(&self) -> usize {
        match self {
            Exchange::Request(text) | Exchange::Answer(text) => text.capacity(),
        }
    }
}

impl TextRequests {
    pub fn new(
        context: Arc<Context>,
        link: Rc<Link>,
        initiator: IqnName,
        target: Option<IqnName>,
        local: SocketAddr,
    ) -> TextRequests {
        TextRequests { context, link, initiator, target, local, exchange: None, charge: None }
    }

    /// Whether an exchange of text is in progress.
    pub fn is_busy(&self) -> bool {
        self.exchange.is_some()
    }

    /// Serves a request. With `continues`, its text continues in the next request.
    pub fn serve(
        &mut self,
        tag: u32,
        transfer_tag: u32,
        continues: bool,
        text: &[u8],
        output: &mut Output,
    ) -> Result<(), Invalid> {
        // A request without a transfer tag starts a new exchange.
        let exchange = match self.exchange.take() {
            Some((expected, exchange)) if transfer_tag == expected => exchange,
            _ if transfer_tag == NO_TAG => Exchange::Request(Vec::new()),
            _ => return Err(Invalid),
        };
        let mut answer = match exchange {
            Exchange::Answer(rest) => rest,
            Exchange::Request(before) if before.len() + text.len() > MAX_TEXT => return Err(Invalid),
            Exchange::Request(mut request) => {
                request.extend_from_slice(text);
                if continues {
                    self.respond(tag, &[], Some(Exchange::Request(request)), output);
                    return Ok(());
                }
                self.answer(&request)?
            }
        };
        let most = self.link.parameters.max_send.min(MAX_TEXT_REPLY);
        let rest = answer.split_off(answer.len().min(most));
        self.respond(tag, &answer, (!rest.is_empty()).then_some(Exchange::Answer(rest)), output);
        Ok(())
    }

    /// Answers the request `tag`. With `more`, the initiator has to continue the exchange.
    fn respond(&mut self, tag: u32, text: &[u8], more: Option<Exchange>, output: &mut Output) {
        let account = self.link.backlog.account();
        self.charge = more.as_ref().map(|exchange| account.force(exchange.bytes(), Kind::Input));
        self.exchange = more.map(|exchange| (self.link.transfer_tag(), exchange));
        let transfer_tag = self.exchange.as_ref().map(|(tag, _)| *tag);
        let header = reply::text(tag, &self.link.status_numbers(), transfer_tag, text.len());
        self.link.put(&header, text, output);
    }

    fn answer(&self, request: &[u8]) -> Result<Vec<u8>, Invalid> {
        self.link.backlog.budget().count(COSTLY_REQUEST);
        let (mut out, mut listed) = (Vec::new(), false);
        for (key, value) in text::parse(request).map_err(|_| Invalid)? {
            match key {
                // Answered once in each request: repeated keys would multiply the memory of the answer.
                "SendTargets" if !std::mem::replace(&mut listed, true) => {
                    let current = self.target.as_ref();
                    send_targets(&self.context, &self.initiator, current, value, self.local, &mut out);
                }
                // Parameters cannot be renegotiated.
                _ => text::push(&mut out, key, "Reject"),
            }
        }
        Ok(out)
    }
}
