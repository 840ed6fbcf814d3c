//! The negotiation with a client, up to the choice of its export.
//!
//! This side answers what concerns no export. An option about an export is forwarded to the owner of the
//! export, over a connection on which the features and contexts are negotiated that the client has negotiated
//! here, and the replies are relayed. The owner's connection is kept for the next option, since programs send
//! several options about one export.
//!
//! Each connection to an owner has a separate identity until an export is open: an owner distinguishes new
//! clients from clients that are connected again.

use std::sync::Arc;
use std::time::Duration;

use forebay_text::{quoted, shorten};
use forebay_wire::nbd::{
    self, INFO_RELAY, MetaRequest, OPT_EXPORT_NAME, OPT_GO, OPT_SET_META_CONTEXT, OptionDecoder, OptionEvent,
    OptionRequest, REP_ERR_INVALID, REP_ERR_POLICY, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::end::{End, OwnerError};
use super::limits::{
    FIRST_PAUSE, LIST_CHUNK, LONGEST_PAUSE, LOOK_UP, NEGOTIATION, OPTIONS, OPTIONS_PER_EXPORT, OWNER_PATIENCE,
};
use super::memory::Account;
use super::owner::{Answer, Export, Owner, Selected, go_data, locate, opened};
use crate::{NbdClient, Shards};

/// Bytes of an option before its data.
const OPTION_HEADER: usize = 16;

/// Maximum length of the name of an export in a reply, in bytes.
const MAX_NAME: usize = 256;

/// A client with the export that it has chosen.
pub(super) struct Negotiated<C> {
    pub client: C,
    /// Bytes that were received after the last option.
    pub input: Vec<u8>,
    pub export: Export,
    pub owner: Owner,
}

/// The next step after an option.
enum Turn {
    Continue,
    /// The client has ended the connection.
    End,
    Start(Box<(Export, Owner)>),
}

/// A negative reply to an option.
struct Denied {
    reply: u32,
    text: String,
}

impl Denied {
    fn new(reply: u32, text: impl Into<String>) -> Denied {
        Denied { reply, text: text.into() }
    }
}

/// An option about an export, to be forwarded.
#[derive(Clone, Copy)]
struct Forward<'a> {
    option: u32,
    data: &'a [u8],
    export: &'a str,
}

struct Negotiation<'a, C> {
    shards: &'a Arc<dyn Shards>,
    client: C,
    /// The client for administrators.
    name: &'a str,
    /// Identity of the client's connection.
    id: &'a str,
    decoder: OptionDecoder,
    input: Vec<u8>,
    out: Vec<u8>,
    /// Time that the client has left.
    left: Duration,
    no_zeroes: bool,
    structured: bool,
    selected: Option<Selected>,
    owner: Option<Owner>,
    /// Number of connections to owners.
    connections: u64,
    account: &'a mut Account,
    /// Number of options about exports, where a list counts once for each export; and the permitted number.
    options: usize,
    permitted: usize,
}

/// Negotiates with a client. `None` if it disconnected without choosing an export.
pub(super) async fn negotiate<C: AsyncRead + AsyncWrite + Send + Unpin>(
    client: C,
    (id, name): (&str, &str),
    shards: &Arc<dyn Shards>,
    account: &mut Account,
) -> Result<Option<Negotiated<C>>, End> {
    let mut n = Negotiation {
        shards,
        client,
        name,
        id,
        decoder: OptionDecoder::new(),
        input: Vec::new(),
        out: Vec::new(),
        left: NEGOTIATION,
        no_zeroes: false,
        structured: false,
        selected: None,
        owner: None,
        connections: 0,
        account,
        options: 0,
        permitted: OPTIONS,
    };
    nbd::greeting(&mut n.out);
    loop {
        match n.turn().await? {
            // Thousands of options can arrive at once.
            Turn::Continue => tokio::task::yield_now().await,
            Turn::End => return Ok(None),
            Turn::Start(opened) => {
                let (export, owner) = *opened;
                return Ok(Some(Negotiated { client: n.client, input: n.input, export, owner }));
            }
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin> Negotiation<'_, C> {
    /// Sends pending replies, receives the next message, and handles it.
    async fn turn(&mut self) -> Result<Turn, End> {
        if self.out.len() >= LIST_CHUNK {
            self.send().await?;
        }
        let (event, data) = loop {
            let (used, event) = self.decoder.next(&self.input)?;
            let data = match &event {
                OptionEvent::Option(_) => self.input.get(OPTION_HEADER..used).unwrap_or_default().to_vec(),
                _ => Vec::new(),
            };
            self.input.drain(..used);
            if event != OptionEvent::NeedMore {
                break (event, data);
            }
            self.send().await?;
            if !self.receive().await? {
                return Ok(Turn::End);
            }
        };
        match event {
            OptionEvent::NeedMore => Ok(Turn::Continue),
            OptionEvent::ClientFlags { no_zeroes } => {
                self.no_zeroes = no_zeroes;
                Ok(Turn::Continue)
            }
            OptionEvent::Refused { option: OPT_EXPORT_NAME, refusal } => {
                Err(End::Refused { export: String::new(), why: refusal.to_string() })
            }
            OptionEvent::Refused { option, refusal } => {
                nbd::option_error(&mut self.out, option, refusal.reply(), &refusal.to_string());
                if option == OPT_SET_META_CONTEXT {
                    self.selected = None;
                }
                Ok(Turn::Continue)
            }
            OptionEvent::Option(request) => self.option(request, &data).await,
        }
    }

    /// Receives bytes of the client. Returns false if the client has closed its side.
    async fn receive(&mut self) -> Result<bool, End> {
        let begin = Instant::now();
        let received = timeout(self.left, self.client.read_buf(&mut self.input)).await;
        self.left = self.left.saturating_sub(begin.elapsed());
        Ok(received.map_err(|_| End::Slow(NEGOTIATION))?? > 0)
    }

    async fn send(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let sending = async {
            self.client.write_all(&self.out).await?;
            self.client.flush().await
        };
        let sent = timeout(self.left, sending).await;
        self.left = self.left.saturating_sub(begin.elapsed());
        sent.map_err(|_| End::Slow(NEGOTIATION))??;
        self.out.clear();
        Ok(())
    }

    async fn option(&mut self, request: OptionRequest, data: &[u8]) -> Result<Turn, End> {
        let option = request.number();
        if !matches!(request, OptionRequest::Abort | OptionRequest::StartTls | OptionRequest::StructuredReply)
        {
            self.count(1)?;
        }
        let done = match request {
            OptionRequest::Abort => {
                nbd::option_ack(&mut self.out, option);
                // An error is ignored: the client may already have closed the connection.
                let _ = self.send().await;
                return Ok(Turn::End);
            }
            OptionRequest::StartTls => {
                Err(Denied::new(REP_ERR_UNSUP, "TLS is not available at this address"))
            }
            OptionRequest::StructuredReply => {
                self.structured = true;
                Ok(())
            }
            OptionRequest::List => self.list().await?,
            OptionRequest::ExportName(export) => return self.export_name(&export).await,
            OptionRequest::Go(info) => {
                let forward = Forward { option, data, export: &info.name };
                match self.open(forward).await? {
                    Ok((answer, export, owner)) => {
                        self.relay(option, &answer);
                        self.send().await?;
                        return Ok(Turn::Start(Box::new((export, owner))));
                    }
                    Err(denied) => Err(denied),
                }
            }
            OptionRequest::Info(info) => {
                let forward = Forward { option, data, export: &info.name };
                return self.forward_and_relay(forward).await;
            }
            OptionRequest::ListMetaContext(meta) | OptionRequest::SetMetaContext(meta) => {
                return self.meta_context(option, &meta, data).await;
            }
        };
        match done {
            Ok(()) => nbd::option_ack(&mut self.out, option),
            Err(Denied { reply, text }) => nbd::option_error(&mut self.out, option, reply, &text),
        }
        Ok(Turn::Continue)
    }

    /// Answers `NBD_OPT_EXPORT_NAME`. This option has no negative reply, so an error ends the connection.
    async fn export_name(&mut self, export: &str) -> Result<Turn, End> {
        let data = go_data(export);
        let forward = Forward { option: OPT_GO, data: &data, export };
        match self.open(forward).await? {
            Ok((_, export, owner)) => {
                nbd::option_export_name(&mut self.out, export.size, export.flags, self.no_zeroes);
                self.send().await?;
                Ok(Turn::Start(Box::new((export, owner))))
            }
            Err(Denied { text, .. }) => Err(End::Refused { export: export.to_owned(), why: text }),
        }
    }

    /// Counts the options about exports that the client sends.
    fn count(&mut self, options: usize) -> Result<(), End> {
        self.options += options;
        if self.options > self.permitted { Err(End::TooManyOptions) } else { Ok(()) }
    }

    /// Lists the names of all exports, without descriptions, which only their owners know.
    async fn list(&mut self) -> Result<Result<(), Denied>, End> {
        let unread = |why: &str| Ok(Err(Denied::new(REP_ERR_POLICY, format!("{why}; try again"))));
        let names = match timeout(LOOK_UP, self.shards.names()).await {
            Ok(Ok(names)) => names,
            Ok(Err(e)) => return unread(&format!("cannot read the directory of names: {e}")),
            Err(_) => return unread("the directory of names does not answer"),
        };
        let bytes = names.iter().map(|name| name.len() + size_of::<String>()).sum();
        if !self.account.try_take(bytes) {
            return Err(End::NoMemory);
        }
        let listed = self.send_list(&names).await;
        self.account.give_back(bytes);
        listed.map(Ok)
    }

    async fn send_list(&mut self, names: &[String]) -> Result<(), End> {
        self.permitted = self.permitted.max(OPTIONS + OPTIONS_PER_EXPORT * names.len());
        self.count(names.len())?;
        for name in names {
            nbd::option_server(&mut self.out, name, "");
            if self.out.len() >= LIST_CHUNK {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn meta_context(&mut self, option: u32, meta: &MetaRequest, data: &[u8]) -> Result<Turn, End> {
        if option == OPT_SET_META_CONTEXT {
            self.selected = None;
        }
        if !self.structured {
            let text = "metadata contexts need structured replies";
            nbd::option_error(&mut self.out, option, REP_ERR_INVALID, text);
            return Ok(Turn::Continue);
        }
        let turn = self.forward_and_relay(Forward { option, data, export: &meta.export }).await?;
        if option == OPT_SET_META_CONTEXT {
            self.selected = self.owner.as_ref().and_then(|owner| owner.selected().cloned());
        }
        Ok(turn)
    }

    async fn forward_and_relay(&mut self, forward: Forward<'_>) -> Result<Turn, End> {
        match self.forward(forward).await? {
            Ok(answer) => self.relay(forward.option, &answer),
            Err(Denied { reply, text }) => nbd::option_error(&mut self.out, forward.option, reply, &text),
        }
        Ok(Turn::Continue)
    }

    /// Relays the replies of an owner, without what is for nodes only.
    fn relay(&mut self, option: u32, answer: &Answer) {
        let is_private =
            |kind: u32, data: &[u8]| kind == REP_INFO && data.starts_with(&INFO_RELAY.to_be_bytes());
        for (kind, data) in answer.replies.iter().filter(|(kind, data)| !is_private(*kind, data)) {
            nbd::encode_option_reply(&mut self.out, option, *kind, &[data]);
        }
    }

    /// Opens an export at its owner.
    async fn open(&mut self, forward: Forward<'_>) -> Result<Result<(Answer, Export, Owner), Denied>, End> {
        let answer = match self.forward(forward).await? {
            Ok(answer) => answer,
            Err(denied) => return Ok(Err(denied)),
        };
        if let Some((reply, text)) = answer.error() {
            return Ok(Err(Denied::new(reply, text)));
        }
        let unusable =
            |why: OwnerError| Denied::new(REP_ERR_POLICY, format!("the owner cannot be used: {why}"));
        let (size, flags, relay) = match opened(&answer) {
            Ok(opened) => opened,
            Err(why) => return Ok(Err(unusable(why))),
        };
        let Some(owner) = self.owner.take() else {
            return Ok(Err(unusable(OwnerError::lost("it is not connected"))));
        };
        let name = forward.export.to_owned();
        let selected = self.selected_for(&name).cloned();
        let export = Export { name, structured: self.structured, selected, size, flags, relay };
        Ok(Ok((answer, export, owner)))
    }

    /// The metadata contexts that are valid for an export.
    fn selected_for(&self, export: &str) -> Option<&Selected> {
        self.selected.as_ref().filter(|selected| self.structured && selected.export == export)
    }

    /// Forwards an option to the owner of its export, and waits for the owner if it does not answer.
    async fn forward(&mut self, forward: Forward<'_>) -> Result<Result<Answer, Denied>, End> {
        if forward.export.is_empty() {
            let text = "a cluster has no default export; name one (list the exports to see them)";
            return Ok(Err(Denied::new(REP_ERR_UNKNOWN, text)));
        }
        // The owner may take long; the client gets the earlier answers now.
        self.send().await?;
        let (begin, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let why = match self.try_forward(forward).await {
                Ok(Some(answer)) if !answer.asks_to_repeat() => return Ok(Ok(answer)),
                Ok(Some(answer)) => answer.error().map_or_else(String::new, |(_, text)| text),
                Ok(None) => {
                    let name = shorten(forward.export, MAX_NAME);
                    let text = format!("no volume or image of the cluster has the name {}", quoted(&name));
                    return Ok(Err(Denied::new(REP_ERR_UNKNOWN, text)));
                }
                Err(OwnerError::Protocol(why)) => {
                    self.owner = None;
                    let text = format!("the owner of the export cannot be used: {why}");
                    return Ok(Err(Denied::new(REP_ERR_POLICY, text)));
                }
                Err(OwnerError::Lost(e)) => e.to_string(),
            };
            self.owner = None;
            if begin.elapsed() + pause >= OWNER_PATIENCE {
                let text = format!("the owner of the export cannot be reached: {why}; try again");
                return Ok(Err(Denied::new(REP_ERR_POLICY, text)));
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Forwards an option. `None` if no shard has the export.
    async fn try_forward(&mut self, forward: Forward<'_>) -> Result<Option<Answer>, OwnerError> {
        let Forward { option, data, export } = forward;
        let Some(shard) = locate(&**self.shards, export).await? else { return Ok(None) };
        let selected = self.selected_for(export).cloned();
        // A selection cannot be undone on a connection.
        let is_usable = |owner: &&mut Owner| {
            owner.shard == shard && (option != OPT_GO || owner.selected().is_none() || selected.is_some())
        };
        if self.owner.as_mut().filter(is_usable).is_none() {
            self.connections += 1;
            let id = format!("{}.{}", self.id, self.connections);
            let client = NbdClient { id, generation: 1, age_ms: 0, name: self.name.to_owned() };
            self.owner = None;
            self.owner = Some(Owner::connect(self.shards, shard, client).await?);
        }
        let Some(owner) = &mut self.owner else { return Err(OwnerError::lost("it is not connected")) };
        let answer = match option {
            OPT_GO => owner.go(self.structured, selected.as_ref(), data).await?,
            OPT_SET_META_CONTEXT => {
                owner.agree(self.structured).await?;
                owner.select(export, data).await?
            }
            _ => {
                owner.agree(self.structured).await?;
                owner.option(option, data).await?
            }
        };
        Ok(Some(answer))
    }
}
