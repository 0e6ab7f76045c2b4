//! The client against a control plane in the test's hands; the mesh thread is the test.

use tokio::task::JoinHandle;

use bytes::Bytes;

use super::*;
use crate::control::xds::Part;
use crate::control::xds::testing::{Dialogue, Plain, Plane, pod, soon};
use crate::wire::pb::discovery::DeltaDiscoveryRequest;
use crate::wire::xds::ADDRESS_TYPE;

struct Scene {
    plane: Plane,
    words: mpsc::Receiver<Word>,
    client: JoinHandle<()>,
}

impl Scene {
    async fn start() -> Self {
        let plane = Plane::start().await;
        let (tell, words) = mpsc::channel(4);
        let client = Client::new(Box::new(Plain(plane.address)), tell, fastrand::Rng::with_seed(1));
        Self { plane, words, client: tokio::spawn(client.run()) }
    }

    async fn word(&mut self) -> Word {
        soon(self.words.recv()).await.unwrap()
    }

    /// A stream from both ends, its first request said.
    async fn stream(&mut self) -> (Stream, Dialogue) {
        let Word::Opened(stream) = self.word().await else { panic!("no stream is opened") };
        stream.requests.send(request("first")).await.unwrap();
        let mut dialogue = self.plane.stream().await;
        assert_eq!(dialogue.request().await.unwrap(), request("first"));
        (stream, dialogue)
    }

    async fn part(&mut self) -> Part {
        match self.word().await {
            Word::Part(part) => part,
            Word::Opened(_) => panic!("another stream"),
            Word::Closed { why } => panic!("closed: {why}"),
        }
    }

    async fn closed(&mut self) -> String {
        match self.word().await {
            Word::Closed { why } => why,
            Word::Opened(_) | Word::Part(_) => panic!("it isn't closed"),
        }
    }
}

fn request(type_url: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { type_url: type_url.into(), ..DeltaDiscoveryRequest::default() }
}

#[tokio::test]
async fn requests_go_out_and_messages_come_in() {
    let mut scene = Scene::start().await;
    let (stream, mut dialogue) = scene.stream().await;
    let head = &dialogue.head;
    assert_eq!((head.method(), head.uri().path()), (&Method::POST, PATH));
    assert_eq!(head.uri().scheme_str(), Some("http"));
    for (name, value) in
        [("content-type", "application/grpc"), ("te", "trailers"), ("clusterid", "Kubernetes")]
    {
        assert_eq!(head.headers()[name], value);
    }
    dialogue.say(ADDRESS_TYPE, vec![pod("a", "1", 1)], &[]);
    assert!(scene.part().await.last);
    stream.requests.send(request("second")).await.unwrap();
    assert_eq!(dialogue.request().await.unwrap(), request("second"));
    // A later stream is another connection, and begins at once where this one was of use.
    dialogue.end(0, "");
    assert_eq!(scene.closed().await, "the control plane has ended the stream, in order");
    let (again, _dialogue) = scene.stream().await;
    assert_eq!((stream.id, again.id), (1, 2));
    drop(scene.words);
    soon(scene.client).await.unwrap();
}

#[tokio::test]
async fn statuses_are_told_apart() {
    let mut scene = Scene::start().await;
    // Before the head of the answer: it was never open.
    let (_stream, dialogue) = scene.stream().await;
    dialogue.end(16, "request%20authenticate%20failure");
    assert_eq!(scene.closed().await, "Unauthenticated: request authenticate failure");
    for (code, says) in [(13, "Internal: x"), (1, "Cancelled: x"), (14, "Unavailable: x")] {
        let (_stream, mut dialogue) = scene.stream().await;
        dialogue.say(ADDRESS_TYPE, Vec::new(), &[]);
        scene.part().await;
        dialogue.end(code, "x");
        assert_eq!(scene.closed().await, says);
    }
    // An end within a message, and bytes that are no message.
    let (_stream, mut dialogue) = scene.stream().await;
    dialogue.raw(Bytes::from_static(&[0, 0, 0, 0, 9, 0x12]));
    dialogue.end(0, "");
    assert_eq!(scene.closed().await, "the stream ends within a message: 8 bytes are missing");
    let (_stream, mut dialogue) = scene.stream().await;
    dialogue.raw(Bytes::from_static(&[1, 0, 0, 0, 0]));
    assert_eq!(scene.closed().await, "a message is compressed, which was not offered");
}

#[tokio::test]
async fn the_mesh_thread_can_end_a_stream() {
    let mut scene = Scene::start().await;
    let (stream, mut dialogue) = scene.stream().await;
    dialogue.say(ADDRESS_TYPE, Vec::new(), &[]);
    scene.part().await;
    assert!(stream.end.send(Fault::AskAgain).is_ok());
    assert!(scene.closed().await.contains("asking again"));
    let (stream, mut dialogue) = scene.stream().await;
    dialogue.say(ADDRESS_TYPE, Vec::new(), &[]);
    scene.part().await;
    // One that says nothing doesn't.
    drop(stream.end);
    for _ in 0..3 {
        dialogue.say(ADDRESS_TYPE, Vec::new(), &[]);
        assert!(scene.part().await.last);
    }
}

#[tokio::test]
async fn nothing_is_read_while_the_mesh_thread_is_busy() {
    let mut scene = Scene::start().await;
    let (_stream, mut dialogue) = scene.stream().await;
    for _ in 0..1_000 {
        dialogue.say(ADDRESS_TYPE, vec![pod("a", "1", 1); 20], &[]);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Four in the queue, the fifth in the client's hands.
    assert_eq!(scene.words.len(), 4);
    for _ in 0..1_000 {
        assert!(scene.part().await.last);
    }
}
