//! Encrypts secrets at rest with a key that is not in the data directory: AES-256-GCM, bound to the tenant and the place.
//!
//! A sealed text is `sealed:1:KEY:DATA`: the version of the format, the fingerprint of the key that opens it, and nonce,
//! ciphertext and tag in base64. A text without this beginning is not encrypted. `keys.rs` seals and opens signing keys,
//! `credentials.rs` the credentials that are sent on.
//!
//! Signing keys have random nonces. A credential is sealed with every message that has it, and random nonces of 96 bits are
//! safe for 2^32 texts per key only (NIST SP 800-38D), which a busy server reaches within weeks. So its nonce is a keyed hash of
//! the tenant, the place and the text: a text has one nonce however often it is sealed, and different texts have different ones.
//! Equal credentials of a tenant are equal when sealed, too, so that what is compared still compares.

use crate::clock::random;
use posthaste_wire::encoding::{base64, from_base64, hex};
use posthaste_wire::id::TenantId;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use sha2::{Digest, Sha256};
use std::fmt;

/// All versions of the format begin with this.
const MARK: &str = "sealed:";
const PREFIX: &str = "sealed:1:";
const KEY_BYTES: usize = 32;
/// Older keys that still open what they have sealed, and the one that seals.
const KEYS_MAX: usize = 8;

/// The keys of the operator: the first seals, all open. Never printed.
#[derive(Clone)]
pub struct KeyRing {
    keys: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    /// Names the key without giving it away.
    fingerprint: String,
    cipher: LessSafeKey,
    /// Makes the nonces of credentials.
    nonces: hmac::Key,
    /// Makes what is stored to find duplicates.
    duplicates: hmac::Key,
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyRing(…)")
    }
}

/// Why the configured keys cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeys {
    /// There is none.
    #[error("there is no key; make one with `openssl rand -hex 32`")]
    None,
    /// Not a key.
    #[error("key {0} is not 32 bytes in hexadecimal or base64; make one with `openssl rand -hex 32`")]
    Malformed(usize),
    /// More than the server looks at.
    #[error("there are more than 8 keys; remove old keys that nothing is encrypted with")]
    TooMany,
}

/// Why a sealed text cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotOpen {
    /// It was sealed with a key that is not there.
    #[error("it is encrypted with key {0}, which is not in encryption_key or encryption_key_file")]
    UnknownKey(String),
    /// Another version of the server has encrypted it.
    #[error("it is encrypted in a format that this version of the server does not know")]
    UnknownFormat,
    /// The key is right and the text is not what was sealed.
    #[error("it was changed since it was encrypted, or belongs to another tenant")]
    Forged,
}

impl KeyRing {
    /// Reads keys that are separated by commas or white space; the first seals. Lines that begin with `#` are skipped.
    pub fn parse(text: &str) -> Result<KeyRing, InvalidKeys> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let words = lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|word| !word.trim().is_empty());
        let key = |(index, word): (usize, &str)| {
            let bytes = key_bytes(word.trim()).ok_or(InvalidKeys::Malformed(index + 1))?;
            let cipher = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| InvalidKeys::Malformed(index + 1))?;
            let digest = Sha256::new().chain_update("posthaste encryption key").chain_update(bytes).finalize();
            let derived = |purpose: &str| {
                let derived = Sha256::new().chain_update(purpose).chain_update(bytes).finalize();
                hmac::Key::new(hmac::HMAC_SHA256, &derived)
            };
            let (nonces, duplicates) = (derived("posthaste nonce key"), derived("posthaste duplicate key"));
            Ok(Key { fingerprint: hex(&digest[..8]), cipher: LessSafeKey::new(cipher), nonces, duplicates })
        };
        let keys = words.enumerate().map(key).collect::<Result<Vec<Key>, InvalidKeys>>()?;
        match keys.len() {
            0 => Err(InvalidKeys::None),
            1..=KEYS_MAX => Ok(KeyRing { keys }),
            _ => Err(InvalidKeys::TooMany),
        }
    }

    /// Encrypts with the first key.
    pub(crate) fn seal(&self, place: Place, text: &str) -> Option<String> {
        self.keys.first()?.seal(place, text, random::<NONCE_LEN>())
    }

    /// The same for a text that is sealed often: always the same for the same text at the same place.
    pub(crate) fn seal_alike(&self, place: Place, text: &str) -> Option<String> {
        let key = self.keys.first()?;
        let mut hash = hmac::Context::with_key(&key.nonces);
        hash.update(place.to_string().as_bytes());
        hash.update(b"\0");
        hash.update(text.as_bytes());
        let nonce = hash.sign().as_ref().first_chunk().copied()?;
        key.seal(place, text, nonce)
    }

    /// A hash of what may contain a secret, which nobody can compute from a guess without the first key.
    pub(crate) fn hash(&self, tenant: TenantId, hash: &[u8; 32]) -> Option<[u8; 32]> {
        let mut keyed = hmac::Context::with_key(&self.keys.first()?.duplicates);
        keyed.update(&tenant.0.to_be_bytes());
        keyed.update(hash);
        keyed.sign().as_ref().try_into().ok()
    }

    /// Whether a text is encrypted, and with the key that seals now.
    pub(crate) fn is_current(&self, text: &str) -> bool {
        let first = self.keys.first().map(|key| key.fingerprint.as_str());
        sealed_parts(text).is_some_and(|(fingerprint, _)| Some(fingerprint) == first)
    }
}

impl Key {
    fn seal(&self, place: Place, text: &str, nonce: [u8; NONCE_LEN]) -> Option<String> {
        let mut data = text.as_bytes().to_vec();
        let sealed = self.cipher.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(place.to_string().as_bytes()),
            &mut data,
        );
        sealed.ok()?;
        Some(format!("{PREFIX}{}:{}", self.fingerprint, base64(&[&nonce[..], &data].concat())))
    }
}

/// Decrypts a text, or takes it as it is if it is not encrypted.
pub(crate) fn open(keys: Option<&KeyRing>, place: Place, text: &str) -> Result<String, CannotOpen> {
    match text.starts_with(MARK) {
        true => open_sealed(keys, place, text),
        false => Ok(text.to_owned()),
    }
}

/// Decrypts a text that must be encrypted.
pub(crate) fn open_sealed(keys: Option<&KeyRing>, place: Place, text: &str) -> Result<String, CannotOpen> {
    let (fingerprint, data) = sealed_parts(text).ok_or(CannotOpen::UnknownFormat)?;
    let key = keys.and_then(|ring| ring.keys.iter().find(|key| key.fingerprint == fingerprint));
    let key = key.ok_or_else(|| CannotOpen::UnknownKey(fingerprint.to_owned()))?;
    let bytes = from_base64(data).filter(|bytes| bytes.len() > NONCE_LEN).ok_or(CannotOpen::Forged)?;
    let (nonce, data) = bytes.split_at(NONCE_LEN);
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| CannotOpen::Forged)?;
    let mut data = data.to_vec();
    let opened = key.cipher.open_in_place(nonce, Aad::from(place.to_string().as_bytes()), &mut data);
    let opened = opened.map_err(|_| CannotOpen::Forged)?;
    String::from_utf8(opened.to_vec()).map_err(|_| CannotOpen::Forged)
}

/// Where a secret is kept: one that is moved to another tenant or place cannot be opened there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tenant: TenantId,
    pub(crate) field: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "posthaste/1/tenant/{}/{}", self.tenant.0, self.field)
    }
}

fn sealed_parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(PREFIX)?.split_once(':')
}

fn key_bytes(text: &str) -> Option<[u8; KEY_BYTES]> {
    let from_hex = || {
        let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| (0..text.len()).step_by(2).map(pair).collect::<Option<Vec<u8>>>()).flatten()
    };
    from_hex().or_else(|| from_base64(text))?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const NEW: &str = "q83vASNFZ4mrze8BI0VniavN7wEjRWeJq83vASNFZ4k=";

    fn place(tenant: u32, field: &'static str) -> Place {
        Place { tenant: TenantId(tenant), field }
    }

    #[test]
    fn a_sealed_text_opens_with_its_key_at_its_place_only() {
        let ring = KeyRing::parse(OLD).unwrap();
        let sealed = ring.seal(place(7, "current"), "sig_secret").unwrap();
        assert!(sealed.starts_with(PREFIX) && !sealed.contains("secret"), "{sealed}");
        assert_ne!(ring.seal(place(7, "current"), "sig_secret").unwrap(), sealed, "a nonce each");
        assert_eq!(open(Some(&ring), place(7, "current"), &sealed).as_deref(), Ok("sig_secret"));
        assert_eq!(open(Some(&ring), place(8, "current"), &sealed), Err(CannotOpen::Forged));
        assert_eq!(open(Some(&ring), place(7, "next"), &sealed), Err(CannotOpen::Forged));
        let other = KeyRing::parse(NEW).unwrap();
        for keys in [None, Some(&other)] {
            assert!(matches!(open(keys, place(7, "current"), &sealed), Err(CannotOpen::UnknownKey(_))));
        }
        for at in PREFIX.len()..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(open(Some(&ring), place(7, "current"), &changed).is_err() || at + 2 >= sealed.len(), "{at}");
        }
        assert_eq!(open(Some(&ring), place(7, "current"), "sealed:2:x:y"), Err(CannotOpen::UnknownFormat));
        assert_eq!(open(None, place(7, "current"), "sig_plain").as_deref(), Ok("sig_plain"));
    }

    #[test]
    fn what_is_sealed_often_is_alike_for_one_text_of_one_place_only() {
        let ring = KeyRing::parse(&format!("{OLD},{NEW}")).unwrap();
        let sealed = ring.seal_alike(place(7, "a"), "Bearer one").unwrap();
        assert_eq!(ring.seal_alike(place(7, "a"), "Bearer one").unwrap(), sealed);
        let nonce = |sealed: &str| from_base64(sealed_parts(sealed).unwrap().1).unwrap()[..NONCE_LEN].to_vec();
        let newer = KeyRing::parse(&format!("{NEW},{OLD}")).unwrap();
        for other in [
            ring.seal_alike(place(7, "a"), "Bearer two"),
            ring.seal_alike(place(8, "a"), "Bearer one"),
            ring.seal_alike(place(7, "b"), "Bearer one"),
            newer.seal_alike(place(7, "a"), "Bearer one"),
        ] {
            assert_ne!(nonce(&other.unwrap()), nonce(&sealed), "no nonce is used for two texts");
        }
        assert_eq!(open_sealed(Some(&newer), place(7, "a"), &sealed).as_deref(), Ok("Bearer one"));
        assert_eq!(open_sealed(Some(&ring), place(8, "a"), &sealed), Err(CannotOpen::Forged));
        assert_eq!(open_sealed(Some(&ring), place(7, "a"), "Bearer one"), Err(CannotOpen::UnknownFormat));
    }

    #[test]
    fn a_hash_depends_on_the_first_key_the_tenant_and_all_of_the_text() {
        let ring = |text: &str| KeyRing::parse(text).unwrap();
        let both = ring(&format!("{OLD},{NEW}"));
        let hash = both.hash(TenantId(7), &[1; 32]).unwrap();
        assert_eq!(ring(OLD).hash(TenantId(7), &[1; 32]), Some(hash), "older keys do not matter");
        let others = [
            ring(NEW).hash(TenantId(7), &[1; 32]),
            both.hash(TenantId(8), &[1; 32]),
            both.hash(TenantId(7), &[2; 32]),
            Some([1; 32]),
        ];
        assert!(others.iter().all(|other| *other != Some(hash)));
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let before = KeyRing::parse(OLD).unwrap().seal(place(1, "next"), "sig").unwrap();
        let both = KeyRing::parse(&format!("# since June\n{NEW}\n\n{OLD}\n")).unwrap();
        assert_eq!(open(Some(&both), place(1, "next"), &before).as_deref(), Ok("sig"));
        assert!(!both.is_current(&before) && !both.is_current("sig"));
        let after = both.seal(place(1, "next"), "sig").unwrap();
        assert!(both.is_current(&after) && KeyRing::parse(NEW).unwrap().is_current(&after));
        assert_eq!(KeyRing::parse(&format!("{NEW},{OLD}")).unwrap().keys.len(), 2);
        assert_eq!(format!("{both:?}"), "KeyRing(…)");
    }

    #[test]
    fn only_32_bytes_are_a_key() {
        assert_eq!(KeyRing::parse(" # nothing\n").err(), Some(InvalidKeys::None));
        for text in ["secret", &OLD[2..], &format!("{OLD}00"), &OLD.replace('0', "g"), "AAAA"] {
            assert_eq!(KeyRing::parse(text).err(), Some(InvalidKeys::Malformed(1)), "{text}");
        }
        assert_eq!(KeyRing::parse(&format!("{OLD} x")).err(), Some(InvalidKeys::Malformed(2)));
        assert_eq!(KeyRing::parse(&format!("{OLD} ").repeat(KEYS_MAX + 1)).err(), Some(InvalidKeys::TooMany));
    }
}
