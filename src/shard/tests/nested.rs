//! The socket pair that an inner tunnel runs on.

use std::io::ErrorKind;

use crate::shard::nested::pair;
use crate::shard::tests::fixture::on_both_loops;

#[test]
fn a_pair_behaves_as_a_connection_does() {
    on_both_loops(async || {
        let (near, far) = pair().unwrap();
        let mut heard = [0; 8];
        assert_eq!(far.receive(&mut heard).unwrap_err().kind(), ErrorKind::WouldBlock);
        near.send_all(b"word").await.unwrap();
        far.readable().await.unwrap();
        assert_eq!((far.receive(&mut heard).unwrap(), &heard[..4]), (4, &b"word"[..]));
        // It has no address, isn't gone, and its abort is an end.
        assert!(near.local().is_err() && !near.is_gone());
        near.abort();
        far.readable().await.unwrap();
        assert_eq!(far.receive(&mut heard).unwrap(), 0);
        assert!(far.send(b"late").is_err());
    });
}
