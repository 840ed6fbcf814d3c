//! The negotiation phase: options of a client, up to the choice of its disk.

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{Client, DiskInfo, Error, Role};
use forebay_host::clock::unix_ms;
use forebay_wire::nbd::{self, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::access::Grant;
use super::certificate::CertificateNames;
use super::context::{Attached, Context, MetaContexts, Negotiated};
use super::errors::{Denied, End, Fenced};
use super::handshake::MAX_HANDSHAKE;
use super::peer;
use super::stream::Stream;
use crate::plane::{Budget, Charge, Kind, MemoryAccount, Received};

/// Maximum bytes of options that are received without a charge, and the charge for longer options.
const SHORT_OPTION: usize = 8 << 10;
const LONG_OPTION: usize = 2 * OPTION_MAX as usize;
/// Number of disks that are listed without a pause for other connections, and bytes of replies that are
/// collected before they are sent.
const LIST_PAGE: usize = 64;
/// Number of disks that are examined without a pause to find the default export; each costs less than listing
/// it.
const DEFAULT_PAGE: usize = 256;
const LIST_CHUNK: usize = 16 << 10;
/// Maximum number of options about exports that a client can send, apart from [`OPTIONS_PER_EXPORT`].
const OPTIONS: usize = 64;
/// Number of further options that a client can send for each export that was listed. Programs that show all
/// exports send two or three options for each on one connection.
const OPTIONS_PER_EXPORT: usize = 8;
/// The block sizes that are announced to clients.
const BLOCK_SIZES: BlockSizes = BlockSizes { min: 1, preferred: 4096, max: MAX_PAYLOAD };

/// Negotiates with a client, within the client's share of the thread; returns `None` if it disconnected
/// without choosing a disk.
pub(super) async fn negotiate(
    stream: Stream,
    context: &Context,
    account: Rc<MemoryAccount>,
) -> Result<Option<Negotiated>, End> {
    Budget::default().run(negotiate_unbounded(stream, context, account)).await
}

async fn negotiate_unbounded(
    stream: Stream,
    context: &Context,
    account: Rc<MemoryAccount>,
) -> Result<Option<Negotiated>, End> {
    let client = peer::client(&stream);
    let mut n = Negotiation {
        context,
        stream,
        client,
        relayed: None,
        grant: context.access.grant(None),
        over_tls: false,
        decoder: OptionDecoder::new(),
        input: Vec::new(),
        out: Vec::new(),
        no_zeroes: false,
        structured: false,
        selected: None,
        account,
        charge: None,
        options: 0,
        permitted: OPTIONS,
    };
    if context.is_relay && !n.preamble().await? {
        return Ok(None);
    }
    nbd::greeting(&mut n.out);
    loop {
        match n.turn().await? {
            // An option can make the server go through all exports, and thousands of options can arrive at
            // once.
            Turn::Continue => tokio::task::yield_now().await,
            Turn::StartTls => n = n.start_tls().await?,
            Turn::End => return Ok(None),
            Turn::Start { attached, name } => {
                return Ok(Some(Negotiated {
                    attached,
                    structured: n.structured,
                    read_only: context.access.read_only,
                    is_relayed: context.is_relay,
                    // Metadata contexts are valid for one export, under exactly the name in the request that
                    // set them.
                    contexts: match n.selected {
                        Some((export, contexts)) if n.structured && export == name => contexts,
                        _ => MetaContexts::default(),
                    },
                    stream: n.stream,
                    received: Received::after_negotiation(n.input),
                }));
            }
        }
    }
}

/// The next step after an option.
enum Turn {
    Continue,
    StartTls,
    /// The client has ended the connection.
    End,
    /// The negotiation has ended, and the transmission starts.
    Start {
        attached: Attached,
        name: String,
    },
}

struct Negotiation<'a> {
    context: &'a Context,
    stream: Stream,
    client: Client,
    /// The client that a node forwards.
    relayed: Option<Preamble>,
    /// The exports that the client sees.
    grant: Grant,
    over_tls: bool,
    decoder: OptionDecoder,
    input: Vec<u8>,
    out: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export for which the client selected metadata contexts, and these contexts.
    selected: Option<(String, MetaContexts)>,
    account: Rc<MemoryAccount>,
    /// The charge for a long option.
    charge: Option<Charge>,
    /// Number of options about exports that were received, where a list counts once for each export; and the
    /// number of options that are permitted.
    options: usize,
    permitted: usize,
}

impl<'a> Negotiation<'a> {
    /// Receives the line with which the connection of a node begins. Returns false if the node has
    /// disconnected.
    async fn preamble(&mut self) -> Result<bool, End> {
        loop {
            if let Some((used, preamble)) = Preamble::decode(&self.input)? {
                self.input.drain(..used);
                (self.client, self.relayed) = (Client::Relayed, Some(preamble));
                return Ok(true);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Ok(false);
            }
        }
    }

    /// Sends pending replies, receives the next message, and handles it.
    async fn turn(&mut self) -> Result<Turn, End> {
        // Many short options can be received at once, and their replies are not charged.
        if self.out.len() >= LIST_CHUNK {
            self.send().await?;
        }
        let event = loop {
            let (used, event) = self.decoder.next(&self.input)?;
            self.input.drain(..used);
            if event != OptionEvent::NeedMore {
                break event;
            }
            self.send().await?;
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Ok(Turn::End);
            }
            if self.input.len() > SHORT_OPTION && self.charge.is_none() {
                self.charge = Some(self.account.try_take(LONG_OPTION, Kind::Input).ok_or(End::NoMemory)?);
            }
        };
        match event {
            OptionEvent::NeedMore => Ok(Turn::Continue),
            OptionEvent::ClientFlags { no_zeroes } => {
                self.no_zeroes = no_zeroes;
                Ok(Turn::Continue)
            }
            OptionEvent::Refused { option: OPT_EXPORT_NAME, refusal } => {
                Err(End::ExportName { name: String::new(), why: refusal.to_string() })
            }
            OptionEvent::Refused { option, refusal } => {
                if self.context.tls.required && !self.over_tls {
                    self.refuse_without_tls(option);
                } else {
                    nbd::option_error(&mut self.out, option, refusal.reply(), &refusal.to_string());
                }
                if option == OPT_SET_META_CONTEXT {
                    self.selected = None;
                }
                Ok(Turn::Continue)
            }
            OptionEvent::Option(request) => self.option(request).await,
        }
    }

    async fn send(&mut self) -> Result<(), End> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out).await?;
            self.stream.flush().await?;
            self.out.clear();
        }
        Ok(())
    }

    fn refuse_without_tls(&mut self, option: u32) {
        let text = "this server requires TLS; connect with nbds:";
        nbd::option_error(&mut self.out, option, REP_ERR_TLS_REQD, text);
    }

    async fn option(&mut self, request: OptionRequest) -> Result<Turn, End> {
        let option = request.number();
        let is_allowed_in_clear = matches!(request, OptionRequest::Abort | OptionRequest::StartTls);
        if self.context.tls.required && !self.over_tls && !is_allowed_in_clear {
            if let OptionRequest::ExportName(name) = request {
                return Err(End::ExportName { name, why: "TLS is required".into() });
            }
            self.refuse_without_tls(option);
            return Ok(Turn::Continue);
        }
        if !is_allowed_in_clear && !matches!(request, OptionRequest::StructuredReply) {
            self.count(1)?;
        }
        let done = match request {
            OptionRequest::Abort => {
                nbd::option_ack(&mut self.out, option);
                // An error is ignored: the client may already have closed the connection.
                let _ = self.send().await;
                return Ok(Turn::End);
            }
            OptionRequest::ExportName(name) => return self.export_name(name).await,
            OptionRequest::StartTls => match self.check_start_tls() {
                Ok(()) => return Ok(Turn::StartTls),
                Err(denied) => Err(denied),
            },
            OptionRequest::List => {
                self.list().await?;
                Ok(())
            }
            OptionRequest::Info(info) => {
                self.resolve(&info.name).await?.map(|disk| self.describe(option, &info, &disk))
            }
            OptionRequest::Go(info) => match self.attach(&info.name).await? {
                Ok((attached, about)) => {
                    self.describe(option, &info, &about);
                    self.describe_to_node(option, &attached);
                    nbd::option_ack(&mut self.out, option);
                    self.send().await?;
                    return Ok(Turn::Start { attached, name: info.name });
                }
                Err(denied) => Err(denied),
            },
            OptionRequest::StructuredReply => {
                self.structured = true;
                Ok(())
            }
            OptionRequest::ListMetaContext(meta) | OptionRequest::SetMetaContext(meta) => {
                self.meta_context(option, meta).await?
            }
        };
        match done {
            Ok(()) => nbd::option_ack(&mut self.out, option),
            Err(Denied { reply, text }) => nbd::option_error(&mut self.out, option, reply, &text),
        }
        Ok(Turn::Continue)
    }

    /// Answers `NBD_OPT_EXPORT_NAME`. This option has no negative reply, so an error ends the connection.
    async fn export_name(&mut self, name: String) -> Result<Turn, End> {
        let (attached, about) = match self.attach(&name).await? {
            Ok(found) => found,
            Err(Denied { text, .. }) => return Err(End::ExportName { name, why: text }),
        };
        let flags = self.flags(&about);
        nbd::option_export_name(&mut self.out, about.size, flags, self.no_zeroes);
        self.send().await?;
        Ok(Turn::Start { attached, name })
    }

    fn check_start_tls(&self) -> Result<(), Denied> {
        if !self.context.tls.is_offered() {
            return Err(Denied::new(REP_ERR_POLICY, "TLS is not configured on this server"));
        }
        if self.over_tls {
            return Err(Denied::new(REP_ERR_INVALID, "TLS is already in use"));
        }
        Ok(())
    }

    /// Continues over TLS. Discards all options negotiated before, which an attacker may have injected.
    async fn start_tls(mut self) -> Result<Negotiation<'a>, End> {
        // Plain text after the option would be treated as part of the protected stream.
        if !self.input.is_empty() {
            return Err(End::ClearAfterStartTls);
        }
        nbd::option_ack(&mut self.out, OPT_STARTTLS);
        self.send().await?;
        let Stream::Plain(socket) = self.stream else {
            return Ok(self);
        };
        // The charge is forced, since it is small and every client needs it; the number of handshakes is
        // limited.
        let charge = self.account.force(MAX_HANDSHAKE, Kind::Input);
        let stream = self.context.tls.accept(socket).await?;
        drop(charge);
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        self.grant = self.context.access.grant(certificate.map(CertificateNames::of).as_ref());
        self.stream = Stream::Tls(stream);
        self.over_tls = true;
        self.structured = false;
        self.selected = None;
        Ok(self)
    }

    /// Counts the options about exports that the client sends.
    fn count(&mut self, options: usize) -> Result<(), End> {
        self.options += options;
        if self.options > self.permitted { Err(End::TooManyOptions) } else { Ok(()) }
    }

    /// Counts a page of disks that were examined; `examined` is the number of disks examined so far.
    fn count_page(&mut self, page: usize, examined: usize) -> Result<(), End> {
        self.permitted = self.permitted.max(OPTIONS + OPTIONS_PER_EXPORT * examined);
        self.count(page)
    }

    async fn list(&mut self) -> Result<(), End> {
        let (mut listed, mut last) = (0, String::new());
        loop {
            let page = self.context.pool.disks_after(&last, LIST_PAGE);
            let Some(end) = page.last() else { return Ok(()) };
            last.clone_from(&end.name);
            listed += page.len();
            self.count_page(page.len(), listed)?;
            for disk in &page {
                if !self.grant.sees(&disk.name) {
                    continue;
                }
                let remark = self.description(disk);
                nbd::option_server(&mut self.out, &disk.name, &remark);
                if self.out.len() >= LIST_CHUNK {
                    self.send().await?;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    async fn meta_context(&mut self, option: u32, meta: MetaRequest) -> Result<Result<(), Denied>, End> {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            self.selected = None;
        }
        if !self.structured {
            let text = "metadata contexts need structured replies";
            return Ok(Err(Denied::new(REP_ERR_INVALID, text)));
        }
        let disk = match self.resolve(&meta.export).await? {
            Ok(disk) => disk,
            Err(denied) => return Ok(Err(denied)),
        };
        let allocation = meta.allocation || (!set && (meta.base || meta.empty));
        if allocation {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            nbd::option_meta_context(&mut self.out, option, id, BASE_ALLOCATION);
        }
        let mut since = None;
        if let Some(earlier) = &meta.changed_since {
            // A context that does not exist is not an error.
            since = self.context.pool.since(&disk.name, earlier).ok();
            since = since.filter(|since| self.grant.sees(&since.name()) && since.name() != disk.name);
            if since.is_some() {
                let id = if set { CHANGED_SINCE_ID } else { 0 };
                nbd::option_meta_context(&mut self.out, option, id, &format!("{CHANGED_SINCE}{earlier}"));
            }
        }
        if !set && (meta.forebay || meta.empty) {
            self.list_changed_since(option, &disk).await?;
        }
        let contexts = MetaContexts { allocation, since: since.map(Arc::new) };
        if set && contexts.count() > 0 {
            self.selected = Some((meta.export, contexts));
        }
        Ok(Ok(()))
    }

    /// Lists the metadata contexts for the changes of a disk since each snapshot of its volume, and since its
    /// origin. The snapshots are examined in pages, and count as listed.
    async fn list_changed_since(&mut self, option: u32, disk: &DiskInfo) -> Result<(), End> {
        if let Some(origin) = disk.origin.as_ref().filter(|origin| self.grant.sees(origin)) {
            nbd::option_meta_context(&mut self.out, option, 0, &format!("{CHANGED_SINCE}{origin}"));
        }
        let volume = disk.name.split_once('@').map_or(&*disk.name, |(volume, _)| volume);
        let prefix = format!("{volume}@");
        let (mut listed, mut last) = (0, prefix.clone());
        loop {
            let mut page = self.context.pool.disks_after(&last, LIST_PAGE);
            page.retain(|snapshot| snapshot.name.starts_with(&prefix));
            let Some(end) = page.last() else { return Ok(()) };
            last.clone_from(&end.name);
            listed += page.len();
            self.count_page(page.len(), listed)?;
            for snapshot in page.iter().filter(|snapshot| snapshot.name != disk.name) {
                if self.grant.sees(&snapshot.name) {
                    let name = &snapshot.name[prefix.len()..];
                    nbd::option_meta_context(&mut self.out, option, 0, &format!("{CHANGED_SINCE}{name}"));
                }
            }
            if self.out.len() >= LIST_CHUNK {
                self.send().await?;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The disk with this export name. The empty name selects the only volume that the client sees, if there
    /// is exactly one.
    async fn resolve(&mut self, name: &str) -> Result<Result<DiskInfo, Denied>, End> {
        let only = match name {
            "" => match self.only_volume().await? {
                Ok(only) => only,
                Err(denied) => return Ok(Err(denied)),
            },
            name if self.grant.sees(name) => name.to_owned(),
            _ => return Ok(Err(Denied::no_export())),
        };
        Ok(self.context.pool.disk_in_brief(&only).map_err(Denied::from))
    }

    /// The only volume that the client sees. The disks are examined in pages, and count as listed.
    async fn only_volume(&mut self) -> Result<Result<String, Denied>, End> {
        let unknown = |text: &str| Ok(Err(Denied::new(REP_ERR_UNKNOWN, text)));
        let (mut only, mut examined, mut last) = (None, 0, String::new());
        loop {
            let page = self.context.pool.volumes_after(&last, DEFAULT_PAGE, |name| self.grant.sees(name));
            if page.examined == 0 {
                break;
            }
            for name in page.volumes {
                if only.replace(name).is_some() {
                    return unknown("there is more than one volume; name one (list the exports to see them)");
                }
            }
            examined += page.examined;
            last = page.last;
            self.count_page(page.examined, examined)?;
            tokio::task::yield_now().await;
        }
        match only {
            Some(only) => Ok(Ok(only)),
            None => unknown("no volume exists; create one or name an image"),
        }
    }

    /// Opens a disk. A server that has lost the pool does not answer.
    async fn attach(&mut self, name: &str) -> Result<Result<(Attached, DiskInfo), Denied>, End> {
        let done = match self.resolve(name).await? {
            Ok(about) => self.try_attach(about).await,
            Err(denied) => Err(denied),
        };
        if self.context.pool.is_fenced() { Err(Fenced.into()) } else { Ok(done) }
    }

    /// Opens a disk for the client. Earlier connections to the disk whose peers are gone end first: before
    /// the option is answered, and before the disk is opened. The order matters for a desktop: if the client
    /// of such a connection has disconnected in order, the desktop is reset before it is opened.
    async fn try_attach(&self, about: DiskInfo) -> Result<(Attached, DiskInfo), Denied> {
        let is_writable = about.role == Role::Volume && !self.context.access.read_only;
        let relayed = self.relayed.as_ref();
        // A node repeats what has to be tried again.
        let later = |error: String, otherwise: Denied| match relayed {
            Some(_) => Denied::new(REP_ERR_SHUTDOWN, error),
            None => otherwise,
        };
        if is_writable {
            let ended = self.context.attachments.end_gone(&about.name, relayed).await;
            ended.map_err(|e| later(e.to_string(), e.into()))?;
        }
        let attaching = self.context.pool.attach_when_reset_as(&about.name, self.client);
        let disk = attaching.await.map_err(|e| match e {
            Error::Resetting(_) => later(e.to_string(), e.into()),
            e => e.into(),
        })?;
        let client = relayed.map_or_else(|| peer::name(&self.stream), |preamble| preamble.name.clone());
        let peer = (self.stream.peer(), client);
        Ok((self.context.attached((&about.name, disk), is_writable, peer, relayed, unix_ms()), about))
    }

    /// Sends a node what it needs to connect its client to the disk again.
    fn describe_to_node(&mut self, option: u32, attached: &Attached) {
        let Some(preamble) = &self.relayed else { return };
        let Attached { disk, is_writable, .. } = attached;
        let newer = self.context.attachments.since_newer_client(&disk.name(), &preamble.id);
        let info = RelayInfo {
            uuid: disk.uuid(),
            is_durable: !is_writable || disk.is_durable(false),
            memory: self.context.pool.memory_identity(),
            newer_client_ms: newer.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX - 1)),
            opening: self.context.pool.opening_identity(),
            replacements: disk.replacements(),
        };
        nbd::option_info_relay(&mut self.out, option, &info);
    }

    fn describe(&mut self, option: u32, info: &InfoRequest, disk: &DiskInfo) {
        let flags = self.flags(disk);
        nbd::option_info_export(&mut self.out, option, disk.size, flags);
        if info.want_name {
            nbd::option_info_text(&mut self.out, option, INFO_NAME, &disk.name);
        }
        if info.want_description {
            let remark = self.description(disk);
            nbd::option_info_text(&mut self.out, option, INFO_DESCRIPTION, &remark);
        }
        if info.want_block_size {
            nbd::option_info_block_size(&mut self.out, option, BLOCK_SIZES);
        }
    }

    fn flags(&self, disk: &DiskInfo) -> u16 {
        let always = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_SEND_CACHE | FLAG_CAN_MULTI_CONN;
        let by_role = match disk.role {
            Role::Volume if !self.context.access.read_only => {
                FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO
            }
            _ => FLAG_READ_ONLY,
        };
        always | by_role | if self.structured { FLAG_SEND_DF } else { 0 }
    }

    /// The description that is listed with an export. For a clone it includes the origin, if the client sees
    /// the export of the origin.
    fn description(&self, disk: &DiskInfo) -> String {
        let kind = match disk.role {
            Role::Volume if self.context.access.read_only => "volume, read-only",
            Role::Volume => "volume",
            Role::Snapshot => "snapshot, read-only",
            Role::Image => "image, read-only",
            Role::Import | Role::Metadata | Role::ClusterImage => "not for use",
        };
        match disk.origin.as_ref().filter(|origin| self.grant.sees(origin)) {
            Some(origin) => format!("{kind}, clone of {origin}"),
            None => kind.to_owned(),
        }
    }
}
