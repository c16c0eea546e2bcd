//! Tenants and their tokens in the TOML file: read, checked, and drawn anew.

use super::{DEV_USERS, Scope, fresh_token, hash, user_of};
use crate::config::{ConfigError, Mode, Settings, invalid};
use posthaste_wire::signature::{SigningKey, SigningKeys};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

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
    /// More tokens, each with a name.
    pub tokens: Vec<TokenSettings>,
}

/// A token with a name in the TOML file: itself or its SHA-256.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSettings {
    /// Who has it, for the console.
    pub name: String,
    /// What it allows.
    pub scope: Scope,
    /// The token.
    #[serde(default)]
    pub token: Option<String>,
    /// Its SHA-256, in hex.
    #[serde(default)]
    pub token_sha256: Option<String>,
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
    /// What may be shown for it, in the order of the file; one at least may do everything.
    pub tokens: Vec<TokenConfig>,
    /// The users that those of them name that may do everything, were given as they are and name one.
    pub users: Vec<String>,
    /// The keys to start with; rotations are stored and win from then on.
    pub keys: SigningKeys,
}

/// A token, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// As in the file: of one that has no name, its key there.
    pub name: String,
    /// What it allows.
    pub scope: Scope,
    /// Its SHA-256.
    pub hash: [u8; 32],
}

/// What the tokens are called that have no name.
const UNNAMED: [(&str, Scope); 2] = [("token", Scope::Full), ("read_only_token", Scope::ReadOnly)];

/// Shorter tokens can be guessed.
const TOKEN_CHARS_MIN: usize = 20;

/// The tenants that the settings name; in `dev` the published users besides.
pub(crate) fn resolve(mode: Mode, settings: &Settings) -> Result<Vec<TenantConfig>, ConfigError> {
    let mut tenants = Vec::new();
    if mode == Mode::Dev {
        tenants.extend(DEV_USERS.iter().map(|user| TenantConfig {
            name: user.name.to_owned(),
            tokens: vec![TokenConfig { name: "token".to_owned(), scope: Scope::Full, hash: hash(user.token) }],
            users: user_of(user.token).into_iter().collect(),
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
            "`serve` needs at least one: run `posthaste new-tenant NAME --write FILE`, and start with `--config FILE`",
        ));
    }
    Ok(tenants)
}

fn check(mode: Mode, tenant: &TenantSettings) -> Result<TenantConfig, ConfigError> {
    let name = &tenant.name;
    if name.is_empty() {
        return Err(invalid("tenants", "a tenant has no name"));
    }
    let tokens = check_tokens(tenant)?;
    if !tokens.iter().any(|token| token.scope == Scope::Full) {
        let why = "needs a token or token_sha256, or a token with a name whose scope is \"full\"";
        return Err(invalid("tenants", format!("tenant {name:?} {why}")));
    }
    let key = |which: &str, key: &Option<String>| {
        let key = key.clone().filter(|key| !key.is_empty());
        key.ok_or_else(|| invalid("tenants", format!("tenant {name:?} needs a {which}")))
    };
    let keys =
        [key("current_signing_key", &tenant.current_signing_key)?, key("next_signing_key", &tenant.next_signing_key)?];
    if mode == Mode::Serve {
        let published_token = DEV_USERS.iter().any(|user| tokens.iter().any(|token| token.hash == hash(user.token)));
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
    let full = tenant.tokens.iter().filter(|token| token.scope == Scope::Full).map(|token| &token.token);
    let users = [&tenant.token].into_iter().chain(full).filter_map(|token| user_of(token.as_deref()?)).collect();
    Ok(TenantConfig { name: name.clone(), tokens, users, keys: SigningKeys { current, next } })
}

/// All tokens of a tenant, those without a name first.
fn check_tokens(tenant: &TenantSettings) -> Result<Vec<TokenConfig>, ConfigError> {
    let unnamed = [
        (tenant.token.as_deref(), tenant.token_sha256.as_deref()),
        (tenant.read_only_token.as_deref(), tenant.read_only_token_sha256.as_deref()),
    ];
    let mut tokens = Vec::new();
    for ((name, scope), (token, sha256)) in UNNAMED.into_iter().zip(unnamed) {
        let hash = token_hash(&tenant.name, name, token, sha256)?;
        tokens.extend(hash.map(|hash| TokenConfig { name: name.to_owned(), scope, hash }));
    }
    for TokenSettings { name, scope, token, token_sha256 } in &tenant.tokens {
        let wrong = |why: &str| invalid("tenants", format!("a token of tenant {:?} {why}", tenant.name));
        check_token_name(&tenant.name, name)?;
        if tokens.iter().any(|token| token.name == *name) {
            return Err(wrong(&format!("is named {name:?}, which is taken")));
        }
        match (token, token_sha256) {
            (None, None) => return Err(wrong(&format!("is named {name:?} and needs a token or token_sha256"))),
            (Some(_), Some(_)) => return Err(wrong(&format!("is named {name:?} and has both token and token_sha256"))),
            _ => {}
        }
        let hash = token_hash(&tenant.name, &format!("token {name:?}"), token.as_deref(), token_sha256.as_deref())?;
        tokens.extend(hash.map(|hash| TokenConfig { name: name.clone(), scope: *scope, hash }));
    }
    Ok(tokens)
}

fn check_token_name(tenant: &str, name: &str) -> Result<(), ConfigError> {
    let wrong = |why: &str| Err(invalid("tenants", format!("a token of tenant {tenant:?} {why}")));
    if name.trim().is_empty() {
        return wrong("has no name");
    }
    if UNNAMED.iter().any(|(reserved, _)| name == *reserved) {
        return wrong(&format!("is named {name:?}, which is reserved for the token without a name; choose another"));
    }
    Ok(())
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
            None => Err(invalid(
                "tenants",
                format!("the SHA-256 of the {which} of tenant {tenant:?} is not 64 hexadecimal digits"),
            )),
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
    let mut names = HashSet::new();
    let mut hashes = HashSet::new();
    for tenant in tenants {
        if !names.insert(&tenant.name) {
            return Err(invalid("tenants", format!("there are two tenants named {:?}", tenant.name)));
        }
        if !tenant.tokens.iter().all(|token| hashes.insert(token.hash)) {
            return Err(invalid("tenants", format!("a token of tenant {:?} is used twice", tenant.name)));
        }
    }
    Ok(())
}

/// A fresh token with a name as a piece of TOML, for the end of its tenant's block.
pub fn new_token(tenant: &str, name: &str, scope: Scope) -> Result<String, ConfigError> {
    check_token_name(tenant, name)?;
    let token = fresh_token(tenant);
    let scope = match scope {
        Scope::Full => "full",
        Scope::ReadOnly => "read-only",
    };
    Ok(format!(
        "# Belongs right behind the settings of tenant {tenant:?}; the token is shown only now.\n\
         #   QSTASH_TOKEN={token}\n\
         [[tenants.tokens]]\n\
         name = {}\n\
         scope = \"{scope}\"\n\
         token_sha256 = \"{}\"\n",
        toml::Value::from(name),
        hex_hash(&token),
    ))
}

pub(super) fn hex_hash(token: &str) -> String {
    posthaste_wire::encoding::hex(&hash(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "[[tenants]]\nname = \"a\"\ncurrent_signing_key = \"c\"\nnext_signing_key = \"n\"\n";

    /// The tokens of the only tenant of this file, or what is wrong with it.
    fn tokens(text: &str) -> Result<Vec<(String, Scope)>, String> {
        let settings: Settings = toml::from_str(&format!("{TENANT}{text}")).map_err(|error| error.to_string())?;
        let tenants = resolve(Mode::Serve, &settings).map_err(|error| error.to_string())?;
        Ok(tenants[0].tokens.iter().map(|token| (token.name.clone(), token.scope)).collect())
    }

    fn named(name: &str, scope: &str, token: &str) -> String {
        format!("[[tenants.tokens]]\nname = {name:?}\nscope = {scope:?}\ntoken = {token:?}\n")
    }

    #[test]
    fn tenants_have_tokens_with_names_and_scopes_besides_those_without() {
        let (ci, phone) = (named("ci", "full", &"c".repeat(20)), named("phone", "read-only", &"p".repeat(20)));
        let old = format!("token = {:?}\nread_only_token = {:?}\n", "t".repeat(20), "r".repeat(20));
        let list =
            |names: &[(&str, Scope)]| Ok(names.iter().map(|(name, scope)| ((*name).to_owned(), *scope)).collect());
        let before = [("token", Scope::Full), ("read_only_token", Scope::ReadOnly)];
        let more = [("phone", Scope::ReadOnly), ("ci", Scope::Full)];
        assert_eq!(tokens(&old), list(&before));
        assert_eq!(tokens(&format!("{old}{phone}{ci}")), list(&[before, more].concat()));
        assert_eq!(tokens(&format!("{phone}{ci}")), list(&more), "the others are not needed");
        let names = [("ops \"1\"", Scope::Full), ("tv", Scope::ReadOnly), ("cafe\u{301} \u{200d}", Scope::Full)];
        let drawn: String = names.iter().map(|(name, scope)| new_token("a", name, *scope).unwrap()).collect();
        assert_eq!(tokens(&drawn), list(&names), "{drawn}");
        for (name, why) in [("", "has no name"), ("token", "reserved"), ("read_only_token", "reserved")] {
            let said = new_token("a", name, Scope::Full).expect_err(name).to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_token_is_said() {
        let (good, long) = (named("ci", "full", &"c".repeat(20)), "x".repeat(20));
        let hash = hex_hash(&long);
        for (text, why) in [
            (named("tv", "read-only", &long), "needs a token or token_sha256, or a token with a name"),
            (good.clone() + &named("ci", "read-only", &long), "is named \"ci\", which is taken"),
            (good.clone() + &named("token", "read-only", &long), "is named \"token\", which is reserved"),
            (good.clone() + &named(" ", "full", &long), "has no name"),
            (good.clone() + &named("b", "full", &"c".repeat(20)), "is used twice"),
            (good.clone() + &named("b", "full", "short"), "the token \"b\" of tenant \"a\" is shorter than 20"),
            (good.clone() + &named("b", "everything", &long), "everything"),
            (good.clone() + &named("b", "full", DEV_USERS[0].token), "published development token"),
            (good.clone() + "[[tenants.tokens]]\nname = \"b\"\nscope = \"full\"\n", "needs a token or token_sha256"),
            (good.clone() + "[[tenants.tokens]]\nname = \"b\"\n", "missing field `scope`"),
            (good.clone() + &named("b", "full", &long) + &format!("token_sha256 = {hash:?}\n"), "has both"),
            (
                good + &named("b", "full", &long).replace("token =", "token_sha256 ="),
                "the SHA-256 of the token \"b\" of tenant \"a\" is not 64 hexadecimal digits",
            ),
        ] {
            let said = tokens(&text).expect_err(&text);
            assert!(said.contains(why), "{why:?} in {said}");
            assert!(!said.contains(&long) || said.contains("TOML"), "no token is in {said}");
        }
    }
}
