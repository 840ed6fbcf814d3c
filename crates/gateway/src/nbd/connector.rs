//! Connecting a client to its export again, without its knowledge.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use super::end::{End, OwnerError};
use super::limits::{FIRST_PAUSE, LONGEST_PAUSE, STEADY};
use super::owner::{Answer, Export, Owner, go_data, locate, opened};
use crate::{NbdClient, Shards, Stream};

/// An export that is open at another owner.
pub(super) struct Connected {
    pub stream: Stream,
    /// Bytes that were received after the handshake.
    pub input: Vec<u8>,
    /// When another client opened the export for the first time; `None` if the owner has no record of that.
    pub newer_client: Option<Instant>,
    /// The owner has opened the pool again, or is another one.
    pub is_other_opening: bool,
    /// When the option that opened the export was sent.
    pub asked: Instant,
}

/// Connects one client to the owners of its export, one after another.
pub(super) struct Connector {
    shards: Arc<dyn Shards>,
    export: Export,
    client: NbdClient,
    /// Time limit of an outage.
    limit: Duration,
    /// When the present outage began.
    since: Option<Instant>,
    pause: Duration,
    connected: Instant,
    /// When the client opened the export for the first time.
    opened: Instant,
}

impl Connector {
    /// A connector for a client that `owner` serves.
    pub fn new(shards: Arc<dyn Shards>, export: Export, client: NbdClient, limit: Duration) -> Connector {
        let connected = Instant::now();
        let opened = connected;
        Connector { shards, export, client, limit, since: None, pause: FIRST_PAUSE, connected, opened }
    }

    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Records that the owner is lost. `was_useful` states that it has answered a request.
    pub fn lost(&mut self, was_useful: bool) {
        if was_useful || self.connected.elapsed() >= STEADY {
            (self.since, self.pause) = (None, FIRST_PAUSE);
        }
    }

    /// Connects to the present owner, as soon as one can be reached.
    ///
    /// # Errors
    /// [`End`], if the client has to notice the outage.
    pub async fn again(&mut self) -> Result<Connected, End> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let deadline = since + self.limit;
        let mut why = "the connection to the owner was lost".to_owned();
        loop {
            if Instant::now() + self.pause >= deadline {
                return Err(End::Outage { export: self.export.name.clone(), time: self.limit, why });
            }
            sleep(self.pause).await;
            self.pause = LONGEST_PAUSE.min(self.pause * 2);
            self.client.generation += 1;
            self.client.age_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
            why = match timeout_at(deadline, self.attempt()).await {
                Ok(Ok(Attempt::Connected(connected))) => return Ok(*connected),
                Ok(Ok(Attempt::Later(why))) => why,
                Ok(Err(end)) => return Err(end),
                Err(_) => "the owner does not answer".to_owned(),
            };
            tracing::debug!(export = self.export.name, why, "cannot connect a client again yet");
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, End> {
        match self.try_open().await {
            Ok(Some((answer, owner))) => self.check(&answer, owner),
            Ok(None) => Err(self.gone("the cluster has no such export any more".into())),
            Err(OwnerError::Lost(e)) => Ok(Attempt::Later(e.to_string())),
            Err(OwnerError::Protocol(why)) => Err(End::Owner { export: self.export.name.clone(), why }),
        }
    }

    /// Opens the export as it was opened first. `None` if no shard has it.
    async fn try_open(&self) -> Result<Option<(Answer, Owner)>, OwnerError> {
        let Export { name, structured, selected, .. } = &self.export;
        let Some(shard) = locate(&*self.shards, name).await? else { return Ok(None) };
        let mut owner = Owner::connect(&self.shards, shard, self.client.clone()).await?;
        let answer = owner.go(*structured, selected.as_ref(), &go_data(name)).await?;
        Ok(Some((answer, owner)))
    }

    fn check(&mut self, answer: &Answer, owner: Owner) -> Result<Attempt, End> {
        if let Some((_, why)) = answer.error() {
            return match answer.asks_to_repeat() {
                true => Ok(Attempt::Later(why)),
                false => Err(self.gone(why)),
            };
        }
        let owner_error =
            |why: OwnerError| End::Owner { export: self.export.name.clone(), why: why.to_string() };
        let (size, flags, relay) = opened(answer).map_err(owner_error)?;
        let before = &self.export;
        let is_durable = before.relay.is_durable && relay.is_durable;
        let is_same_opening = relay.opening == before.relay.opening;
        let replacements = if is_same_opening { before.relay.replacements } else { 0 };
        let changed = if relay.uuid != before.relay.uuid {
            Some("another disk has this name")
        } else if size < before.size {
            Some("it is smaller")
        } else if relay.replacements != replacements {
            Some("its contents were replaced, or it was smaller in the meantime")
        } else if flags != before.flags {
            Some("it has other features")
        } else if !is_durable && relay.memory != before.relay.memory {
            Some("answered writes were not durable, and are lost with the memory of the former server")
        } else {
            None
        };
        if let Some(what) = changed {
            return Err(End::Changed { export: before.name.clone(), what });
        }
        (self.export.size, self.export.relay) = (size, relay);
        self.connected = Instant::now();
        let newer = relay.newer_client_ms.map(Duration::from_millis);
        let newer_client = newer.map(|ago| self.connected.checked_sub(ago).unwrap_or(self.connected));
        let asked = owner.asked;
        let (stream, input) = owner.into_transmission();
        let is_other_opening = !is_same_opening;
        let connected = Connected { stream, input, newer_client, is_other_opening, asked };
        Ok(Attempt::Connected(Box::new(connected)))
    }

    fn gone(&self, why: String) -> End {
        End::Gone { export: self.export.name.clone(), why }
    }
}

/// The result of an attempt that can be repeated.
enum Attempt {
    Connected(Box<Connected>),
    Later(String),
}
