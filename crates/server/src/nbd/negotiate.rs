//! Negotiation: what a client may know, and which disk it gets.

use std::rc::Rc;

use forebay_engine::{Disk, DiskInfo, Error, Role};
use forebay_wire::nbd::{self, *};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::access::Grant;
use super::certificate::CertificateNames;
use super::connection::{Context, End, Stream};
use crate::plane::{Charge, Kind, MemoryAccount};

/// Bytes of options that are received without being charged, and what longer ones are charged.
const SHORT_OPTION: usize = 8 << 10;
const LONG_OPTION: usize = 2 * OPTION_MAX as usize;
/// Bytes of a list that are gathered before they are sent.
const LIST_CHUNK: usize = 16 << 10;
/// What is answered alike for an export that is not there and for one that the client may not see.
const NO_EXPORT: &str = "there is no such export, or it is not for this client";
/// What clients are told about sizes of requests.
const BLOCK_SIZES: BlockSizes = BlockSizes { min: 1, preferred: 4096, max: MAX_PAYLOAD };

/// A client that has its disk.
pub(super) struct Negotiated {
    pub stream: Stream,
    pub disk: std::sync::Arc<Disk>,
    /// Structured replies.
    pub structured: bool,
    /// Block status may be asked for.
    pub block_status: bool,
    /// Writes are refused, whatever the disk allows.
    pub read_only: bool,
    /// What the client sent after its last option.
    pub input: Vec<u8>,
}

/// Negotiates; `None` if the client has left, or only wanted to know something.
pub(super) async fn negotiate(
    stream: Stream,
    context: &Context,
    account: Rc<MemoryAccount>,
) -> Result<Option<Negotiated>, End> {
    let mut n = Negotiation {
        context,
        stream,
        grant: context.access.grant(None),
        over_tls: false,
        decoder: OptionDecoder::new(),
        input: Vec::new(),
        out: Vec::new(),
        no_zeroes: false,
        structured: false,
        context_of: None,
        account,
        charge: None,
    };
    nbd::greeting(&mut n.out);
    loop {
        match n.turn().await? {
            // An option may have the server look through all exports, and thousands can come at once.
            Turn::GoOn => tokio::task::yield_now().await,
            Turn::Upgrade => n = n.start_tls().await?,
            Turn::Left => return Ok(None),
            Turn::Start { disk, name } => {
                return Ok(Some(Negotiated {
                    disk,
                    structured: n.structured,
                    read_only: context.access.read_only,
                    // The contexts are those of one export, by the very name that was used then.
                    block_status: n.structured && n.context_of.as_deref() == Some(&name),
                    stream: n.stream,
                    input: n.input,
                }));
            }
        }
    }
}

enum Turn {
    GoOn,
    Upgrade,
    Left,
    Start { disk: std::sync::Arc<Disk>, name: String },
}

/// Why an option is answered with an error: reply type and text.
struct Denied(u32, String);

impl From<Error> for Denied {
    fn from(e: Error) -> Denied {
        let kind = match e {
            Error::NotFound(_) | Error::BadName { .. } => return Denied(REP_ERR_UNKNOWN, NO_EXPORT.into()),
            Error::Closed => REP_ERR_SHUTDOWN,
            _ => REP_ERR_POLICY,
        };
        Denied(kind, e.to_string())
    }
}

struct Negotiation<'a> {
    context: &'a Context,
    stream: Stream,
    /// What the client may know of.
    grant: Grant,
    over_tls: bool,
    decoder: OptionDecoder,
    input: Vec<u8>,
    out: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    context_of: Option<String>,
    /// What memory long options are charged to, and with what.
    account: Rc<MemoryAccount>,
    charge: Option<Charge>,
}

impl<'a> Negotiation<'a> {
    /// Sends what there is to say, waits for the next thing that the client says, and acts on it.
    async fn turn(&mut self) -> Result<Turn, End> {
        let event = loop {
            let (used, event) = self.decoder.next(&self.input)?;
            self.input.drain(..used);
            if event != OptionEvent::NeedMore {
                break event;
            }
            self.send().await?;
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Ok(Turn::Left);
            }
            if self.input.len() > SHORT_OPTION && self.charge.is_none() {
                self.charge = Some(self.account.try_take(LONG_OPTION, Kind::Input).ok_or(End::NoMemory)?);
            }
        };
        match event {
            OptionEvent::NeedMore => Ok(Turn::GoOn),
            OptionEvent::ClientFlags { no_zeroes } => {
                self.no_zeroes = no_zeroes;
                Ok(Turn::GoOn)
            }
            OptionEvent::Refused { option: OPT_EXPORT_NAME, refusal } => {
                Err(End::ExportName { name: String::new(), why: refusal.to_string() })
            }
            OptionEvent::Refused { option, refusal } => {
                if self.context.tls.required && !self.over_tls {
                    self.tls_first(option);
                } else {
                    nbd::option_error(&mut self.out, option, refusal.reply(), &refusal.to_string());
                }
                if option == OPT_SET_META_CONTEXT {
                    self.context_of = None;
                }
                Ok(Turn::GoOn)
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

    fn tls_first(&mut self, option: u32) {
        nbd::option_error(
            &mut self.out,
            option,
            REP_ERR_TLS_REQD,
            "this server needs TLS; connect with nbds:",
        );
    }

    async fn option(&mut self, request: OptionRequest) -> Result<Turn, End> {
        let option = request.number();
        let in_clear_allowed = matches!(request, OptionRequest::Abort | OptionRequest::StartTls);
        if self.context.tls.required && !self.over_tls && !in_clear_allowed {
            if let OptionRequest::ExportName(name) = request {
                return Err(End::ExportName { name, why: "TLS is required".into() });
            }
            self.tls_first(option);
            return Ok(Turn::GoOn);
        }
        let done = match request {
            OptionRequest::Abort => {
                nbd::option_ack(&mut self.out, option);
                // The client may have closed already.
                let _ = self.send().await;
                return Ok(Turn::Left);
            }
            OptionRequest::ExportName(name) => return self.export_name(name).await,
            OptionRequest::StartTls => match self.may_start_tls() {
                Ok(()) => return Ok(Turn::Upgrade),
                Err(denied) => Err(denied),
            },
            OptionRequest::List => {
                self.list().await?;
                Ok(())
            }
            OptionRequest::Info(info) => {
                self.resolve(&info.name).map(|disk| self.describe(option, &info, &disk))
            }
            OptionRequest::Go(info) => match self.attach(&info.name).await {
                Ok((disk, about)) => {
                    self.describe(option, &info, &about);
                    nbd::option_ack(&mut self.out, option);
                    self.send().await?;
                    return Ok(Turn::Start { disk, name: info.name });
                }
                Err(denied) => Err(denied),
            },
            OptionRequest::StructuredReply => {
                self.structured = true;
                Ok(())
            }
            OptionRequest::ListMetaContext(meta) | OptionRequest::SetMetaContext(meta) => {
                self.meta_context(option, meta)
            }
        };
        match done {
            Ok(()) => nbd::option_ack(&mut self.out, option),
            Err(Denied(kind, text)) => nbd::option_error(&mut self.out, option, kind, &text),
        }
        Ok(Turn::GoOn)
    }

    /// The old way to start, which knows no answer but success.
    async fn export_name(&mut self, name: String) -> Result<Turn, End> {
        let (disk, about) = match self.attach(&name).await {
            Ok(found) => found,
            Err(Denied(_, why)) => return Err(End::ExportName { name, why }),
        };
        let flags = self.flags(&about);
        nbd::option_export_name(&mut self.out, about.size, flags, self.no_zeroes);
        self.send().await?;
        Ok(Turn::Start { disk, name })
    }

    fn may_start_tls(&self) -> Result<(), Denied> {
        if !self.context.tls.is_offered() {
            return Err(Denied(REP_ERR_POLICY, "TLS is not set up on this server".into()));
        }
        if self.over_tls {
            return Err(Denied(REP_ERR_INVALID, "TLS is in use already".into()));
        }
        Ok(())
    }

    /// Goes on under TLS. What was chosen before counts for nothing: someone may have put it in.
    async fn start_tls(mut self) -> Result<Negotiation<'a>, End> {
        // Whatever came in clear after the option would be taken for a part of the protected stream.
        if !self.input.is_empty() {
            return Err(End::ClearAfterStartTls);
        }
        nbd::option_ack(&mut self.out, OPT_STARTTLS);
        self.send().await?;
        let Stream::Plain(socket) = self.stream else {
            return Ok(self);
        };
        let stream = self.context.tls.accept(socket).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        self.grant = self.context.access.grant(certificate.map(CertificateNames::of).as_ref());
        self.stream = Stream::Tls(stream);
        self.over_tls = true;
        self.structured = false;
        self.context_of = None;
        Ok(self)
    }

    async fn list(&mut self) -> Result<(), End> {
        for disk in self.context.pool.disks() {
            if !self.grant.sees(&disk.name) {
                continue;
            }
            let remark = self.description(&disk);
            nbd::option_server(&mut self.out, &disk.name, &remark);
            if self.out.len() >= LIST_CHUNK {
                self.send().await?;
            }
        }
        Ok(())
    }

    fn meta_context(&mut self, option: u32, meta: MetaRequest) -> Result<(), Denied> {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            self.context_of = None;
        }
        if !self.structured {
            return Err(Denied(REP_ERR_INVALID, "metadata contexts need structured replies".into()));
        }
        self.resolve(&meta.export)?;
        let chosen = if set { meta.allocation } else { meta.allocation || meta.base || meta.empty };
        if chosen {
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            nbd::option_meta_context(&mut self.out, option, id, BASE_ALLOCATION);
        }
        if set && chosen {
            self.context_of = Some(meta.export);
        }
        Ok(())
    }

    /// The disk that an export name means. The empty one means the only volume, if there is just one.
    fn resolve(&self, name: &str) -> Result<DiskInfo, Denied> {
        if !name.is_empty() {
            if !self.grant.sees(name) {
                return Err(Denied(REP_ERR_UNKNOWN, NO_EXPORT.into()));
            }
            return Ok(self.context.pool.disk(name)?);
        }
        let of_client = |d: &DiskInfo| d.role == Role::Volume && self.grant.sees(&d.name);
        let mut volumes = self.context.pool.disks().into_iter().filter(of_client);
        match (volumes.next(), volumes.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(Denied(REP_ERR_UNKNOWN, "there is no volume; make one or name an image".into())),
            _ => Err(Denied(
                REP_ERR_UNKNOWN,
                "there is more than one volume; name one (a list of exports shows them)".into(),
            )),
        }
    }

    async fn attach(&self, name: &str) -> Result<(std::sync::Arc<Disk>, DiskInfo), Denied> {
        let about = self.resolve(name)?;
        let disk = self.context.pool.attach_when_reset(&about.name).await?;
        Ok((disk, about))
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

    /// What people are shown next to the name. The origin is an export, which the client may not see.
    fn description(&self, disk: &DiskInfo) -> String {
        let what = match disk.role {
            Role::Volume if self.context.access.read_only => "volume, read-only",
            Role::Volume => "volume",
            Role::Snapshot => "snapshot, read-only",
            Role::Image => "image, read-only",
            Role::Import | Role::Note => "not for use",
        };
        match disk.origin.as_ref().filter(|origin| self.grant.sees(origin)) {
            Some(origin) => format!("{what}, clone of {origin}"),
            None => what.to_owned(),
        }
    }
}
