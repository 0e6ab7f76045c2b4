//! The admin port's page, at `/`: for people with a browser. One document, with nothing from elsewhere; without
//! scripts it is the list of endpoints. What it shows it asks of the endpoints of deploy/docs/admin.md.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use hyper::StatusCode;

use crate::control::dump::base64;
use crate::control::http::{self, Reply};

const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

static PAGE: LazyLock<Page> = LazyLock::new(Page::assemble);

/// The document, and what a browser may do with it.
struct Page {
    document: Bytes,
    policy: String,
}

impl Page {
    /// What the page shows comes from peers too, names for one. Were one of them ever taken for markup, the browser
    /// would still run no script but ours, which it knows by its hash, and asks nobody but this port.
    fn assemble() -> Self {
        let document = DOCUMENT.replacen("<style></style>", &format!("<style>{STYLE}</style>"), 1).replacen(
            "<script></script>",
            &format!("<script>{SCRIPT}</script>"),
            1,
        );
        let hash = |part: &str| base64(digest(&SHA256, part.as_bytes()).as_ref());
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
            hash(SCRIPT),
            hash(STYLE),
        );
        Self { document: document.into(), policy }
    }
}

/// The page, to whatever method: so the reference does with its own.
pub fn answer() -> Reply {
    let page = &*PAGE;
    let reply = http::plain(StatusCode::OK, page.document.clone());
    [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", &page.policy),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
    ]
    .into_iter()
    .fold(reply, |reply, (name, value)| http::with_header(reply, name, value))
}
