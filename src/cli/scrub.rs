//! Takes secrets out of what is handed to others: private keys, tokens, and the values of headers that were configured
//! for the control plane. What is gathered has none but the last; the rest is a seat belt.

use serde_json::Value;

/// What stands instead.
const REMOVED: &str = "<removed>";

/// A text without private keys (PEM, also within JSON strings) and without JSON web tokens.
pub fn text(text: &str) -> String {
    without_tokens(&without_keys(text))
}

/// A dump's configuration without the values of its headers.
pub fn headers(dump: &mut Value) {
    for list in ["xdsHeaders", "caHeaders"] {
        let pairs =
            dump.get_mut("config").and_then(|config| config.get_mut(list)).and_then(Value::as_array_mut);
        for pair in pairs.into_iter().flatten() {
            if let Some(value) = pair.get_mut(1) {
                *value = REMOVED.into();
            }
        }
    }
}

/// A block ends at its end mark, or is cut off with everything after it.
fn without_keys(text: &str) -> String {
    const MARK: &str = "PRIVATE KEY-----";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, after) = rest.split_at(at);
        // The mark's own words stand before it: `-----BEGIN EC `.
        let begins = before.rfind("-----BEGIN").unwrap_or(before.len());
        out.push_str(before.get(..begins).unwrap_or(before));
        out.push_str(REMOVED);
        let body = after.get(MARK.len()..).unwrap_or_default();
        rest = body.find(MARK).and_then(|end| body.get(end + MARK.len()..)).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Three parts of base64url with dots between them, of which the first is a JSON object (RFC 7519).
fn without_tokens(text: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("eyJ") {
        let (before, after) = rest.split_at(at);
        let end = after.find(|letter| !is_part(letter)).unwrap_or(after.len());
        let (word, behind) = after.split_at(end);
        out.push_str(before);
        let is_token = word.split('.').count() >= 3 && word.len() > 40;
        out.push_str(if is_token { REMOVED } else { word });
        rest = behind;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_and_tokens_go_and_everything_else_stays() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----";
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQifQ.c2lnbmF0dXJl";
        let certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----";
        let all = format!("a {key} b\n{certificate}\ntoken={token};\neyJ short\n");
        assert_eq!(text(&all), format!("a <removed> b\n{certificate}\ntoken=<removed>;\neyJ short\n"));
        let within = json!({"pem": key, "then": "x"}).to_string();
        assert_eq!(text(&within), r#"{"pem":"<removed>","then":"x"}"#);
        assert_eq!(text("x -----BEGIN PRIVATE KEY-----\ncut"), "x <removed>");
        assert_eq!(text(&format!("{key}{key}.")), "<removed><removed>.");
    }

    #[test]
    fn configured_headers_keep_their_names_only() {
        let mut dump = json!({"config": {"xdsHeaders": [["authorization", "sesame"]], "caHeaders": []}});
        headers(&mut dump);
        assert_eq!(dump["config"]["xdsHeaders"], json!([["authorization", "<removed>"]]));
        headers(&mut json!([]));
    }
}
