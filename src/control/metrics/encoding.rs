//! How an answer is compressed, as its reader asks for it (RFC 9110 section 12.5.3), piece by piece.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;

use crate::base::limits::CHUNK_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Identity,
    Deflate,
    Gzip,
    Zstd,
}

impl Encoding {
    /// The one that the reader likes best; of several, the one that costs least.
    pub(super) fn asked(headers: &HeaderMap) -> Self {
        let asked = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let elements: Vec<_> = asked.flat_map(|value| value.split(',')).map(quality).collect();
        [Self::Deflate, Self::Gzip, Self::Zstd]
            .into_iter()
            .filter_map(|encoding| {
                let of = |name: &str| elements.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
                let named = encoding.name().and_then(of).or_else(|| of("*"));
                named.map(|(_, quality)| (*quality, encoding)).filter(|(quality, _)| *quality > 0)
            })
            // The last of equals.
            .max_by_key(|(quality, _)| *quality)
            .map_or(Self::Identity, |(_, encoding)| encoding)
    }

    /// `Content-Encoding`.
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::Deflate => Some("deflate"),
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}

/// An element of Accept-Encoding, and its quality in thousandths; what can't be read is none.
fn quality(element: &str) -> (&str, u16) {
    let (name, parameters) = element.split_once(';').unwrap_or((element, ""));
    let weight = parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let thousandths = match weight {
        None => 1_000,
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 1000")]
        Some(weight) => weight.parse::<f32>().map_or(0, |weight| (weight.clamp(0.0, 1.0) * 1_000.0) as u16),
    };
    (name.trim(), thousandths)
}

/// Compresses text into pieces. The fastest level of each: pages repeat their labels, so even that makes a twentieth.
pub(super) enum Encoder {
    Identity(Vec<u8>),
    Deflate(ZlibEncoder<Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    pub(super) fn new(encoding: Encoding) -> io::Result<Self> {
        Ok(match encoding {
            Encoding::Identity => Self::Identity(Vec::new()),
            Encoding::Deflate => Self::Deflate(ZlibEncoder::new(Vec::new(), Compression::fast())),
            Encoding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
            Encoding::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 1)?),
        })
    }

    /// Takes text; gives a piece where enough has come together.
    pub(super) fn write(&mut self, text: &[u8]) -> io::Result<Option<Bytes>> {
        let written = match self {
            Self::Identity(out) => {
                out.extend_from_slice(text);
                out
            }
            Self::Deflate(encoder) => {
                encoder.write_all(text)?;
                encoder.get_mut()
            }
            Self::Gzip(encoder) => {
                encoder.write_all(text)?;
                encoder.get_mut()
            }
            Self::Zstd(encoder) => {
                encoder.write_all(text)?;
                encoder.get_mut()
            }
        };
        Ok((written.len() >= CHUNK_BYTES).then(|| std::mem::take(written).into()))
    }

    /// The rest.
    pub(super) fn finish(self) -> io::Result<Bytes> {
        Ok(Bytes::from(match self {
            Self::Identity(out) => out,
            Self::Deflate(encoder) => encoder.finish()?,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_encoding_is_the_one_that_the_reader_likes_best() {
        for (accept, wanted) in [
            (None, Encoding::Identity),
            (Some(""), Encoding::Identity),
            (Some("gzip"), Encoding::Gzip),
            (Some("GZIP;q=0.5, deflate"), Encoding::Deflate),
            (Some("gzip, deflate, br, zstd"), Encoding::Zstd),
            (Some("br"), Encoding::Identity),
            (Some("gzip;q=0"), Encoding::Identity),
            (Some("*;q=0, gzip;q=0.001"), Encoding::Gzip),
            (Some("zstd;q=0, *"), Encoding::Gzip),
            (Some("gzip;q=x"), Encoding::Identity),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT_ENCODING, accept.parse().unwrap());
            }
            assert_eq!(Encoding::asked(&headers), wanted, "{accept:?}");
        }
    }

    #[test]
    fn what_is_compressed_in_pieces_is_the_same_again() {
        let line =
            |number: u32| format!("name{{label=\"{}\"}} {number}\n", number.wrapping_mul(2_654_435_761));
        let text: String = (0..40_000).map(line).collect();
        for encoding in [Encoding::Identity, Encoding::Deflate, Encoding::Gzip, Encoding::Zstd] {
            let mut encoder = Encoder::new(encoding).unwrap();
            let mut pieces = 0;
            let mut all = Vec::new();
            for part in text.as_bytes().chunks(10_000) {
                let piece = encoder.write(part).unwrap();
                pieces += usize::from(piece.is_some());
                all.extend(piece.unwrap_or_default());
            }
            assert!(pieces > 1, "{encoding:?} gives all at the end");
            all.extend(encoder.finish().unwrap());
            let mut again = String::new();
            match encoding {
                Encoding::Identity => again = String::from_utf8(all).unwrap(),
                Encoding::Deflate => drop(flate2::read::ZlibDecoder::new(&*all).read_to_string(&mut again)),
                Encoding::Gzip => drop(flate2::read::GzDecoder::new(&*all).read_to_string(&mut again)),
                Encoding::Zstd => again = String::from_utf8(zstd::decode_all(&*all).unwrap()).unwrap(),
            }
            assert!(again == text, "{encoding:?}");
        }
    }
}
