//! What an administrative operation declares, in one place: the file of its resource ([`crate::resources`]).

use std::fmt::Debug;

use forebay_api::{DiskView, TenantView};
use forebay_frontend::targets::IqnName;
use serde::Serialize;

use super::client::{Client, Failure};
use super::stretches::retain;
use super::{Control, Result};

/// Returns the names of the disks that an operation concerns.
pub(crate) type Disks<O> = fn(&O) -> Vec<String>;

/// An administrative operation: a type with the fields of its request, and how the control plane runs it.
/// Its `Debug` form is the operation in the log.
pub(crate) trait Operation: Debug + Send + Sync + Sized + 'static {
    /// The reply: the body of the response.
    type Reply: Reply;

    /// Whether the operation has no effect on the state.
    const IS_QUERY: bool = false;

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

/// The reply to an operation.
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
