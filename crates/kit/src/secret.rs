//! Text that is never shown.

use std::fmt;

/// A key or shared secret that is not empty. No output contains it, not even `Debug`.
#[derive(Clone)]
pub struct Secret(Box<str>);

/// The secret is empty and would protect nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is empty; set it, or anyone could send valid requests")]
pub struct EmptySecret;

impl Secret {
    /// Creates a secret. Surrounding white space, which environment files often add, is removed.
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
