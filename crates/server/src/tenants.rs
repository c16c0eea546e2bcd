//! Who may use the server: tokens, what they allow, and the published development users.

use crate::config::{ConfigError, Mode, Settings, invalid};
use crate::store::{Store, StoreError};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use posthaste_wire::encoding::{base64, from_base64};
use posthaste_wire::id::TenantId;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tenant in the TOML file. Tokens may be given as they are or as their SHA-256.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSettings {
    /// Name, for logs and the console.
    pub name: String,
    /// API token.
    pub token: Option<String>,
    /// SHA-256 of the API token, in hex.
    pub token_sha256: Option<String>,
    /// Token that may only read.
    pub read_only_token: Option<String>,
    /// SHA-256 of the token that may only read, in hex.
    pub read_only_token_sha256: Option<String>,
    /// Key that signs deliveries.
    pub current_signing_key: Option<String>,
    /// Key that becomes current at the next rotation.
    pub next_signing_key: Option<String>,
}

impl std::fmt::Debug for TenantSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A tenant, checked. Holds no token, only hashes.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Name, for logs and the console.
    pub name: String,
    /// SHA-256 of the token that may do everything.
    pub token: [u8; 32],
    /// The user that this token names, if it was given as it is and names one.
    pub user: Option<String>,
    /// SHA-256 of the token that may only read.
    pub read_only_token: Option<[u8; 32]>,
    /// The keys to start with; rotations are stored and win from then on.
    pub keys: SigningKeys,
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// Unix milliseconds of its last use since the start; 0 if there was none.
    used: AtomicU64,
}

impl From<Grant> for Known {
    fn from(grant: Grant) -> Known {
        Known { grant, used: AtomicU64::new(0) }
    }
}

/// A token of a tenant, as its owner may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// What it allows.
    pub scope: Scope,
    /// When it was last shown, since the start of the server.
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
            tokens.by_hash.insert(tenant.token, Grant { tenant: id, scope: Scope::Full, is_own: false }.into());
            if let Some(read_only) = tenant.read_only_token {
                let grant = Grant { tenant: id, scope: Scope::ReadOnly, is_own: false };
                tokens.by_hash.insert(read_only, grant.into());
            }
            for scope in [Scope::Full, Scope::ReadOnly] {
                let token = bs58::encode(crate::clock::random::<32>()).into_string();
                tokens.by_hash.insert(hash(&token), Grant { tenant: id, scope, is_own: true }.into());
                tokens.own.insert((id, scope), token);
            }
            if let Some(user) = &tenant.user {
                tokens.users.entry(user.clone()).or_insert(id);
            }
            keys.push((id, tenant.keys.clone()));
        }
        // A name is a tenant's own; what a token says may be anybody's.
        tokens.users.extend(tenants.iter().zip(&keys).map(|(tenant, (id, _))| (tenant.name.clone(), *id)));
        Ok((tokens, keys))
    }

    /// Whose token this is and what it allows. Remembers that it was used now.
    pub fn find(&self, token: &str, now: Timestamp) -> Option<Grant> {
        let known = self.by_hash.get(&hash(token))?;
        known.used.store(now.as_millis(), Ordering::Relaxed);
        Some(known.grant)
    }

    /// The tenant's tokens, the one that may do everything first; the server's own are not among them.
    pub fn of(&self, tenant: TenantId) -> Vec<TokenUse> {
        let theirs = self.by_hash.values().filter(|known| known.grant.tenant == tenant && !known.grant.is_own);
        let mut uses: Vec<TokenUse> = theirs
            .map(|known| TokenUse {
                scope: known.grant.scope,
                last_used: Some(Timestamp(known.used.load(Ordering::Relaxed))).filter(|at| *at > Timestamp(0)),
            })
            .collect();
        uses.sort_by_key(|token| token.scope == Scope::ReadOnly);
        uses
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

/// Shorter tokens can be guessed.
const TOKEN_CHARS_MIN: usize = 20;

/// The tenants that the settings name; in `dev` the published users besides.
pub(crate) fn resolve(mode: Mode, settings: &Settings) -> Result<Vec<TenantConfig>, ConfigError> {
    let mut tenants = Vec::new();
    if mode == Mode::Dev {
        tenants.extend(DEV_USERS.iter().map(|user| TenantConfig {
            name: user.name.to_owned(),
            token: hash(user.token),
            user: user_of(user.token),
            read_only_token: None,
            keys: SigningKeys { current: SigningKey::new(user.current), next: SigningKey::new(user.next) },
        }));
    }
    let single = TenantSettings {
        name: "default".to_owned(),
        token: settings.token.clone(),
        read_only_token: settings.read_only_token.clone(),
        current_signing_key: settings.current_signing_key.clone(),
        next_signing_key: settings.next_signing_key.clone(),
        ..TenantSettings::default()
    };
    let said = [&settings.read_only_token, &settings.current_signing_key, &settings.next_signing_key];
    if single.token.is_none() && said.iter().any(|setting| setting.is_some()) {
        return Err(invalid("token", "is missing: a read-only token or signing keys alone make no tenant"));
    }
    let single = single.token.is_some().then_some(&single);
    for tenant in single.into_iter().chain(&settings.tenants) {
        tenants.push(check(mode, tenant)?);
    }
    refuse_collisions(&tenants)?;
    if tenants.is_empty() {
        return Err(invalid(
            "tenants",
            "`serve` needs at least one: run `posthaste new-tenant NAME` and paste what it prints into the configuration",
        ));
    }
    Ok(tenants)
}

fn check(mode: Mode, tenant: &TenantSettings) -> Result<TenantConfig, ConfigError> {
    let name = &tenant.name;
    if name.is_empty() {
        return Err(invalid("tenants", "a tenant has no name"));
    }
    let token = token_hash(name, "token", tenant.token.as_deref(), tenant.token_sha256.as_deref())?
        .ok_or_else(|| invalid("tenants", format!("tenant {name:?} needs a token or token_sha256")))?;
    let read_only = (tenant.read_only_token.as_deref(), tenant.read_only_token_sha256.as_deref());
    let read_only_token = token_hash(name, "read_only_token", read_only.0, read_only.1)?;
    let key = |which: &str, key: &Option<String>| {
        let key = key.clone().filter(|key| !key.is_empty());
        key.ok_or_else(|| invalid("tenants", format!("tenant {name:?} needs a {which}")))
    };
    let keys =
        [key("current_signing_key", &tenant.current_signing_key)?, key("next_signing_key", &tenant.next_signing_key)?];
    if mode == Mode::Serve {
        let published_token =
            DEV_USERS.iter().any(|user| [Some(token), read_only_token].contains(&Some(hash(user.token))));
        let published_key = DEV_USERS.iter().any(|user| keys.iter().any(|key| key == user.current || key == user.next));
        if published_token || published_key {
            return Err(invalid(
                "tenants",
                format!(
                    "tenant {name:?} uses a published development token or key, which everybody knows; `serve` refuses it"
                ),
            ));
        }
    }
    let [current, next] = keys.map(SigningKey::new);
    let user = tenant.token.as_deref().and_then(user_of);
    Ok(TenantConfig { name: name.clone(), token, user, read_only_token, keys: SigningKeys { current, next } })
}

fn token_hash(
    tenant: &str,
    which: &str,
    token: Option<&str>,
    sha256: Option<&str>,
) -> Result<Option<[u8; 32]>, ConfigError> {
    match (token, sha256) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(invalid("tenants", format!("tenant {tenant:?} has both {which} and {which}_sha256"))),
        (Some(token), None) if token.chars().count() < TOKEN_CHARS_MIN => Err(invalid(
            "tenants",
            format!("the {which} of tenant {tenant:?} is shorter than {TOKEN_CHARS_MIN} characters"),
        )),
        (Some(token), None) => Ok(Some(hash(token))),
        (None, Some(text)) => match from_hex(text) {
            Some(hash) => Ok(Some(hash)),
            None => {
                Err(invalid("tenants", format!("{which}_sha256 of tenant {tenant:?} is not 64 hexadecimal digits")))
            }
        },
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn refuse_collisions(tenants: &[TenantConfig]) -> Result<(), ConfigError> {
    let mut names = std::collections::HashSet::new();
    let mut tokens = std::collections::HashSet::new();
    for tenant in tenants {
        if !names.insert(&tenant.name) {
            return Err(invalid("tenants", format!("there are two tenants named {:?}", tenant.name)));
        }
        if !tokens.insert(tenant.token) || tenant.read_only_token.is_some_and(|token| !tokens.insert(token)) {
            return Err(invalid("tenants", format!("a token of tenant {:?} is used twice", tenant.name)));
        }
    }
    Ok(())
}

/// A fresh tenant as a piece of TOML, and the tokens it stands for.
pub fn new_tenant(name: &str) -> String {
    let token = || fresh_token(name);
    let key = || SigningKey::from_random(crate::clock::random());
    let (full, read_only) = (token(), token());
    let hex = |token: &str| posthaste_wire::encoding::hex(&hash(token));
    format!(
        "# Give these to the programs of tenant {name:?}; they are shown only now.\n\
         #   QSTASH_TOKEN={full}\n\
         #   read-only token: {read_only}\n\
         [[tenants]]\n\
         name = {name:?}\n\
         token_sha256 = \"{}\"\n\
         read_only_token_sha256 = \"{}\"\n\
         current_signing_key = \"{}\"\n\
         next_signing_key = \"{}\"\n",
        hex(&full),
        hex(&read_only),
        key().expose(),
        key().expose(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_users_in_a_spelling_that_urls_can_have() {
        for name in ["acme", "a b/c", "ünïcode", "defaultUser"] {
            let token = fresh_token(name);
            assert!(token.chars().count() >= TOKEN_CHARS_MIN && token.starts_with("eyJ"), "{token}");
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
