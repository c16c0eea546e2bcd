//! Fresh tenants: an `.env` block for their programs, and a block for the configuration file, which can be appended to it.

use super::fresh_token;
use super::settings::hex_hash;
use crate::config::{ConfigError, Settings};
use posthaste_wire::signature::SigningKey;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where a server listens that is not configured otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The two blocks of a tenant. The tokens themselves are in the first, and in no other place.
///
/// Not `Debug`: it holds secrets.
pub struct NewTenant {
    /// Variables for the programs of the tenant.
    pub env: String,
    /// Its settings in the configuration file.
    pub toml: String,
}

/// Why a tenant was not added to a file, which is as it was.
#[derive(Debug, thiserror::Error)]
pub enum AddTenantError {
    /// The file is not a configuration, or would not be one with the tenant.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is such a tenant.
    #[error("{path} already has a tenant named {name:?}; choose another name, or remove that tenant first")]
    Exists {
        /// The file.
        path: PathBuf,
        /// The tenant.
        name: String,
    },
    /// The file could not be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Draws the tokens and keys of a tenant, whose programs reach the server at this URL.
pub fn new_tenant(name: &str, url: Option<&str>) -> NewTenant {
    let key = || SigningKey::from_random(crate::clock::random());
    let (full, read_only, current, next) = (fresh_token(name), fresh_token(name), key(), key());
    let (current, next) = (current.expose(), next.expose());
    let url = url.unwrap_or(DEFAULT_URL);
    let env = format!(
        "# Variables for the programs of tenant {name:?}. The tokens are shown only now.\n\
         QSTASH_URL={url}\n\
         QSTASH_TOKEN={full}\n\
         QSTASH_CURRENT_SIGNING_KEY={current}\n\
         QSTASH_NEXT_SIGNING_KEY={next}\n\
         # read-only token: {read_only}\n"
    );
    let toml = format!(
        "[[tenants]]\n\
         name = {}\n\
         token_sha256 = \"{}\"\n\
         read_only_token_sha256 = \"{}\"\n\
         current_signing_key = \"{current}\"\n\
         next_signing_key = \"{next}\"\n",
        toml::Value::from(name),
        hex_hash(&full),
        hex_hash(&read_only),
    );
    NewTenant { env, toml }
}

/// Draws a tenant and appends its block to a configuration file, which is made, for its owner alone, if it is missing.
/// Without a URL, that of the file is used.
pub fn add_tenant(path: &Path, name: &str, url: Option<&str>) -> Result<NewTenant, AddTenantError> {
    let write = |source| AddTenantError::Write { path: path.to_owned(), source };
    let before = match path.try_exists() {
        Ok(true) => std::fs::read_to_string(path).map_err(write)?,
        Ok(false) => String::new(),
        Err(error) => return Err(write(error)),
    };
    let settings = Settings::parse(path, &before)?;
    let is_taken = settings.tenants.iter().any(|tenant| tenant.name == name);
    if is_taken || (settings.token.is_some() && name == "default") {
        return Err(AddTenantError::Exists { path: path.to_owned(), name: name.to_owned() });
    }
    let tenant = new_tenant(name, url.or(settings.public_url.as_deref()));
    let end = match before.as_str() {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let added = format!("{end}{}", tenant.toml);
    // A list `tenants = [...]` cannot be continued by a block.
    Settings::parse(path, &format!("{before}{added}"))?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(write)?;
    file.write_all(added.as_bytes()).and_then(|()| file.sync_all()).map_err(write)?;
    Ok(tenant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The value of a variable.
    fn variable<'a>(env: &'a str, name: &str) -> &'a str {
        env.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).expect(name)
    }

    #[test]
    fn a_new_tenant_is_two_blocks_that_belong_together() {
        let NewTenant { env, toml } = new_tenant("acme \"1\"", None);
        let (token, read_only) =
            (variable(&env, "QSTASH_TOKEN"), env.rsplit_once("# read-only token: ").unwrap().1.trim());
        let (current, next) = (variable(&env, "QSTASH_CURRENT_SIGNING_KEY"), variable(&env, "QSTASH_NEXT_SIGNING_KEY"));
        assert_eq!(
            env,
            format!(
                "# Variables for the programs of tenant \"acme \\\"1\\\"\". The tokens are shown only now.\n\
                 QSTASH_URL=http://127.0.0.1:8080\nQSTASH_TOKEN={token}\nQSTASH_CURRENT_SIGNING_KEY={current}\n\
                 QSTASH_NEXT_SIGNING_KEY={next}\n# read-only token: {read_only}\n"
            )
        );
        let settings: Settings = toml::from_str(&toml).unwrap();
        let [tenant] = settings.tenants.as_slice() else { panic!("{toml}") };
        assert_eq!(tenant.name, "acme \"1\"");
        assert_eq!(tenant.token_sha256, Some(hex_hash(token)));
        assert_eq!(tenant.read_only_token_sha256, Some(hex_hash(read_only)));
        assert_eq!(tenant.current_signing_key.as_deref(), Some(current));
        assert_eq!(tenant.next_signing_key.as_deref(), Some(next));
        assert!(!toml.contains(token) && !toml.contains(read_only));
    }

    #[test]
    fn a_tenant_is_appended_to_a_file_that_stays_as_it_was_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("posthaste.toml");
        let first = add_tenant(&path, "a", None).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first.toml);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = add_tenant(&path, "b", Some("https://b.example")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n{}", first.toml, second.toml));
        assert_eq!(variable(&second.env, "QSTASH_URL"), "https://b.example");
        for before in ["public_url = \"https://a.example\"", "public_url = \"https://a.example\"\n"] {
            std::fs::write(&path, before).unwrap();
            let tenant = add_tenant(&path, "a", None).unwrap();
            assert_eq!(variable(&tenant.env, "QSTASH_URL"), "https://a.example", "the file says so");
            let expected = format!("{}\n\n{}", before.trim_end(), tenant.toml);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn a_file_that_cannot_take_the_tenant_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("posthaste.toml");
        let exists = |name: &str| {
            let help = "choose another name, or remove that tenant first";
            format!("{} already has a tenant named {name:?}; {help}", path.display())
        };
        let invalid = |problem: &str| format!("{} is not a valid configuration: {problem}", path.display());
        for (name, file, expected) in [
            ("a", "[[tenants]]\nname = \"a\"\n", exists("a")),
            ("default", "token = \"secret\"\n", exists("default")),
            (
                "a",
                "lisen = \"x\"\n",
                invalid("line 1: unknown key lisen; did you mean listen?\n  |\n1 | lisen = …\n  | ^^^^^"),
            ),
            (
                "a",
                "tenants = [{ name = \"b\" }]\n",
                invalid(
                    "line 3: tenants comes twice: write each as [[tenants]]\n  |\n3 | [[tenants]]\n  | ^^^^^^^^^^^",
                ),
            ),
        ] {
            std::fs::write(&path, file).unwrap();
            let Err(error) = add_tenant(&path, name, None) else { panic!("{file}") };
            assert_eq!(error.to_string(), expected);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), file);
        }
        let Err(error) = add_tenant(dir.path(), "a", None) else { panic!("a directory") };
        assert_eq!(error.to_string(), format!("cannot write {}", dir.path().display()));
    }
}
