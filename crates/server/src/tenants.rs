//! Who may use the server: tokens, what they allow, and the published development users.

mod fresh;
mod settings;

pub use fresh::{AddTenantError, NewTenant, add_tenant, new_tenant};
pub(crate) use settings::resolve;
pub use settings::{TenantConfig, TenantSettings, TokenConfig, TokenSettings, new_token};

use crate::token_uses::Uses;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use posthaste_store::{Store, StoreError};
use posthaste_wire::encoding::{base64, from_base64};
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::SigningKeys;
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Everything.
    Full,
    /// Reading.
    ReadOnly,
}

/// Whose token somebody has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The tenant.
    pub tenant: TenantId,
    /// What the token allows.
    pub scope: Scope,
    /// It is one of the server's own: the console asks for somebody who has logged in.
    pub is_own: bool,
}

/// A token that may be shown.
struct Known {
    grant: Grant,
    /// Empty for the server's own.
    name: String,
    /// Its place among all, as the file has them.
    place: usize,
    /// Unix milliseconds of its last use; 0 if there was none.
    used: AtomicU64,
}

/// A token of a tenant, as its owner may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUse<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What it allows.
    pub scope: Scope,
    /// When it was last shown.
    pub last_used: Option<Timestamp>,
}

/// Tokens by their hashes, and the users that they name.
#[derive(Default)]
pub struct Tokens {
    by_hash: HashMap<[u8; 32], Known>,
    users: HashMap<String, TenantId>,
    /// Tokens that only this process knows, one for each tenant and scope.
    own: HashMap<(TenantId, Scope), String>,
}

impl Tokens {
    /// Gives every tenant its number in the store.
    pub fn load(
        store: &dyn Store,
        tenants: &[TenantConfig],
    ) -> Result<(Tokens, Vec<(TenantId, SigningKeys)>), StoreError> {
        let mut tokens = Tokens::default();
        let mut keys = Vec::new();
        for tenant in tenants {
            let id = store.tenant(&tenant.name)?;
            for TokenConfig { name, scope, hash } in &tenant.tokens {
                tokens.know(*hash, Grant { tenant: id, scope: *scope, is_own: false }, name);
            }
            for scope in [Scope::Full, Scope::ReadOnly] {
                let token = bs58::encode(crate::clock::random::<32>()).into_string();
                tokens.know(hash(&token), Grant { tenant: id, scope, is_own: true }, "");
                tokens.own.insert((id, scope), token);
            }
            for user in &tenant.users {
                tokens.users.entry(user.clone()).or_insert(id);
            }
            keys.push((id, tenant.keys.clone()));
        }
        // A name is a tenant's own; what a token says may be anybody's.
        tokens.users.extend(tenants.iter().zip(&keys).map(|(tenant, (id, _))| (tenant.name.clone(), *id)));
        Ok((tokens, keys))
    }

    fn know(&mut self, hash: [u8; 32], grant: Grant, name: &str) {
        let place = self.by_hash.len();
        self.by_hash.insert(hash, Known { grant, name: name.to_owned(), place, used: AtomicU64::new(0) });
    }

    /// Whose token this is and what it allows. Remembers that it was used now.
    pub fn find(&self, token: &str, now: Timestamp) -> Option<Grant> {
        let known = self.by_hash.get(&hash(token))?;
        known.used.store(now.as_millis(), Ordering::Relaxed);
        Some(known.grant)
    }

    /// Whether this is a token of somebody.
    pub(crate) fn knows(&self, token: &str) -> bool {
        self.by_hash.contains_key(&hash(token))
    }

    /// When each token was last used, by its hash; the server's own are not among them.
    pub(crate) fn uses(&self) -> Uses {
        let known = self.by_hash.iter().filter(|(_, known)| !known.grant.is_own);
        let uses = known.map(|(hash, known)| (hex(hash), known.used.load(Ordering::Relaxed)));
        uses.filter(|(_, used)| *used > 0).collect()
    }

    /// Uses of an earlier process; tokens that are not known any more are left out.
    pub(crate) fn recall(&self, uses: &Uses) {
        for (hash, known) in &self.by_hash {
            if let Some(used) = uses.get(&hex(hash)) {
                known.used.fetch_max(*used, Ordering::Relaxed);
            }
        }
    }

    /// The tenant's tokens in the order of the file; the server's own are not among them.
    pub fn of(&self, tenant: TenantId) -> Vec<TokenUse<'_>> {
        let theirs = self.by_hash.values().filter(|known| known.grant.tenant == tenant && !known.grant.is_own);
        let mut theirs: Vec<&Known> = theirs.collect();
        theirs.sort_by_key(|known| known.place);
        let of = |known: &'_ Known| Timestamp(known.used.load(Ordering::Relaxed));
        let uses = theirs.into_iter().map(|known| TokenUse {
            name: &known.name,
            scope: known.grant.scope,
            last_used: Some(of(known)).filter(|at| *at > Timestamp(0)),
        });
        uses.collect()
    }

    /// The server's own token for a tenant; empty, and so of no use, for one that there is not.
    pub(crate) fn own(&self, tenant: TenantId, scope: Scope) -> &str {
        self.own.get(&(tenant, scope)).map_or("", String::as_str)
    }

    /// The tenant that a webhook names: by the user of its token, or by its own name.
    pub fn of_user(&self, user: &str) -> Option<TenantId> {
        self.users.get(user).copied()
    }
}

/// The user that a token names: clients write it into the URLs of webhooks. Tokens may be any text, so most that
/// people make up name none.
pub fn user_of(token: &str) -> Option<String> {
    let text = from_base64(token)?;
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&text).ok()?;
    let user = object.get("UserID")?.as_str().filter(|user| !user.is_empty())?;
    percent_decode_str(user).decode_utf8().ok().map(|user| user.into_owned())
}

/// A fresh token that names a user, in a spelling that is safe in URLs.
fn fresh_token(user: &str) -> String {
    let user = utf8_percent_encode(user, NON_ALPHANUMERIC).to_string();
    let password = bs58::encode(crate::clock::random::<32>()).into_string();
    base64(serde_json::json!({ "UserID": user, "Password": password }).to_string().as_bytes())
}

fn hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How tokens are kept.
pub fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A user that everybody knows: token, current key, next key.
pub struct DevUser {
    /// Who.
    pub name: &'static str,
    /// Its token.
    pub token: &'static str,
    /// Its first key.
    pub current: &'static str,
    /// Its second key.
    pub next: &'static str,
}

/// The four users that the official development server publishes; the JavaScript SDK has the first
/// one built in. They work in `dev` and are refused in `serve`.
pub const DEV_USERS: [DevUser; 4] = [
    DevUser {
        name: "defaultUser",
        token: "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
        current: "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
        next: "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
    },
    DevUser {
        name: "testUser1",
        token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        current: "sig_7GVPjvuwsfqF65iC8fSrs1dfYruM",
        next: "sig_5NoELc3EFnZn4DVS5bDs2Nk4b7Ua",
    },
    DevUser {
        name: "testUser2",
        token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjIiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        current: "sig_6jWGaWRxHsw4vMSPJprXadyvrybF",
        next: "sig_7qHbvhmahe5GwfePDiS5Lg3pi6Qx",
    },
    DevUser {
        name: "testUser3",
        token: "eyJVc2VySUQiOiJ0ZXN0VXNlcjMiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9",
        current: "sig_5T8FcSsynBjn9mMLBsXhpacRovJf",
        next: "sig_7GFR4YaDshFcqsxWRZpRB161jguD",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::signature::PUBLISHED_KEYS;

    /// Receivers refuse the published keys by that list.
    #[test]
    fn every_published_key_is_listed_as_one() {
        let keys: Vec<&str> = DEV_USERS.iter().flat_map(|user| [user.current, user.next]).collect();
        assert_eq!(keys, PUBLISHED_KEYS);
    }

    #[test]
    fn tokens_name_users_in_a_spelling_that_urls_can_have() {
        for name in ["acme", "a b/c", "ünïcode", "defaultUser"] {
            let token = fresh_token(name);
            assert!(token.starts_with("eyJ"), "{token}");
            assert_eq!(user_of(&token).as_deref(), Some(name));
            let text = String::from_utf8(from_base64(&token).unwrap()).unwrap();
            assert!(!text.contains(['/', ' ']), "{text}");
        }
        assert_ne!(fresh_token("a"), fresh_token("a"));
        for user in &DEV_USERS {
            assert_eq!(user_of(user.token).as_deref(), Some(user.name));
        }
        for text in ["", "pht_made_up_by_people", "e30=", "bnVsbA==", "eyJVc2VySUQiOiIifQ==", "eyJVc2VySUQiOjF9"] {
            assert_eq!(user_of(text), None, "{text}");
        }
    }
}
