//! Seals private texts before they reach a store: conversations, journals, memory, context snapshots.
//!
//! A sealed value is `format (1 byte) ‖ nonce (24) ‖ XChaCha20-Poly1305 ciphertext ‖ tag (16)`. The key comes from the
//! agent's secret key by HKDF-SHA256 (RFC 5869), so a copy of the table is worth nothing without it; the row's own key
//! is associated data, so a sealed value opens only where it was put. Row keys, times and counters stay clear: a store
//! sorts and compares by them. What is to be sealed is the caller's affair, and events have NIP-44.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use nostr::prelude::SecretKey;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::Key;

/// The format that this version writes, and the only one it reads.
const FORMAT: u8 = 1;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;

/// How much longer a sealed value is than its text, in bytes.
pub const SEAL_OVERHEAD_BYTES: usize = 1 + NONCE_BYTES + TAG_BYTES;

/// What the derived key is for; with another purpose or format it would be another key.
const PURPOSE: &[u8] = b"didactyl/store/seal/v1";

/// Why a value could not be sealed or opened.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SealError {
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes for a nonce")]
    NoRandomness,
    /// Longer than the cipher can take, which no store would hold either.
    #[error("the text is too long to be sealed")]
    TooLong,
    /// Not a sealed value: too short to be one.
    #[error("the stored value is {0} bytes long, too short to be a sealed one")]
    TooShort(usize),
    /// Written by another version of the agent.
    #[error(
        "the stored value has seal format {0}, this version reads format {FORMAT}: use the version that wrote it"
    )]
    UnknownFormat(u8),
    /// Sealed with another key, put into another row, or altered: the cipher cannot tell these apart.
    #[error(
        "the stored value does not open: it was sealed by another agent's key, for another row, or altered"
    )]
    Forged,
}

/// Seals and opens the values of one agent's rows.
pub struct Vault(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault(…)")
    }
}

impl Vault {
    /// The vault of the agent whose secret key this is.
    #[must_use]
    #[expect(clippy::expect_used, reason = "HKDF-SHA256 refuses only outputs above 255 blocks; this is one")]
    pub fn new(secret_key: &SecretKey) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, secret_key.as_secret_bytes())
            .expand(PURPOSE, key.as_mut())
            .expect("32 bytes are one block");
        Self(key)
    }

    /// Seals `text` for the row at `key`.
    ///
    /// # Errors
    /// [`SealError::NoRandomness`], [`SealError::TooLong`].
    pub fn seal(&self, key: &Key, text: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
        let payload = Payload { msg: text, aad: &associated_data(key) };
        let sealed = self.cipher().encrypt(&XNonce::from(nonce), payload).map_err(|_| SealError::TooLong)?;
        Ok([&[FORMAT], nonce.as_slice(), &sealed].concat())
    }

    /// Opens what [`Vault::seal`] made for the row at `key`.
    ///
    /// # Errors
    /// [`SealError::TooShort`], [`SealError::UnknownFormat`], [`SealError::Forged`].
    pub fn open(&self, key: &Key, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        // The format first: another one may well be shorter.
        match sealed.first() {
            Some(&FORMAT) if sealed.len() >= SEAL_OVERHEAD_BYTES => {}
            Some(&FORMAT) | None => return Err(SealError::TooShort(sealed.len())),
            Some(&other) => return Err(SealError::UnknownFormat(other)),
        }
        let Some((nonce, msg)) = sealed.get(1..).and_then(<[u8]>::split_first_chunk::<NONCE_BYTES>) else {
            return Err(SealError::TooShort(sealed.len()));
        };
        let payload = Payload { msg, aad: &associated_data(key) };
        self.cipher().decrypt(&XNonce::from(*nonce), payload).map_err(|_| SealError::Forged)
    }

    /// The cipher wipes its copy of the key when it is dropped.
    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }
}

/// The format and the row's key. The partition's length goes first: `ab`/`c` and `a`/`bc` are different rows.
fn associated_data(key: &Key) -> Vec<u8> {
    let partition_bytes = key.partition.len() as u64;
    [&[FORMAT], partition_bytes.to_be_bytes().as_slice(), key.partition.as_bytes(), key.sort.as_bytes()]
        .concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vault(byte: u8) -> Vault {
        Vault::new(&SecretKey::from_slice(&[byte; 32]).unwrap())
    }

    #[test]
    fn another_agent_opens_nothing() {
        let key = Key::new("dm", "1");
        let sealed = vault(1).seal(&key, b"hello").unwrap();
        assert_eq!(vault(2).open(&key, &sealed), Err(SealError::Forged));
    }

    #[test]
    fn a_value_moved_to_another_row_does_not_open() {
        let vault = vault(1);
        let sealed = vault.seal(&Key::new("ab", "c"), b"hello").unwrap();
        for (partition, sort) in [("ab", "d"), ("a", "bc"), ("abc", ""), ("", "abc"), ("c", "ab")] {
            assert_eq!(vault.open(&Key::new(partition, sort), &sealed), Err(SealError::Forged));
        }
    }

    #[test]
    fn other_formats_and_fragments_are_named() {
        let vault = vault(1);
        let key = Key::new("dm", "1");
        let mut sealed = vault.seal(&key, b"").unwrap();
        assert_eq!(sealed.len(), SEAL_OVERHEAD_BYTES);
        assert_eq!(vault.open(&key, &sealed[..40]), Err(SealError::TooShort(40)));
        assert_eq!(vault.open(&key, b""), Err(SealError::TooShort(0)));
        sealed[0] = 2;
        assert_eq!(vault.open(&key, &sealed), Err(SealError::UnknownFormat(2)));
        assert_eq!(vault.open(&key, &[2]), Err(SealError::UnknownFormat(2)));
    }

    #[test]
    fn the_same_text_is_sealed_differently_each_time() {
        let key = Key::new("dm", "1");
        assert_ne!(vault(1).seal(&key, b"hello").unwrap(), vault(1).seal(&key, b"hello").unwrap());
    }

    #[test]
    fn the_key_shows_in_no_debug_output() {
        assert_eq!(format!("{:?}", vault(1)), "Vault(…)");
    }

    /// Rows outlive versions of the agent: if this fails, the format byte must change.
    #[test]
    fn a_value_of_format_1_opens_for_ever() {
        let sealed = b"\x01\x42\x28\xbc\xfd\x55\x51\xc6\x5b\x81\x14\x81\x05\x3a\xac\x19\x6b\xf6\xcc\xc8\xda\xea\x50\x13\x6d\x68\xb4\x9f\
                       \x4d\x3e\x30\x7e\xf2\x75\x74\x1d\xf2\xc7\xa4\x39\xdc\x2f\x02\xac\x62\x3c\x94\x72\x62\xcd\xbc\xc6\x3c\xe1\x4b\xce";
        assert_eq!(vault(7).open(&Key::new("dm:peer", "0001"), sealed), Ok(b"sealed long ago".to_vec()));
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens_again(text: Vec<u8>, partition: String, sort: String) {
            let key = Key { partition, sort };
            let sealed = vault(1).seal(&key, &text).unwrap();
            prop_assert_eq!(sealed.len(), text.len() + SEAL_OVERHEAD_BYTES);
            prop_assert_eq!(vault(1).open(&key, &sealed), Ok(text));
        }

        #[test]
        fn no_part_of_the_text_is_readable(text in prop::collection::vec(any::<u8>(), 8..200)) {
            let sealed = vault(1).seal(&Key::new("dm", "1"), &text).unwrap();
            prop_assert!(!text.windows(8).any(|part| sealed.windows(8).any(|seen| seen == part)));
        }

        #[test]
        fn one_flipped_bit_is_refused(text: Vec<u8>, at: prop::sample::Index, bit in 0..8_u32) {
            let key = Key::new("dm", "1");
            let mut sealed = vault(1).seal(&key, &text).unwrap();
            let at = at.index(sealed.len());
            sealed[at] ^= 1_u8 << bit;
            let expected = if at == 0 { SealError::UnknownFormat(sealed[0]) } else { SealError::Forged };
            prop_assert_eq!(vault(1).open(&key, &sealed), Err(expected));
        }
    }
}
