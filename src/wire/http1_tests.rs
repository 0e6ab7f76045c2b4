use proptest::prelude::*;

use super::*;

fn asked(head: &str) -> Result<Option<(Destination, usize)>, Malformed> {
    request(head.as_bytes(), 0)
}

fn refused(head: &str) -> u16 {
    asked(head).expect_err(head).status()
}

#[test]
fn a_connect_names_its_destination_and_what_follows_is_the_tunnels() {
    for (head, destination) in [
        ("CONNECT web.default.svc:443 HTTP/1.1\r\nHost: web.default.svc:443\r\n\r\n", "web.default.svc:443"),
        (
            "CONNECT 10.0.0.1:80 HTTP/1.1\r\nhost:10.0.0.1:80\r\nProxy-Connection: Keep-Alive\r\n\r\n",
            "10.0.0.1:80",
        ),
        ("CONNECT [fd00::1]:80 HTTP/1.1\r\nHost: [fd00::1]:80\r\n\r\n", "[fd00::1]:80"),
        ("CONNECT web:443 HTTP/1.0\r\n\r\n", "web:443"),
        ("\r\nCONNECT web:443 HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n", "web:443"),
        (
            "CONNECT web:443 HTTP/1.1\r\nHost: somebody.else\r\nUser-Agent: curl/8 (x; \u{e9})\r\n\r\n",
            "web:443",
        ),
    ] {
        let behind = "\u{16}\u{3}\u{1}GET / HTTP/1.1\r\n\r\n";
        let (found, length) =
            asked(&format!("{head}{behind}")).unwrap_or_else(|e| panic!("{head}: {e}")).unwrap();
        assert_eq!((found.to_string().as_str(), length), (destination, head.len()));
        for end in 0..head.len() {
            assert_eq!(request(&head.as_bytes()[..end], 0), Ok(None), "{end} bytes of {head}");
        }
    }
}

#[test]
fn requests_that_are_out_of_form_are_refused_with_their_status() {
    for (status, head) in [
        (405, "GET http://web/ HTTP/1.1\r\nHost: web\r\n\r\n"),
        (405, "POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 3\r\n\r\nabc"),
        (405, "HEAD http://web/ HTTP/1.1\r\nHost: web\r\n\r\n"),
        (405, "connect web:80 HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT web HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT web: HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT web:0 HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT web:99999 HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT http://web:80/ HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT me@web:80 HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT / HTTP/1.1\r\nHost: web\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost : a\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"),
        (400, "CONNECT web:80 HTTP/1.1\r\nHost: a\r\nX: a\u{0}b\r\n\r\n"),
        (400, "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\n"),
        (400, "\n\n\n\n\n\n\n\n\n"),
        (505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ] {
        assert_eq!(refused(head), status, "{head}");
    }
}

#[test]
fn heads_have_bounds_in_bytes_and_fields() {
    let start = "CONNECT web:80 HTTP/1.1\r\nHost: web\r\n";
    let many = |count: usize| format!("{start}{}\r\n", "X: y\r\n".repeat(count));
    assert!(asked(&many(PROXY_HEAD_FIELDS - 1)).unwrap().is_some());
    assert_eq!(refused(&many(PROXY_HEAD_FIELDS)), 431);
    let long = format!("{start}X: {}", "y".repeat(PROXY_HEAD_BYTES));
    assert_eq!(refused(&long[..PROXY_HEAD_BYTES]), 431);
    assert_eq!(asked(&long[..PROXY_HEAD_BYTES - 1]), Ok(None));
    let endless = format!("CONNECT {}", "y".repeat(PROXY_HEAD_BYTES));
    assert_eq!(refused(&endless), 431);
}

#[test]
fn a_refusal_is_one_line_of_text_and_the_end() {
    let answer = String::from_utf8(refusal(502, "cannot resolve\r\nInjected: yes")).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, "cannot resolve  Injected: yes\n");
    assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n") && head.contains("\r\nConnection: close"));
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let hint = String::from_utf8(Malformed::Method(Method::Other).answer()).unwrap();
    assert!(
        hint.contains("\r\nAllow: CONNECT\r\n") && hint.contains("ask it for CONNECT host:port"),
        "{hint}"
    );
    let bare = String::from_utf8(Malformed::Method(Method::Head).answer()).unwrap();
    assert!(bare.ends_with("\r\n\r\n"), "{bare}");
}

#[test]
fn the_success_has_no_length() {
    let text = std::str::from_utf8(ESTABLISHED).unwrap().to_ascii_lowercase();
    assert!(text.starts_with("http/1.1 200 ") && text.ends_with("\r\n\r\n"));
    assert!(!text.contains("content-length") && !text.contains("transfer-encoding"));
}

const NEARLY_RIGHT: &str = "(\r\n)?(CONNECT|GET) [a-z\\[\\]:.]{1,9}:[0-9]{1,6} HTTP/1\\.[012]\r\n\
    (Host: [a-z]{0,5}\r\n){0,2}([A-Za-z-]{1,9} ?: [ -~]{0,9}\r?\n){0,3}\r\n[a-z]{0,9}";

proptest! {
    #[test]
    fn fuzz_http1_survives_any_bytes(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_http1(&data);
    }

    #[test]
    fn fuzz_http1_survives_nearly_right_text(text in NEARLY_RIGHT) {
        fuzz_http1(text.as_bytes());
    }
}
