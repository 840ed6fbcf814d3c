//! Clients of operations, and what an operation may do for them.

use forebay_api::{ErrorKind, Scope};
use forebay_engine::Error as EngineError;
use tokio::sync::OwnedMutexGuard;

use super::{Control, ControlError, NameOwner, Operation, Reply, Result};
use crate::access::{DiskRef, Principal, Right, may};

/// The client of a route, with the right that the route requires.
pub(crate) struct Client<'a> {
    /// The control plane of the server.
    pub control: &'a Control,
    /// The principal of the client.
    pub principal: &'a Principal,
    /// The right that the route requires.
    pub right: Right,
}

/// Why an operation was refused, or failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client is not allowed to do this. The text states the right that is missing.
    Forbidden(String),
    /// The operation failed.
    Failed(ControlError),
}

impl From<ControlError> for Failure {
    fn from(e: ControlError) -> Failure {
        Failure::Failed(e)
    }
}

impl Failure {
    /// The failure for a disk or tenant outside of a scope: the same as for a name that does not exist.
    pub fn hidden(name: &str) -> Failure {
        Failure::Failed(EngineError::NotFound(name.to_owned()).into())
    }
}

impl Client<'_> {
    /// Runs an operation if the client has the right of the route on each of its disks. Lists contain only
    /// what the client can see.
    pub async fn run<O: Operation>(&self, operation: O) -> Result<O::Reply, Failure> {
        for disk in O::DISKS(&operation) {
            self.check(&disk)?;
        }
        operation.check(self)?;
        let order = self.check_count(operation.creates()).await?;
        let done = self.control.run(operation, &self.principal.name, order).await;
        let may_learn = |owner: &NameOwner| match owner {
            NameOwner::Disk(disk) => self.sees(disk),
            NameOwner::Tenant(tenant) => self.principal.sees_tenant(tenant),
            NameOwner::Target => may(self.principal, Right::ReadServer, None),
        };
        let reply = done.map_err(|e| e.for_client(may_learn))?;
        Ok(if self.principal.scope.is_some() { reply.visible_to(self).await } else { reply })
    }

    /// Refuses a disk outside of the scope with the same error as a disk that does not exist.
    pub fn check(&self, disk: &str) -> Result<(), Failure> {
        match self.sees(disk) {
            true => Ok(()),
            false => Err(Failure::hidden(disk)),
        }
    }

    /// Whether the client has the right of the route on a disk.
    pub fn sees(&self, disk: &str) -> bool {
        let tenant = match &self.principal.scope {
            None => return true,
            Some(Scope::Disks(_)) => None,
            Some(Scope::Tenant(_)) => self.control.tenant_of(disk),
        };
        may(self.principal, self.right, Some(&DiskRef { name: disk, tenant: tenant.as_deref() }))
    }

    /// Refuses to create more disks than the token may have in its scope: each disk costs memory of the
    /// server, even if it holds no data. Further requests of such tokens wait for the returned guard.
    async fn check_count(&self, created: u32) -> Result<Option<OwnedMutexGuard<()>>> {
        let (Some(most), 1..) = (self.principal.max_disks, created) else {
            return Ok(None);
        };
        let order = self.control.creating().await;
        let present = self.control.count_disks(|name| self.sees(name)).await;
        if present.saturating_add(created as usize) <= most as usize {
            return Ok(Some(order));
        }
        let detail = format!(
            "the token '{}' creates disks while its scope has at most {most}, snapshots and images included; \
             it has {present} and would get {created} more; remove some, or ask an administrator for a token \
             with a higher limit ('forebay token create --max-disks')",
            self.principal.name
        );
        Err(ControlError::new(ErrorKind::Full, detail))
    }
}
