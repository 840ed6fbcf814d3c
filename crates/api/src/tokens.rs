//! Tokens in the API: roles and scopes.

use forebay_text::NamePattern;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The role of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at disks and counters
    Reader,
    /// Also reset, roll back, resume and limit volumes, and make and remove snapshots, within a scope
    Operator,
    /// Also create, clone, resize and remove volumes, and make images of them, within a scope of names
    Provisioner,
    /// Everything
    Administrator,
}

impl Role {
    /// The name in messages and tables.
    pub fn name(self) -> &'static str {
        match self {
            Role::Reader => "reader",
            Role::Operator => "operator",
            Role::Provisioner => "provisioner",
            Role::Administrator => "administrator",
        }
    }

    /// Whether the role creates a limited number of disks.
    pub fn is_limited(self) -> bool {
        matches!(self, Role::Operator | Role::Provisioner)
    }
}

/// The disks to which a token is restricted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Disks that a pattern matches: `NAME` with all its snapshots or `VOLUME@SNAPSHOT`, with `*` for any
    /// characters.
    #[schema(value_type = Vec<String>)]
    Disks(Vec<NamePattern>),
    /// Disks that belong to this tenant.
    Tenant(String),
}

/// Body of `POST /tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "backup", "role": "operator", "scope": {"disks": ["web-*"]}, "expires_in_s": 31536000}))]
pub struct CreateToken {
    /// Name of the token, which the audit log shows.
    pub name: String,
    /// Role.
    pub role: Role,
    /// The disks to which it is restricted; required for an operator, by name for a provisioner, and not
    /// possible for an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Seconds until it expires; if absent, it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
    /// Most disks in the scope of an operator or a provisioner, snapshots and images included: with as many,
    /// the token creates no further ones. If absent, 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_disks: Option<u32>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"name": "backup", "role": "operator", "scope": {"disks": ["web-*"]}, "created_ms": 1767225600000u64,
    "expires_ms": 1798761600000u64, "last_used_ms": null, "expired": false, "max_disks": 10000}))]
pub struct TokenView {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// The disks to which it is restricted; `null` for the whole server.
    pub scope: Option<Scope>,
    /// Creation time in Unix milliseconds.
    pub created_ms: u64,
    /// When it expires, in Unix milliseconds.
    pub expires_ms: Option<u64>,
    /// When it was last used, in Unix milliseconds.
    pub last_used_ms: Option<u64>,
    /// It has expired.
    pub expired: bool,
    /// Most disks in the scope of an operator or a provisioner; `null` for other roles.
    pub max_disks: Option<u32>,
}

/// A new token. The secret cannot be shown again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The secret, for the header `Authorization: Bearer SECRET`.
    pub secret: String,
    /// The token.
    pub token: TokenView,
}
