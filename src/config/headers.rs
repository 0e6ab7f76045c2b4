//! `XDS_HEADER_*` and `CA_HEADER_*`: extra headers for the control plane.

use hyper::header::{HeaderName, HeaderValue};

use super::error::ConfigError;
use super::reader::{Origin, Reader};

/// The headers of one prefix, names in lower case. Values aren't shown: they may be secrets.
pub fn read(reader: &mut Reader<'_>, prefix: &'static str) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    let found: Vec<_> = reader.prefixed(prefix).collect();
    for (key, value) in found {
        let name = format!("{prefix}{key}");
        reader.note(&name, format_args!("(a value of {} bytes)", value.len()), Origin::Environment);
        match (HeaderName::from_bytes(key.as_bytes()), value.parse::<HeaderValue>()) {
            (Err(_), _) => reader.errors.push(ConfigError::HeaderKey { name, key: key.to_owned() }),
            (_, Ok(text)) if text.to_str().is_err() => reader.errors.push(ConfigError::HeaderValue { name }),
            (_, Err(_)) => reader.errors.push(ConfigError::HeaderValue { name }),
            (Ok(key), Ok(_)) => headers.push((key.as_str().to_owned(), value.to_owned())),
        }
    }
    headers
}
