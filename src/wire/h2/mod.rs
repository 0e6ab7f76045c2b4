//! HTTP/2.
