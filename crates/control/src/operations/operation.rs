//! What an administrative operation declares, in one place: the file of its resource ([`crate::resources`]).

use std::fmt;

use forebay_api::{DiskView, TenantView};
use forebay_frontend::targets::IqnName;
use forebay_text::{quoted, shortened};
use serde::Serialize;

use super::client::{Client, Failure};
use super::stretches::retain;
use super::{Control, Result};

/// Returns the names of the disks that an operation concerns.
pub(crate) type Disks<O> = fn(&O) -> Vec<String>;

/// Maximum length of a change in the log, and of the error of an operation or job, in bytes. An operation may
/// name many disks, and an error repeats a name that was not found, or a URL.
pub(crate) const MAX_LOGGED: usize = 1024;
/// Maximum number of names that a change lists.
const MAX_NAMES: usize = 3;

/// Returns what an operation changes; `None` for a query, which has no effect on the state.
pub(crate) type Changes<O> = Option<fn(&O) -> Change>;

/// What an operation changes, in words for the log: "created volume 'a' of 1 GiB".
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// What the operation does, such as "create".
    verb: &'static str,
    /// What the operation has done, such as "created".
    done: &'static str,
    object: String,
}

impl Change {
    /// Describes a change by its verb, the past tense of the verb, and the object. Names in the object are
    /// [`quoted`].
    pub fn new(verb: &'static str, done: &'static str, object: fmt::Arguments<'_>) -> Change {
        Change { verb, done, object: shortened(object, MAX_LOGGED) }
    }

    /// Describes the creation of an object, for the log.
    pub fn create(object: fmt::Arguments<'_>) -> Change {
        Change::new("create", "created", object)
    }

    /// Describes the removal of an object, for the log.
    pub fn remove(object: fmt::Arguments<'_>) -> Change {
        Change::new("remove", "removed", object)
    }

    /// The sentence for the log, if the change was made, or was not made.
    pub fn sentence(&self, is_done: bool) -> String {
        match is_done {
            true => format!("{} {}", self.done, self.object),
            false => format!("cannot {} {}", self.verb, self.object),
        }
    }
}

/// The number of resources and the first names, such as `2 volumes: 'a', 'b'`.
pub(crate) fn counted(names: &[String], noun: &str) -> String {
    let first = names.iter().take(MAX_NAMES).map(|name| quoted(name).to_string()).collect::<Vec<_>>();
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    format!("{} {noun}: {}{more}", names.len(), first.join(", "))
}

/// An administrative operation: a type with the fields of its request, and how the control plane runs it.
pub(crate) trait Operation: Send + Sync + Sized + 'static {
    /// The reply: the body of the response.
    type Reply: Reply;

    /// What the operation changes, for the log; `None` for a query.
    const CHANGE: Changes<Self>;

    /// What the operation does to disks, for the events; `None` if it changes no disk.
    const EVENT: Option<&str> = None;

    /// The disks on which the client needs the right of the route. Names of disks that do not exist yet are
    /// included: nothing is created outside of a scope. Lists name no disk; their replies are filtered.
    const DISKS: Disks<Self>;

    /// The number of disks that the operation creates.
    fn creates(&self) -> u32 {
        0
    }

    /// The disk of the event, if the reply does not contain the disk.
    fn event_disk(&self) -> Option<String> {
        None
    }

    /// Whether the operation may take disks away from the initiators of a target.
    fn revokes_at(&self, _target: &IqnName) -> bool {
        false
    }

    /// Checks the request of a client that has the right on all disks of the operation. For example, only an
    /// administrator moves a volume to another tenant.
    ///
    /// # Errors
    /// [`Failure::Forbidden`], or [`Failure::hidden`] for a resource that the client cannot see.
    fn check(&self, _client: &Client<'_>) -> Result<(), Failure> {
        Ok(())
    }

    /// Executes the operation; `owner` is the name of the client. An operation that fails because a disk or
    /// target is in use has changed nothing, and is executed again.
    fn execute(&self, control: &Control, owner: &str) -> impl Future<Output = Result<Self::Reply>> + Send;
}

/// A value with which an operation replies.
pub(crate) trait Reply: Serialize + Send + 'static {
    /// The names of the disks in the reply. The event of the operation is published once for each disk.
    fn disks(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// The part of the reply that a client with a scope can see.
    fn visible_to(self, _client: &Client<'_>) -> impl Future<Output = Self> + Send
    where
        Self: Sized,
    {
        std::future::ready(self)
    }
}

/// Success without data: an empty JSON object.
#[derive(Debug, Serialize)]
pub(crate) struct Done {}

impl Reply for Done {}

impl Reply for DiskView {
    fn disks(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str())
    }
}

impl Reply for Vec<DiskView> {
    fn disks(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|disk| disk.name.as_str())
    }

    async fn visible_to(self, client: &Client<'_>) -> Self {
        retain(self, |disk| client.sees(&disk.name)).await
    }
}

impl Reply for Vec<TenantView> {
    async fn visible_to(mut self, client: &Client<'_>) -> Self {
        self.retain(|tenant| client.principal.sees_tenant(&tenant.name));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_short_sentences_that_a_name_cannot_forge() {
        let change = |name: &str| Change::create(format_args!("volume {}", quoted(name)));
        assert_eq!(change("a").sentence(true), "created volume 'a'");
        assert_eq!(change("a").sentence(false), "cannot create volume 'a'");
        assert_eq!(change("a' by=\"me").sentence(true), r#"created volume 'a\' by="me'"#);
        assert!(change(&"n".repeat(1 << 20)).sentence(true).len() < MAX_LOGGED + 16);
    }

    #[test]
    fn some_of_many_names_are_listed() {
        let names: Vec<String> = (1..=4).map(|i| format!("pc-{i}")).collect();
        assert_eq!(counted(&names[..2], "volumes"), "2 volumes: 'pc-1', 'pc-2'");
        assert_eq!(counted(&names, "volumes"), "4 volumes: 'pc-1', 'pc-2', 'pc-3', …");
    }
}
