//! A program in the pod asks for a tunnel by HTTP/1.1 CONNECT: port 15081 on its loopback. Head -> destination -> the
//! way of a captured connection -> 200, or a status and one line that say why not.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::base::limits;
use crate::base::net::Source;
use crate::path::dialogue::{Unheard, dismiss, enter, hear, note_refused};
use crate::path::explicit::{Explicit, Outcome, announce};
use crate::path::underway::{Keeping, Staged};
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::socket::{Held, Socket};
use crate::shard::within;
use crate::wire::access_log::Via;
use crate::wire::destination::Destination;
use crate::wire::http1::{self, ESTABLISHED, Malformed, refusal};

/// Carries one client's tunnel to its end.
pub fn serve(world: Rc<PodWorld>, accepted: Accepted) -> impl Future<Output = ()> {
    let Accepted { fd, source, counted, .. } = accepted;
    Keeping { work: Staged::new(prepare(world, fd, source)), _kept: counted }
}

async fn prepare(world: Rc<PodWorld>, fd: OwnedFd, source: Source) -> Option<impl Future<Output = ()>> {
    let world = &world;
    let app = Held::new(Socket::new(fd).ok()?);
    let destination = match ask(world, app.socket()?).await {
        Ok(destination) => destination,
        Err((why, answer)) => {
            note_refused(world, "CONNECT", source, &why);
            dismiss(world, app, &answer).await;
            return None;
        }
    };
    match (Explicit { world, source, via: Via::Connect }).arrive(&destination, &app).await {
        Ok(there) => announce(there, &app, ESTABLISHED).await?.join(world, app),
        Err(failure) => {
            let why = format!("{destination}: {failure}");
            dismiss(world, app, &refusal(Outcome::of(&failure).status(), &why)).await;
            None
        }
    }
}

/// Where the client wants to go; else why it isn't served, and what it is told (nothing where it said nothing).
async fn ask(world: &PodWorld, app: &Socket) -> Result<Destination, (String, Vec<u8>)> {
    let _place = enter(world).map_err(|why| {
        let answer = refusal(503, &why);
        (why, answer)
    })?;
    let heard = hear(app, limits::PROXY_HEAD_BYTES, http1::request);
    let heard = within(limits::PROXY_REQUEST_DEADLINE_MS, heard).await.unwrap_or(Err(Unheard::Late));
    heard.map_err(|unheard: Unheard<Malformed>| {
        let why = unheard.to_string();
        let answer = match unheard {
            Unheard::Malformed(malformed) => malformed.answer(),
            Unheard::Late => refusal(408, "the head of the request did not come in time"),
            Unheard::Ended | Unheard::Io(_) => Vec::new(),
        };
        (why, answer)
    })
}
