//! AES-GCM in place, by ring or by aws-lc-rs, whichever this machine runs faster. Which of the two is in use is
//! a value (`Library`) that travels with the credential; there is no global state and no dynamic dispatch.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use crate::base::limits::RECORD_PLAINTEXT_BYTES;
use crate::tls::keyschedule::Suite;

/// The authentication tag behind each record.
pub const TAG_BYTES: usize = 16;
/// The per-record nonce (RFC 8446 section 5.3).
pub const NONCE_BYTES: usize = 12;
/// Seals in one timed round, and rounds; together below a millisecond for each library on a CPU with AES.
const ROUND_RECORDS: u32 = 8;
const ROUNDS: u32 = 12;

/// Whose AES-GCM protects the records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Library {
    Ring,
    #[default]
    AwsLc,
}

/// What the operator wants: a measurement at start, or one library in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    #[default]
    Measure,
    Force(Library),
}

/// The outcome of the choice, printable for the log and the dump.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chosen {
    pub library: Library,
    /// Sealing 16 KiB records with AES-256-GCM on one core, 10^9 bytes a second.
    pub ring_gigabytes_per_second: f64,
    pub aws_lc_gigabytes_per_second: f64,
}

/// The library refused a key, a seal or an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("AES-GCM failed")]
pub struct AeadFailed;

impl Library {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::AwsLc => "aws-lc-rs",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (ring {:.2} GB/s, aws-lc-rs {:.2} GB/s)",
            self.library, self.ring_gigabytes_per_second, self.aws_lc_gigabytes_per_second
        )
    }
}

/// Times both libraries for about two milliseconds; call it once, before the shards start.
pub fn choose(choice: Choice) -> Chosen {
    let mut best = [f64::INFINITY; 2];
    // In turns, so that a frequency change in the middle meets both.
    for _ in 0..ROUNDS {
        for (library, best) in [Library::Ring, Library::AwsLc].into_iter().zip(&mut best) {
            *best = best.min(round_seconds(library));
        }
    }
    let bytes = f64::from(ROUND_RECORDS) * RECORD_PLAINTEXT_BYTES as f64;
    let [ring, aws_lc] = best.map(|seconds| bytes / seconds / 1e9);
    let faster = if ring >= aws_lc { Library::Ring } else { Library::AwsLc };
    let library = match choice {
        Choice::Measure => faster,
        Choice::Force(library) => library,
    };
    Chosen { library, ring_gigabytes_per_second: ring, aws_lc_gigabytes_per_second: aws_lc }
}

/// A library that can't make a key or seal is as slow as can be, so it is never chosen.
fn round_seconds(library: Library) -> f64 {
    let Ok(key) = Key::new(library, Suite::Aes256GcmSha384, &[7; 32]) else { return f64::INFINITY };
    let mut record = vec![0; RECORD_PLAINTEXT_BYTES];
    let start = Instant::now();
    for number in 0..ROUND_RECORDS {
        let mut nonce = [0; NONCE_BYTES];
        nonce.iter_mut().zip(number.to_be_bytes()).for_each(|(to, from)| *to = from);
        if key.seal(nonce, &[0; 5], black_box(&mut record)).is_err() {
            return f64::INFINITY;
        }
    }
    start.elapsed().as_secs_f64().max(1e-9)
}

/// One direction's AEAD key.
#[expect(
    clippy::large_enum_variant,
    reason = "the key schedule stays beside the sequence number, not behind a pointer"
)]
pub(in crate::tls) enum Key {
    Ring(ring::aead::LessSafeKey),
    AwsLc(aws_lc_rs::aead::LessSafeKey),
}

impl Key {
    /// `bytes` must have the suite's key length.
    pub(in crate::tls) fn new(library: Library, suite: Suite, bytes: &[u8]) -> Result<Self, AeadFailed> {
        match library {
            Library::Ring => {
                let algorithm = match suite {
                    Suite::Aes128GcmSha256 => &ring::aead::AES_128_GCM,
                    Suite::Aes256GcmSha384 => &ring::aead::AES_256_GCM,
                };
                let key = ring::aead::UnboundKey::new(algorithm, bytes).map_err(|_| AeadFailed)?;
                Ok(Self::Ring(ring::aead::LessSafeKey::new(key)))
            }
            Library::AwsLc => {
                let algorithm = match suite {
                    Suite::Aes128GcmSha256 => &aws_lc_rs::aead::AES_128_GCM,
                    Suite::Aes256GcmSha384 => &aws_lc_rs::aead::AES_256_GCM,
                };
                let key = aws_lc_rs::aead::UnboundKey::new(algorithm, bytes).map_err(|_| AeadFailed)?;
                Ok(Self::AwsLc(aws_lc_rs::aead::LessSafeKey::new(key)))
            }
        }
    }

    /// Encrypts `plain` in place and copies the tag out.
    pub(in crate::tls) fn seal(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8; 5],
        plain: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], AeadFailed> {
        let mut tag = [0; TAG_BYTES];
        match self {
            Self::Ring(key) => {
                let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
                let sealed = key
                    .seal_in_place_separate_tag(nonce, ring::aead::Aad::from(header), plain)
                    .map_err(|_| AeadFailed)?;
                copy_tag(&mut tag, sealed.as_ref());
            }
            Self::AwsLc(key) => {
                let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(nonce);
                let sealed = key
                    .seal_in_place_separate_tag(nonce, aws_lc_rs::aead::Aad::from(header), plain)
                    .map_err(|_| AeadFailed)?;
                copy_tag(&mut tag, sealed.as_ref());
            }
        }
        Ok(tag)
    }

    /// Decrypts `[ciphertext][tag]` in place; the plaintext stands at the front, its length is returned.
    pub(in crate::tls) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8; 5],
        sealed: &mut [u8],
    ) -> Result<usize, AeadFailed> {
        let plain = match self {
            Self::Ring(key) => {
                let nonce = ring::aead::Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, ring::aead::Aad::from(header), sealed).map_err(|_| AeadFailed)?
            }
            Self::AwsLc(key) => {
                let nonce = aws_lc_rs::aead::Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, aws_lc_rs::aead::Aad::from(header), sealed)
                    .map_err(|_| AeadFailed)?
            }
        };
        Ok(plain.len())
    }
}

fn copy_tag(tag: &mut [u8; TAG_BYTES], sealed: &[u8]) {
    tag.iter_mut().zip(sealed).for_each(|(to, from)| *to = *from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_libraries_agree_byte_for_byte() {
        for (suite, key) in [(Suite::Aes128GcmSha256, &[3; 16][..]), (Suite::Aes256GcmSha384, &[4; 32][..])] {
            let ring = Key::new(Library::Ring, suite, key).unwrap();
            let aws_lc = Key::new(Library::AwsLc, suite, key).unwrap();
            for length in [0, 1, 15, 16, 17, 1_000, RECORD_PLAINTEXT_BYTES] {
                let plain: Vec<u8> = (0..=250).cycle().take(length).collect();
                let (mut left, mut right) = (plain.clone(), plain.clone());
                let tag = ring.seal([9; 12], &[1; 5], &mut left).unwrap();
                assert_eq!(tag, aws_lc.seal([9; 12], &[1; 5], &mut right).unwrap());
                assert_eq!(left, right);
                left.extend(tag);
                right.extend(tag);
                assert_eq!(aws_lc.open([9; 12], &[1; 5], &mut left), Ok(length));
                assert_eq!(ring.open([9; 12], &[1; 5], &mut right), Ok(length));
                assert_eq!(left[..length], plain);
                assert_eq!(right[..length], plain);
            }
        }
    }

    #[test]
    fn a_wrong_key_length_is_refused_by_both() {
        for library in [Library::Ring, Library::AwsLc] {
            assert!(Key::new(library, Suite::Aes256GcmSha384, &[0; 16]).is_err());
        }
    }

    #[test]
    fn a_forced_choice_holds_and_a_measured_one_is_the_faster() {
        for library in [Library::Ring, Library::AwsLc] {
            assert_eq!(choose(Choice::Force(library)).library, library);
        }
        let chosen = choose(Choice::Measure);
        let ring_wins = chosen.ring_gigabytes_per_second >= chosen.aws_lc_gigabytes_per_second;
        assert_eq!(chosen.library == Library::Ring, ring_wins, "{chosen}");
        assert!(chosen.to_string().starts_with(chosen.library.name()));
    }
}
