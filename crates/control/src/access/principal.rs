//! Principals, and what they may do.

use std::net::IpAddr;
use std::sync::Arc;

use forebay_api::{Role, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::hash::Hash;

/// The right that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// None: the route is public.
    Anyone,
    /// Look at disks in the scope of the principal.
    Read,
    /// Look at the server as a whole; not for principals with a scope.
    ReadServer,
    /// Look at the place of the pool and its free room; provisioners have it in spite of their scope.
    ReadRoom,
    /// Change disks in the scope of the principal, without creating or removing any but snapshots.
    Operate,
    /// Create and remove disks in the scope of the principal.
    Provision,
    /// Read the contents of disks in the scope of the principal. It is more than to look at disks: a client
    /// with this right has all data of their guests.
    ReadData,
    /// Everything else.
    Administer,
    /// Act with the rights of the server's user: only over the control socket.
    Local,
}

impl Right {
    /// The name in the OpenAPI document.
    pub fn name(self) -> &'static str {
        match self {
            Right::Anyone => "anyone",
            Right::Read => "read",
            Right::ReadServer => "read_server",
            Right::ReadRoom => "read_room",
            Right::Operate => "operate",
            Right::Provision => "provision",
            Right::ReadData => "read_data",
            Right::Administer => "administer",
            Right::Local => "local",
        }
    }
}

/// Whether a scope contains a disk.
fn contains(scope: &Scope, disk: &DiskRef<'_>) -> bool {
    match scope {
        Scope::Disks(patterns) => patterns.iter().any(|pattern| pattern.matches(disk.name)),
        Scope::Tenant(tenant) => disk.tenant == Some(tenant),
    }
}

/// Whether a scope contains every disk, but not necessarily the snapshots, whose name begins with `prefix`.
pub fn contains_all_beginning_with(scope: &Scope, prefix: &str) -> bool {
    match scope {
        Scope::Disks(patterns) => patterns.iter().any(|pattern| pattern.matches_all_beginning_with(prefix)),
        Scope::Tenant(_) => false,
    }
}

/// How a principal was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// By the control socket, which only the server's user can open.
    Socket,
    /// By a loopback address, while no token is demanded there.
    Loopback,
    /// By a token.
    Token,
    /// By the session of a web page.
    Session,
}

impl Via {
    /// The name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Via::Socket => "socket",
            Via::Loopback => "loopback",
            Via::Token => "token",
            Via::Session => "session",
        }
    }
}

/// The name of a client of the control socket. No token has it.
pub(super) const LOCAL: &str = "control socket";
/// The name of a client on a loopback address that needs no token. No token has it.
pub(super) const LOOPBACK: &str = "loopback";

/// A client of the API that was authenticated.
#[derive(Debug, Clone)]
pub struct Principal {
    /// Name of the token; for a client without a token, the name of the way in.
    pub name: Arc<str>,
    /// Role of the principal.
    pub role: Role,
    /// The disks to which the principal is restricted; `None` for the whole server.
    pub scope: Option<Scope>,
    /// Maximum number of disks in the principal's scope: at this number, the principal cannot create further
    /// disks. `None` for no limit.
    pub max_disks: Option<u32>,
    /// How the principal was authenticated.
    pub via: Via,
    /// Address of the client; `None` if the client does not use TCP.
    pub address: Option<IpAddr>,
    /// Id of the principal's token.
    pub(super) token: Option<Arc<str>>,
    /// Hash of the secret of the principal's session.
    pub(super) session: Option<Hash>,
    /// The node of a cluster has authenticated the principal, and looks after its token and session.
    pub(super) is_forwarded: bool,
}

/// A client that the node of a cluster has authenticated, as the server of a shard learns of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Forwarded {
    name: String,
    role: Role,
    scope: Option<Scope>,
    max_disks: Option<u32>,
    via: Via,
    address: Option<IpAddr>,
    /// Id of the token.
    token: Option<String>,
}

impl From<&Principal> for Forwarded {
    fn from(principal: &Principal) -> Forwarded {
        let Principal { name, role, scope, max_disks, via, address, token, .. } = principal.clone();
        let token = token.as_deref().map(str::to_owned);
        Forwarded { name: name.to_string(), role, scope, max_disks, via, address, token }
    }
}

impl From<Forwarded> for Principal {
    fn from(forwarded: Forwarded) -> Principal {
        let Forwarded { name, role, scope, max_disks, via, address, token } = forwarded;
        let token = token.map(Into::into);
        let principal = Principal::new(name.into(), role, via, address);
        Principal { scope, max_disks, token, is_forwarded: true, ..principal }
    }
}

/// A disk, for the decision of [`may`].
#[derive(Debug, Clone, Copy)]
pub struct DiskRef<'a> {
    /// Name of the disk; for a snapshot, `volume@snapshot`.
    pub name: &'a str,
    /// Tenant of the disk; for a snapshot, the tenant of its volume.
    pub tenant: Option<&'a str>,
}

impl Principal {
    /// A client of the control socket.
    pub fn local() -> Principal {
        Principal::administrator(LOCAL, Via::Socket, None)
    }

    /// A client on a loopback address that needs no token.
    pub fn loopback(address: Option<IpAddr>) -> Principal {
        Principal::administrator(LOOPBACK, Via::Loopback, address)
    }

    /// Id of the principal's token. No other token has this id, not even a later token with the same name.
    pub fn token_id(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The client to which entries of bounded tables belong: the id of its token, or its name without one.
    pub fn owner(&self) -> String {
        match self.token_id() {
            Some(id) => format!("token {id}"),
            None => self.name.to_string(),
        }
    }

    /// Whether a tenant is in its scope.
    pub fn sees_tenant(&self, name: &str) -> bool {
        match &self.scope {
            None => true,
            Some(Scope::Tenant(own)) => own == name,
            Some(Scope::Disks(_)) => false,
        }
    }

    fn administrator(name: &str, via: Via, address: Option<IpAddr>) -> Principal {
        Principal::new(name.into(), Role::Administrator, via, address)
    }

    /// A principal without a token, for the whole server.
    pub(super) fn new(name: Arc<str>, role: Role, via: Via, address: Option<IpAddr>) -> Principal {
        Principal {
            name,
            role,
            scope: None,
            max_disks: None,
            via,
            address,
            token: None,
            session: None,
            is_forwarded: false,
        }
    }
}

/// Whether a principal has a right: on the server, or on one disk.
pub fn may(principal: &Principal, right: Right, disk: Option<&DiskRef<'_>>) -> bool {
    let by_role = match right {
        Right::Anyone | Right::Read => true,
        Right::ReadServer => principal.scope.is_none(),
        Right::ReadRoom => principal.scope.is_none() || principal.role >= Role::Provisioner,
        Right::Operate => principal.role >= Role::Operator,
        Right::Provision | Right::ReadData => principal.role >= Role::Provisioner,
        Right::Administer => principal.role == Role::Administrator,
        Right::Local => principal.role == Role::Administrator && principal.via == Via::Socket,
    };
    let in_scope = |disk: &DiskRef<'_>| principal.scope.as_ref().is_none_or(|scope| contains(scope, disk));
    by_role && disk.is_none_or(in_scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(role: Role, scope: Option<Scope>) -> Principal {
        Principal { scope, ..Principal::new("t".into(), role, Via::Token, None) }
    }

    #[test]
    fn each_role_has_the_rights_of_the_lower_ones() {
        use Right::*;
        for (role, rights) in [
            (Role::Reader, [true, true, true, true, false, false, false, false, false]),
            (Role::Operator, [true, true, true, true, true, false, false, false, false]),
            (Role::Provisioner, [true, true, true, true, true, true, true, false, false]),
            (Role::Administrator, [true, true, true, true, true, true, true, true, false]),
        ] {
            let found = [Anyone, Read, ReadServer, ReadRoom, Operate, Provision, ReadData, Administer, Local]
                .map(|right| may(&principal(role, None), right, None));
            assert_eq!(found, rights, "{role:?}");
        }
        assert!(may(&Principal::local(), Local, None) && !may(&Principal::loopback(None), Local, None));
    }

    #[test]
    fn a_scope_restricts_every_right_on_disks_and_excludes_the_server() {
        let disk = |name, tenant| DiskRef { name, tenant };
        let patterns = Scope::Disks(vec!["web-*".parse().unwrap(), "db".parse().unwrap()]);
        for role in [Role::Reader, Role::Operator] {
            let by_name = principal(role, Some(patterns.clone()));
            let by_tenant = principal(role, Some(Scope::Tenant("acme".into())));
            assert!(may(&by_name, Right::Read, Some(&disk("web-1", None))));
            assert!(may(&by_name, Right::Read, Some(&disk("db@monday", Some("other")))));
            assert!(!may(&by_name, Right::Read, Some(&disk("web", None))));
            assert!(!may(&by_name, Right::Read, Some(&disk("mail", Some("acme")))));
            assert!(may(&by_tenant, Right::Read, Some(&disk("mail", Some("acme")))));
            assert!(!may(&by_tenant, Right::Read, Some(&disk("mail", Some("acme2")))));
            assert!(!may(&by_tenant, Right::Read, Some(&disk("web-1", None))));
            assert!(!may(&by_name, Right::ReadServer, None) && !may(&by_tenant, Right::ReadServer, None));
        }
        let provisioner = principal(Role::Provisioner, Some(patterns.clone()));
        assert!(may(&provisioner, Right::Provision, Some(&disk("web-new", None))));
        assert!(!may(&provisioner, Right::Provision, Some(&disk("mail", None))));
        assert!(may(&provisioner, Right::ReadRoom, None) && !may(&provisioner, Right::ReadServer, None));
        let operator = principal(Role::Operator, Some(patterns));
        assert!(!may(&operator, Right::Provision, Some(&disk("web-1", None))));
        assert!(!may(&operator, Right::ReadRoom, None));
        assert!(may(&operator, Right::Operate, Some(&disk("db", None))));
        assert!(!may(&operator, Right::Operate, Some(&disk("mail", None))));
    }
}
