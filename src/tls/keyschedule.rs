//! The part of the TLS 1.3 key schedule that lives on after the handshake: from a traffic secret to key, iv and
//! the next secret (RFC 8446 sections 7.1 to 7.3). A `Direction` is plain data: written down and read back, it goes on.

use std::fmt;

use aws_lc_rs::hkdf;
use zeroize::Zeroize;

use crate::tls::aead::{AeadFailed, Key, Library, NONCE_BYTES};

/// The longest traffic secret, that of SHA-384.
pub const SECRET_BYTES: usize = 48;
const KEY_BYTES: usize = 32;

/// The two suites of the mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
}

/// All that protects one direction of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Direction {
    pub suite: Suite,
    /// The traffic secret; only the suite's hash length of it counts.
    pub secret: [u8; SECRET_BYTES],
    /// The number of the next record under this secret.
    pub sequence: u64,
}

/// A direction with its key made ready.
pub(in crate::tls) struct Armed {
    pub(in crate::tls) direction: Direction,
    pub(in crate::tls) key: Key,
    iv: [u8; NONCE_BYTES],
    library: Library,
}

/// Key and iv of one traffic secret.
pub(in crate::tls) struct Material {
    key: [u8; KEY_BYTES],
    key_bytes: usize,
    pub(in crate::tls) iv: [u8; NONCE_BYTES],
}

impl Suite {
    pub fn secret_bytes(self) -> usize {
        match self {
            Self::Aes128GcmSha256 => 32,
            Self::Aes256GcmSha384 => 48,
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Self::Aes128GcmSha256 => 16,
            Self::Aes256GcmSha384 => 32,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128GcmSha256 => hkdf::HKDF_SHA256,
            Self::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }
}

impl Direction {
    /// `None` where the secret hasn't the suite's hash length.
    pub fn new(suite: Suite, secret: &[u8], sequence: u64) -> Option<Self> {
        if secret.len() != suite.secret_bytes() {
            return None;
        }
        let mut direction = Self { suite, secret: [0; SECRET_BYTES], sequence };
        direction.secret.iter_mut().zip(secret).for_each(|(to, from)| *to = *from);
        Some(direction)
    }

    pub(in crate::tls) fn material(&self) -> Result<Material, AeadFailed> {
        let mut material =
            Material { key: [0; KEY_BYTES], key_bytes: self.suite.key_bytes(), iv: [0; NONCE_BYTES] };
        self.expand(b"key", material.key.get_mut(..material.key_bytes).ok_or(AeadFailed)?)?;
        self.expand(b"iv", &mut material.iv)?;
        Ok(material)
    }

    /// The direction after a KeyUpdate: the next secret, counted from zero.
    fn next(&self) -> Result<Self, AeadFailed> {
        let mut next = Self { suite: self.suite, secret: [0; SECRET_BYTES], sequence: 0 };
        let bytes = self.suite.secret_bytes();
        self.expand(b"traffic upd", next.secret.get_mut(..bytes).ok_or(AeadFailed)?)?;
        Ok(next)
    }

    /// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
    fn expand(&self, label: &[u8], out: &mut [u8]) -> Result<(), AeadFailed> {
        let secret = self.secret.get(..self.suite.secret_bytes()).ok_or(AeadFailed)?;
        let length = u16::try_from(out.len()).map_err(|_| AeadFailed)?;
        let label_length = [u8::try_from(label.len() + PREFIX.len()).map_err(|_| AeadFailed)?];
        let info = [&length.to_be_bytes()[..], &label_length, PREFIX, label, &[0]];
        hkdf::Prk::new_less_safe(self.suite.hash(), secret)
            .expand(&info, Length(out.len()))
            .and_then(|okm| okm.fill(out))
            .map_err(|_| AeadFailed)
    }
}

const PREFIX: &[u8] = b"tls13 ";

impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Direction({:?}, record {})", self.suite, self.sequence)
    }
}

impl Drop for Direction {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl Material {
    pub(in crate::tls) fn key(&self) -> &[u8] {
        self.key.get(..self.key_bytes).unwrap_or_default()
    }
}

impl Drop for Material {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl Armed {
    pub(in crate::tls) fn new(direction: Direction, library: Library) -> Result<Self, AeadFailed> {
        let material = direction.material()?;
        let key = Key::new(library, direction.suite, material.key())?;
        Ok(Self { direction, key, iv: material.iv, library })
    }

    /// The iv with the sequence number over its last eight bytes (RFC 8446 section 5.3).
    pub(in crate::tls) fn nonce(&self) -> [u8; NONCE_BYTES] {
        let mut nonce = self.iv;
        let sequence = self.direction.sequence.to_be_bytes();
        nonce.iter_mut().rev().zip(sequence.iter().rev()).for_each(|(to, from)| *to ^= from);
        nonce
    }

    /// Turns to the next key.
    pub(in crate::tls) fn turn(&mut self) -> Result<(), AeadFailed> {
        *self = Self::new(self.direction.next()?, self.library)?;
        Ok(())
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow, obvious way: HMAC by hand over the label as RFC 8446 section 7.1 writes it.
    fn expand_by_hand(hash: ring::hmac::Algorithm, secret: &[u8], label: &str, length: u16) -> Vec<u8> {
        let label = format!("tls13 {label}");
        let mut info = length.to_be_bytes().to_vec();
        info.push(label.len().try_into().unwrap());
        info.extend(label.bytes());
        info.push(0);
        let key = ring::hmac::Key::new(hash, secret);
        let (mut out, mut block, mut number) = (Vec::new(), Vec::new(), 1);
        while out.len() < usize::from(length) {
            block.extend(&info);
            block.push(number);
            block = ring::hmac::sign(&key, &block).as_ref().to_vec();
            out.extend(&block);
            number += 1;
        }
        out.truncate(length.into());
        out
    }

    #[test]
    fn keys_are_those_of_another_library_for_both_hashes() {
        for (suite, hash) in [
            (Suite::Aes128GcmSha256, ring::hmac::HMAC_SHA256),
            (Suite::Aes256GcmSha384, ring::hmac::HMAC_SHA384),
        ] {
            let secret: Vec<u8> = (0x5a..).take(suite.secret_bytes()).collect();
            let direction = Direction::new(suite, &secret, 9).unwrap();
            let material = direction.material().unwrap();
            let by_hand =
                |label, length: usize| expand_by_hand(hash, &secret, label, length.try_into().unwrap());
            assert_eq!(material.key(), by_hand("key", suite.key_bytes()));
            assert_eq!(material.iv[..], by_hand("iv", 12));
            let next = direction.next().unwrap();
            assert_eq!(next.secret[..suite.secret_bytes()], by_hand("traffic upd", suite.secret_bytes()));
            assert_eq!(next.sequence, 0);
        }
    }

    #[test]
    fn a_secret_of_another_length_is_refused_and_none_is_printed() {
        assert!(Direction::new(Suite::Aes128GcmSha256, &[1; 48], 0).is_none());
        assert!(Direction::new(Suite::Aes256GcmSha384, &[1; 32], 0).is_none());
        let direction = Direction::new(Suite::Aes128GcmSha256, &[171; 32], 4).unwrap();
        assert_eq!(format!("{direction:?}"), "Direction(Aes128GcmSha256, record 4)");
    }

    #[test]
    fn the_nonce_is_the_iv_with_the_sequence_over_its_tail() {
        let direction = Direction::new(Suite::Aes128GcmSha256, &[1; 32], 0x0102).unwrap();
        let armed = Armed::new(direction, Library::Ring).unwrap();
        let mut expected = armed.iv;
        expected[10] ^= 1;
        expected[11] ^= 2;
        assert_eq!(armed.nonce(), expected);
    }
}
