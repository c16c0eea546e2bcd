//! Text that is never shown.

use std::fmt;

/// A key or a shared secret. It has a value, is not empty, and shows itself nowhere, not even by `Debug`.
#[derive(Clone)]
pub struct Secret(Box<str>);

/// A secret that would protect nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is empty: set it, or the door would be open")]
pub struct EmptySecret;

impl Secret {
    /// Takes a secret as it is configured. White space around it, which environment files like to add, is no part of it.
    pub fn new(text: impl AsRef<str>) -> Result<Secret, EmptySecret> {
        match text.as_ref().trim() {
            "" => Err(EmptySecret),
            text => Ok(Secret(text.into())),
        }
    }

    /// The secret itself.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_a_value_and_never_shows_it() {
        assert_eq!(Secret::new(" \n").unwrap_err(), EmptySecret);
        let secret = Secret::new("sig_abc\n").unwrap();
        assert_eq!(secret.expose(), "sig_abc");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }
}
