//! The header of a call (RFC 5531, sections 9 and 8.2, and appendix A).

use super::xdr::{Decoder, Garbage};

const CALL: u32 = 0;
const RPC_VERSION: u32 = 2;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
/// Maximum bytes of a credential or verifier.
const AUTH_MAX: usize = 400;
const MACHINE_MAX: usize = 255;
/// Maximum number of additional groups in a credential.
const GROUPS_MAX: usize = 16;

/// The identity that a client claims to act for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthSys {
    /// The user.
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
    groups: [u32; GROUPS_MAX],
    count: usize,
}

impl AuthSys {
    /// The user's additional groups.
    pub fn groups(&self) -> &[u32] {
        self.groups.get(..self.count).unwrap_or_default()
    }
}

/// The credential of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// No identity.
    None,
    /// The identity of a user, unauthenticated.
    Sys(AuthSys),
}

/// Why a credential is refused (`auth_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AuthError {
    /// `AUTH_BADCRED`: the credential is malformed.
    BadCredential = 1,
    /// `AUTH_TOOWEAK`: the flavor is not supported.
    TooWeak = 5,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Number that the reply repeats.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the program.
    pub procedure: u32,
    /// Identity of the caller.
    pub credential: Credential,
    /// The arguments of the procedure.
    pub args: &'a [u8],
}

/// Why a message is not served as a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallError {
    /// The message is no call that could be answered, so its connection has to end.
    NotACall,
    /// The message has another version of RPC.
    Version {
        /// Number of the call.
        xid: u32,
    },
    /// The credential is refused.
    Auth {
        /// Number of the call.
        xid: u32,
        /// The reason.
        why: AuthError,
    },
}

impl<'a> Call<'a> {
    /// Decodes the message of a record.
    ///
    /// # Errors
    /// As [`CallError`].
    pub fn decode(message: &'a [u8]) -> Result<Call<'a>, CallError> {
        let mut xdr = Decoder::new(message);
        let not_a_call = |_: Garbage| CallError::NotACall;
        let xid = xdr.u32().map_err(not_a_call)?;
        if xdr.u32().map_err(not_a_call)? != CALL {
            return Err(CallError::NotACall);
        }
        if xdr.u32().map_err(not_a_call)? != RPC_VERSION {
            return Err(CallError::Version { xid });
        }
        let program = xdr.u32().map_err(not_a_call)?;
        let version = xdr.u32().map_err(not_a_call)?;
        let procedure = xdr.u32().map_err(not_a_call)?;
        let (flavor, body) = auth(&mut xdr).map_err(not_a_call)?;
        auth(&mut xdr).map_err(not_a_call)?;
        let credential = match flavor {
            AUTH_NONE => Credential::None,
            AUTH_SYS => match auth_sys(body) {
                Ok(sys) => Credential::Sys(sys),
                Err(_) => return Err(CallError::Auth { xid, why: AuthError::BadCredential }),
            },
            _ => return Err(CallError::Auth { xid, why: AuthError::TooWeak }),
        };
        Ok(Call { xid, program, version, procedure, credential, args: xdr.rest() })
    }
}

/// The flavor and the body of a credential or verifier.
fn auth<'a>(xdr: &mut Decoder<'a>) -> Result<(u32, &'a [u8]), Garbage> {
    Ok((xdr.u32()?, xdr.opaque(AUTH_MAX)?))
}

/// The body of an AUTH_SYS credential (appendix A).
fn auth_sys(body: &[u8]) -> Result<AuthSys, Garbage> {
    let mut xdr = Decoder::new(body);
    xdr.u32()?;
    xdr.opaque(MACHINE_MAX)?;
    let (uid, gid, count) = (xdr.u32()?, xdr.u32()?, xdr.u32()? as usize);
    let mut groups = [0; GROUPS_MAX];
    let listed = groups.get_mut(..count).ok_or(Garbage("more than 16 groups"))?;
    for group in listed {
        *group = xdr.u32()?;
    }
    Ok(AuthSys { uid, gid, groups, count })
}

#[cfg(test)]
mod tests {
    use super::super::Encoder;
    use super::*;

    fn call(version: u32, flavor: u32, body: &[u8]) -> Vec<u8> {
        let mut xdr = Encoder::default();
        xdr.u32(77).u32(CALL).u32(version).u32(100_003).u32(3).u32(6);
        xdr.u32(flavor).opaque(body).u32(AUTH_NONE).opaque(&[]).u32(0xaaaa_aaaa);
        xdr.into_bytes()
    }

    fn sys(groups: u32) -> Vec<u8> {
        let mut xdr = Encoder::default();
        xdr.u32(1).opaque(b"client").u32(1000).u32(100).u32(groups);
        for group in 0..groups {
            xdr.u32(500 + group);
        }
        xdr.into_bytes()
    }

    #[test]
    fn calls_have_the_identity_of_their_user() {
        let (bytes, none) = (call(2, AUTH_SYS, &sys(16)), call(2, AUTH_NONE, &[]));
        let decoded = Call::decode(&bytes).unwrap();
        assert_eq!((decoded.xid, decoded.program, decoded.version, decoded.procedure), (77, 100_003, 3, 6));
        let Credential::Sys(of) = decoded.credential else { panic!("AUTH_SYS") };
        assert_eq!((of.uid, of.gid, of.groups().len(), of.groups()[15]), (1000, 100, 16, 515));
        assert_eq!(decoded.args, [0xaa; 4]);
        assert_eq!(Call::decode(&none).unwrap().credential, Credential::None);
    }

    #[test]
    fn other_messages_are_refused_with_their_reason() {
        assert_eq!(Call::decode(&call(3, AUTH_NONE, &[])), Err(CallError::Version { xid: 77 }));
        let weak = Err(CallError::Auth { xid: 77, why: AuthError::TooWeak });
        assert_eq!(Call::decode(&call(2, 6, &[])), weak);
        let bad = Err(CallError::Auth { xid: 77, why: AuthError::BadCredential });
        assert_eq!(Call::decode(&call(2, AUTH_SYS, &sys(17))), bad);
        let body = sys(2);
        assert_eq!(Call::decode(&call(2, AUTH_SYS, &body[..body.len() - 4])), bad);
        assert_eq!(Call::decode(&call(2, AUTH_NONE, &[0; 404])), Err(CallError::NotACall));
        let bytes = call(2, AUTH_SYS, &sys(1));
        for len in 0..bytes.len() - 4 {
            assert!(matches!(Call::decode(&bytes[..len]), Err(CallError::NotACall)), "{len}");
        }
    }
}
