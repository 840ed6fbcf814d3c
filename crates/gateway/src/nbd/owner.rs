//! The client's side of a connection to the owner of an export: the handshake, up to the transmission.

use std::sync::Arc;

use forebay_wire::nbd::{
    self, HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES, INFO_EXPORT, INFO_RELAY, NBD_MAGIC, OPT_GO,
    OPT_SET_META_CONTEXT, OPT_STRUCTURED_REPLY, OPTION_MAGIC, REP_ACK, REP_ERR_SHUTDOWN, REP_FLAG_ERROR,
    REP_INFO, REP_META_CONTEXT, RelayInfo,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::end::OwnerError;
use super::limits::{LOOK_UP, OPTION_ANSWER, OPTION_REPLIES, OPTION_REPLY_BYTES};
use crate::{NbdClient, Shards, Stream};

/// Bytes of a server's greeting.
const GREETING: usize = 18;

/// The replies to one option.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Type and data of each reply, in order. The last one is positive or negative.
    pub replies: Vec<(u32, Vec<u8>)>,
}

impl Answer {
    /// The type of a negative answer, and its text.
    pub fn error(&self) -> Option<(u32, String)> {
        let (kind, text) = self.replies.last()?;
        (*kind & REP_FLAG_ERROR != 0).then(|| (*kind, String::from_utf8_lossy(text).into_owned()))
    }

    /// Whether the owner is about to stop, or requests another attempt.
    pub fn asks_to_repeat(&self) -> bool {
        self.replies.last().is_some_and(|(kind, _)| *kind == REP_ERR_SHUTDOWN)
    }

    /// The metadata contexts with their ids.
    pub fn contexts(&self) -> Vec<Vec<u8>> {
        let contexts = self.replies.iter().filter(|(kind, _)| *kind == REP_META_CONTEXT);
        contexts.map(|(_, data)| data.clone()).collect()
    }

    /// The data of an information.
    fn info(&self, wanted: u16) -> Option<&[u8]> {
        let mut infos = self.replies.iter().filter(|(kind, _)| *kind == REP_INFO);
        infos.find_map(|(_, data)| data.strip_prefix(&wanted.to_be_bytes()))
    }
}

/// Metadata contexts that the client has selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selected {
    /// The export of the contexts.
    pub export: String,
    /// The data of the option.
    pub data: Vec<u8>,
    /// The contexts of the answer, with their ids.
    pub contexts: Vec<Vec<u8>>,
}

/// An export that the client has opened, with what was negotiated.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub name: String,
    pub structured: bool,
    /// The metadata contexts of this export.
    pub selected: Option<Selected>,
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    pub relay: RelayInfo,
}

/// The size and the flags of an export, and what only nodes learn.
pub(super) fn opened(answer: &Answer) -> Result<(u64, u16, RelayInfo), OwnerError> {
    let wrong = |what: &str| OwnerError::Protocol(format!("its answer has no {what}"));
    let export = answer.info(INFO_EXPORT).and_then(|data| data.first_chunk::<10>());
    let [a, b, c, d, e, f, g, h, i, j] = *export.ok_or_else(|| wrong("size"))?;
    let relay = answer.info(INFO_RELAY).and_then(RelayInfo::decode);
    let relay = relay.ok_or_else(|| wrong("information for nodes"))?;
    Ok((u64::from_be_bytes([a, b, c, d, e, f, g, h]), u16::from_be_bytes([i, j]), relay))
}

/// The shard of an export; `None` if no shard has it.
pub(super) async fn locate(shards: &dyn Shards, export: &str) -> Result<Option<u32>, OwnerError> {
    // The name of a snapshot begins with the name of its volume.
    let volume = export.split_once('@').map_or(export, |(volume, _)| volume);
    match timeout(LOOK_UP, shards.locate(volume)).await {
        Ok(found) => Ok(found?),
        Err(_) => Err(OwnerError::lost("the directory of names does not answer")),
    }
}

/// A connection to an owner before the transmission.
pub(super) struct Owner {
    stream: Stream,
    input: Vec<u8>,
    pub shard: u32,
    /// The client, with its generation at this owner.
    pub client: NbdClient,
    /// When the last option was sent.
    pub asked: Instant,
    /// Structured replies were negotiated.
    is_structured: bool,
    /// The metadata contexts that were selected last.
    selected: Option<Selected>,
}

impl Owner {
    /// Connects to the owner of a shard, and exchanges the flags of the handshake.
    pub async fn connect(
        shards: &Arc<dyn Shards>,
        shard: u32,
        client: NbdClient,
    ) -> Result<Owner, OwnerError> {
        let connecting = async {
            let stream = shards.connect_nbd(shard, &client).await?;
            let mut owner = Owner {
                stream,
                input: Vec::new(),
                shard,
                client,
                asked: Instant::now(),
                is_structured: false,
                selected: None,
            };
            owner.greet().await?;
            Ok(owner)
        };
        timeout(OPTION_ANSWER, connecting).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn greet(&mut self) -> Result<(), OwnerError> {
        let mut greeting = [0; GREETING];
        self.stream.read_exact(&mut greeting).await?;
        let expected = [NBD_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
        let offered = u16::from_be_bytes([greeting[16], greeting[17]]);
        let flags = HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES;
        if greeting[..16] != expected[..] || offered & flags != flags {
            return Err(OwnerError::Protocol("it is not a server of this kind".into()));
        }
        self.stream.write_all(&u32::from(flags).to_be_bytes()).await?;
        Ok(())
    }

    /// Sends an option, and receives the answer.
    pub async fn option(&mut self, option: u32, data: &[u8]) -> Result<Answer, OwnerError> {
        let answering = async {
            let mut message = Vec::new();
            nbd::option(&mut message, option, &[data]);
            self.asked = Instant::now();
            self.stream.write_all(&message).await?;
            self.stream.flush().await?;
            self.answer(option).await
        };
        timeout(OPTION_ANSWER, answering).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn answer(&mut self, wanted: u32) -> Result<Answer, OwnerError> {
        let (mut answer, mut bytes) = (Answer::default(), 0);
        loop {
            let Some((used, reply)) = nbd::option_reply(&self.input)? else {
                if self.stream.read_buf(&mut self.input).await? == 0 {
                    return Err(OwnerError::lost("the owner has closed the connection"));
                }
                continue;
            };
            bytes += reply.data.len();
            let is_last = reply.kind == REP_ACK || reply.kind & REP_FLAG_ERROR != 0;
            if reply.option != wanted {
                return Err(OwnerError::Protocol("it answered another option".into()));
            }
            answer.replies.push((reply.kind, reply.data.to_vec()));
            self.input.drain(..used);
            if is_last {
                return Ok(answer);
            }
            if answer.replies.len() >= OPTION_REPLIES || bytes > OPTION_REPLY_BYTES {
                return Err(OwnerError::Protocol("its answer is too long".into()));
            }
        }
    }

    /// Negotiates structured replies, if the client has.
    pub async fn agree(&mut self, structured: bool) -> Result<(), OwnerError> {
        if structured && !self.is_structured {
            let answer = self.option(OPT_STRUCTURED_REPLY, &[]).await?;
            if let Some((_, why)) = answer.error() {
                return Err(OwnerError::Protocol(format!("it refused structured replies: {why}")));
            }
            self.is_structured = true;
        }
        Ok(())
    }

    /// Selects metadata contexts, and records the selection.
    pub async fn select(&mut self, export: &str, data: &[u8]) -> Result<Answer, OwnerError> {
        self.selected = None;
        let answer = self.option(OPT_SET_META_CONTEXT, data).await?;
        let contexts = answer.contexts();
        if answer.error().is_none() && !contexts.is_empty() {
            self.selected = Some(Selected { export: export.to_owned(), data: data.to_vec(), contexts });
        }
        Ok(answer)
    }

    /// The metadata contexts that were selected last.
    pub fn selected(&self) -> Option<&Selected> {
        self.selected.as_ref()
    }

    /// Opens an export for which the negotiated features and contexts are those of `structured` and
    /// `selected`. The data of the option is that of the client, or made of the name.
    pub async fn go(
        &mut self,
        structured: bool,
        selected: Option<&Selected>,
        data: &[u8],
    ) -> Result<Answer, OwnerError> {
        self.agree(structured).await?;
        if let Some(selected) = selected
            && self.selected.as_ref() != Some(selected)
        {
            let answer = self.select(&selected.export, &selected.data).await?;
            if answer.error().is_some() {
                return Ok(answer);
            }
            if self.selected.as_ref() != Some(selected) {
                return Err(OwnerError::Protocol("it has other metadata contexts".into()));
            }
        }
        self.option(OPT_GO, data).await
    }

    /// The stream, in the transmission phase, and the bytes that were received already.
    pub fn into_transmission(self) -> (Stream, Vec<u8>) {
        (self.stream, self.input)
    }
}

fn silent() -> OwnerError {
    OwnerError::lost("the owner does not answer")
}

/// The data of `OPT_GO` for an export, without requests for information.
pub(super) fn go_data(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(export.as_bytes());
    data.extend_from_slice(&0_u16.to_be_bytes());
    data
}
