//! `forebay token`: tokens for clients of the API over TCP.

use forebay_api::client::Client;
use forebay_api::{CreateToken, CreatedToken, Scope, TokenView};
use forebay_host::clock::unix_ms;

use super::CliError;
use super::args::TokenCommand;
use super::output::{age, print_result, render, table};

/// The time until a token expires, in seconds; `None` for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiry(pub Option<u64>);

/// Parses a time: a number with the unit s, m, h or d, or `never`.
pub(super) fn parse_expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry(None));
    }
    let invalid =
        || format!("'{text}' is not a time; write a number with s, m, h or d, such as 90d, or never");
    let unit = text.chars().last().ok_or_else(invalid)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(invalid()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| invalid())?;
    number.checked_mul(seconds).filter(|s| *s > 0).map(|s| Expiry(Some(s))).ok_or_else(invalid)
}

/// Runs `forebay token`.
pub(super) async fn run(client: &Client, command: TokenCommand, json: bool) -> Result<(), CliError> {
    match command {
        TokenCommand::Create { name, role, disks, tenant, expires, max_disks } => {
            let scope = match tenant {
                Some(tenant) => Some(Scope::Tenant(tenant)),
                None => (!disks.is_empty()).then_some(Scope::Disks(disks)),
            };
            let body = CreateToken { name, role, scope, expires_in_s: expires.0, max_disks };
            let made: CreatedToken = client.post(&["tokens"], &body).await?;
            // Only the secret, so that it can be redirected to a file.
            print_result(&made, json, |made| made.secret.clone())
        }
        TokenCommand::List => {
            let tokens: Vec<TokenView> = client.get(&["tokens"]).await?;
            print_result(&tokens, json, |tokens| list(tokens))
        }
        TokenCommand::Revoke { name } => {
            let done: serde_json::Value = client.delete(&["tokens", &name]).await?;
            print_result(&done, json, |_| format!("revoked token '{name}'"))
        }
    }
}

fn list(tokens: &[TokenView]) -> String {
    let now = unix_ms();
    let mut rows = table(&["NAME", "ROLE", "SCOPE", "MOST DISKS", "EXPIRES", "LAST USE"], &[3]);
    for token in tokens {
        let scope = match &token.scope {
            None => "all".to_owned(),
            Some(Scope::Tenant(tenant)) => format!("tenant {tenant}"),
            Some(Scope::Disks(patterns)) => {
                patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        let expires = match token.expires_ms {
            None => "never".to_owned(),
            Some(_) if token.expired => "expired".to_owned(),
            Some(at) => format!("in {}", age(at, now)),
        };
        let most = token.max_disks.map_or("-".to_owned(), |most| most.to_string());
        let used = token.last_used_ms.map_or("never".to_owned(), |at| format!("{} ago", age(now, at)));
        rows.add_row([token.name.as_str(), token.role.name(), &scope, &most, &expires, &used]);
    }
    render(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, seconds) in [("90d", 7_776_000), ("12h", 43_200), ("5m", 300), ("1s", 1)] {
            assert_eq!(parse_expiry(text), Ok(Expiry(Some(seconds))));
        }
        assert_eq!(parse_expiry("never"), Ok(Expiry(None)));
        for bad in ["", "d", "90", "0d", "-1d", "1w", "é", "99999999999999999999d", "9999999999999999999d"] {
            assert!(parse_expiry(bad).is_err(), "{bad}");
        }
    }
}
