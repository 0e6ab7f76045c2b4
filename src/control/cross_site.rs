//! Requests that a browser makes on behalf of somebody else's page. The admin port asks for no credentials, as only the
//! node's own may reach it; but a browser reaches a forwarded port for any page that it shows. Programs other than
//! browsers send neither `Origin` nor `Sec-Fetch-Site`, and nothing changes for them.

use std::net::{IpAddr, Ipv6Addr};

use hyper::Method;
use hyper::header::{HOST, HeaderMap, ORIGIN};

use crate::control::http::Question;

/// Why a request isn't answered, in a line; nothing where it may be.
///
/// Refused are requests that change something, or cost much, and that a page of another site caused (Fetch Standard,
/// section 3.2 `Origin`; W3C Fetch Metadata section 2.4 `Sec-Fetch-Site`). What is only read needs no such bound: no
/// answer here allows other sites to read it (CORS).
pub fn refused(question: &Question) -> Option<&'static str> {
    let only_reads = question.method == Method::GET || question.method == Method::HEAD;
    // Profiling is switched by GET, as in the reference.
    if only_reads && !question.uri.path().starts_with("/debug/") {
        return None;
    }
    let header = |name: &str| value(&question.headers, name);
    if header("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Some("refused: a page of another site asked for this (Sec-Fetch-Site)");
    }
    let origin = header(ORIGIN.as_str())?;
    let host = header(HOST.as_str()).unwrap_or_default();
    let Some((_, authority)) = origin.split_once("://").filter(|(_, authority)| *authority == host) else {
        return Some("refused: a page of another site asked for this (Origin)");
    };
    // A foreign name that was made to lead here is its page's own origin, so equality alone proves nothing.
    (!is_ours(authority))
        .then_some("refused: a page may change things only by localhost or an address, not by a name")
}

/// The text of a header; what isn't ASCII is no value that a browser sends, and fits nothing.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// `localhost` or an address, with or without a port: names that nobody else's DNS can answer for.
fn is_ours(authority: &str) -> bool {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let host = authority.split_once(':').map_or(authority, |(host, _)| host);
    host == "localhost" || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn asked(method: &str, path: &str, headers: &[(&str, &str)]) -> Question {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost:15000");
        for (name, value) in headers {
            if *name == "host" {
                request.headers_mut().unwrap().remove("host");
            }
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn what_other_sites_cause_is_refused_and_all_else_is_not() {
        let post = |headers: &[(&str, &str)]| refused(&asked("POST", "/drain", headers)).is_some();
        // curl, istioctl and ours.
        assert!(!post(&[]));
        assert!(!post(&[("host", "anything")]));
        // Our page, by each way to reach it.
        for host in ["localhost:15000", "127.0.0.1:15000", "[::1]:15000", "10.1.2.3", "localhost"] {
            let origin = format!("http://{host}");
            assert!(
                !post(&[("host", host), ("origin", &origin), ("sec-fetch-site", "same-origin")]),
                "{host}"
            );
            assert!(!post(&[("host", host), ("origin", &origin)]), "{host}");
        }
        assert!(!post(&[("sec-fetch-site", "none")]));
        // Others.
        for site in ["cross-site", "same-site", "", "SAME-ORIGIN", "\u{e4}"] {
            assert!(post(&[("sec-fetch-site", site)]), "{site}");
            assert!(post(&[("sec-fetch-site", site), ("origin", "http://localhost:15000")]), "{site}");
        }
        for origin in [
            "null",
            "",
            "http://evil.example",
            "http://localhost:8080",
            "http://localhost",
            "localhost:15000",
        ] {
            assert!(post(&[("origin", origin)]), "{origin}");
            assert!(post(&[("origin", origin), ("sec-fetch-site", "same-origin")]), "{origin}");
        }
        for name in [
            "evil.example:15000",
            "localhost.evil.example",
            "[evil.example]:1",
            "[::1",
            "127.0.0.1.evil.example",
        ] {
            assert!(post(&[("host", name), ("origin", &format!("http://{name}"))]), "{name}");
        }
    }

    #[test]
    fn what_is_only_read_is_answered_but_profiling_is_not_switched() {
        let foreign = [("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")];
        for (method, path, is_refused) in [
            ("GET", "/", false),
            ("HEAD", "/connections", false),
            ("GET", "/debug/pprof/heap/profiling?activate=true", true),
            ("GET", "/debug/pprof/profile", true),
            ("POST", "/logging?level=trace", true),
            ("PUT", "/config_dump", true),
        ] {
            assert_eq!(refused(&asked(method, path, &foreign)).is_some(), is_refused, "{method} {path}");
        }
    }
}
