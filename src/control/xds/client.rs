//! The stream to the control plane, on the control thread: opened, carried, and opened again. It reads no resource:
//! parts of messages go to the mesh thread, whose answers come back on the stream's own queue. While that thread is
//! busy nothing is read, and the control plane waits.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Status, body::Body};
use tower_service::Service;
use tracing::{Instrument, debug, info, info_span, warn};

use super::frames::{Frames, framed};
use super::pace::{Pace, Reason};
use super::{Fault, Stream, Word};
use crate::base::limits::XDS_REQUESTS_QUEUED;

const PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// How the control plane is reached.
pub trait Dial: Send + Sync {
    /// Its address, for texts.
    fn at(&self) -> &str;

    /// A new connection, and the headers of a request as they are now; or the whole text of what went wrong.
    fn dial(&self) -> Dialing<'_>;

    /// What a status says, in words for an operator.
    fn explain(&self, status: &Status) -> String;
}

/// See `Dial::dial`.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<(Channel, MetadataMap), String>> + Send + 'a>>;

/// Keeps a stream for as long as the mesh thread listens.
pub struct Client {
    dial: Box<dyn Dial>,
    words: mpsc::Sender<Word>,
    pace: Pace,
}

/// How a stream ended, and what there is to say about it.
struct End {
    reason: Reason,
    text: String,
    fruitful: bool,
    /// Whatever came before, the next one begins at once.
    at_once: bool,
}

impl End {
    fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into(), fruitful: false, at_once: false }
    }
}

impl Client {
    pub fn new(dial: Box<dyn Dial>, words: mpsc::Sender<Word>, random: fastrand::Rng) -> Self {
        Self { dial, words, pace: Pace::new(random) }
    }

    /// Ends once the mesh thread is gone.
    pub async fn run(mut self) {
        let mut id = 0;
        while !self.words.is_closed() {
            id += 1;
            let span = info_span!("xds", id);
            let listener = self.words.clone();
            tokio::select! {
                () = listener.closed() => return,
                () = Box::pin(self.one(id).instrument(span)) => {}
            }
        }
    }

    async fn one(&mut self, id: u64) {
        let end = self.stream(id).await;
        metrics::counter!("istio_xds_connection_terminations", "reason" => end.reason.label()).increment(1);
        let pause = if end.at_once { Duration::ZERO } else { self.pace.after(end.reason, end.fruitful) };
        let text = &end.text;
        match end.reason {
            Reason::ConnectionError => {
                warn!(target: "ztunnel::xds::client", "XDS client connection error: {text}, retrying in {pause:?}");
            }
            Reason::Error => {
                warn!(target: "ztunnel::xds::client", "XDS client error: {text}, retrying in {pause:?}");
            }
            Reason::Reconnect => {
                debug!(target: "ztunnel::xds::client", "XDS client reconnect: {text}, retrying in {pause:?}");
            }
            Reason::Complete => warn!(target: "ztunnel::xds::client", "XDS client complete"),
        }
        let _ = self.words.send(Word::Closed { why: end.text }).await;
        tokio::time::sleep(pause).await;
    }

    async fn stream(&mut self, id: u64) -> End {
        let (channel, headers) = match self.dial.dial().await {
            Ok(opened) => opened,
            Err(text) => return End::new(Reason::ConnectionError, text),
        };
        let (requests, outbound) = mpsc::channel(XDS_REQUESTS_QUEUED);
        let (end, ended) = oneshot::channel();
        if self.words.send(Word::Opened(Stream { id, requests, end })).await.is_err() {
            return End::new(Reason::Complete, "the process ends");
        }
        // Held beside the stream: hyper takes a connection that nobody could ask for more for idle, and doesn't
        // ping it.
        let connection = channel;
        let response = match open(connection.clone(), headers, ReceiverStream::new(outbound)).await {
            Ok(response) => response,
            Err(status) => return End::new(Reason::ConnectionError, self.dial.explain(&status)),
        };
        info!(target: "ztunnel::xds::client", "Stream established");
        let mut fruitful = false;
        let mut end = self.carry(response.into_body(), ended, &mut fruitful).await;
        drop(connection);
        end.fruitful = fruitful;
        end
    }

    async fn carry(
        &mut self,
        mut body: Body,
        mut ended: oneshot::Receiver<Fault>,
        fruitful: &mut bool,
    ) -> End {
        let mut frames = Frames::default();
        loop {
            let frame = tokio::select! {
                biased;
                // An error here is a stream that the mesh thread has nothing to say about.
                Ok(fault) = &mut ended, if !ended.is_terminated() => return faulted(&fault),
                frame = body.frame() => frame,
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(status)) => return self.broken(&status),
                None => return whole(&frames, "without a status"),
            };
            let mut chunk = match frame.into_data() {
                Ok(chunk) => chunk,
                Err(frame) => match frame.into_trailers().ok().and_then(|trailers| told(&trailers)) {
                    Some(status) if status.code() != Code::Ok => return self.broken(&status),
                    Some(_) | None => return whole(&frames, "in order"),
                },
            };
            loop {
                match frames.next(&mut chunk) {
                    Ok(Some(part)) => {
                        *fruitful |= part.last;
                        if self.words.send(Word::Part(part)).await.is_err() {
                            return End::new(Reason::Complete, "the process ends");
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return End::new(Reason::Error, error.to_string()),
                }
            }
        }
    }

    /// A status that ended the stream.
    fn broken(&self, status: &Status) -> End {
        #[expect(clippy::wildcard_enum_match_arm, reason = "seventeen codes, of which four mean a reconnect")]
        let reason = match status.code() {
            Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => Reason::Reconnect,
            Code::Unavailable
                if ["transport is closing", "received prior goaway"]
                    .iter()
                    .any(|known| status.message().contains(known)) =>
            {
                Reason::Reconnect
            }
            _ => Reason::Error,
        };
        End::new(reason, self.dial.explain(status))
    }
}

fn faulted(fault: &Fault) -> End {
    let at_once = *fault == Fault::AskAgain;
    let reason = if at_once { Reason::Reconnect } else { Reason::Error };
    End { at_once, ..End::new(reason, fault.to_string()) }
}

/// The end of the stream, which mustn't come within a message.
fn whole(frames: &Frames, how: &str) -> End {
    match frames.finish() {
        Ok(()) => End::new(Reason::Complete, format!("the control plane has ended the stream, {how}")),
        Err(error) => End::new(Reason::Error, error.to_string()),
    }
}

/// Opens the stream; done when the answer's head is there and says that all is well.
async fn open(
    mut channel: Channel,
    headers: MetadataMap,
    requests: ReceiverStream<crate::wire::pb::discovery::DeltaDiscoveryRequest>,
) -> Result<Response<Body>, Status> {
    let frames = requests.map(|request| Ok::<_, Infallible>(Frame::data(framed(&request))));
    let mut request = Request::new(Body::new(StreamBody::new(frames)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = hyper::Uri::from_static(PATH);
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers.into_headers();
    request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let failed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
    poll_fn(|context| channel.poll_ready(context)).await.map_err(failed)?;
    let response = channel.call(request).await.map_err(failed)?;
    match told(response.headers()) {
        Some(status) if status.code() != Code::Ok => Err(status),
        None if response.status() != StatusCode::OK => Err(Status::new(
            code_of(response.status()),
            format!("no gRPC server: HTTP status {}", response.status()),
        )),
        Some(_) | None => Ok(response),
    }
}

/// `grpc-status` of headers or trailers.
fn told(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// gRPC's own mapping, for answers of something that speaks HTTP only.
fn code_of(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
