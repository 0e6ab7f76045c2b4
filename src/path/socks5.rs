//! A program in the pod asks for a connection by SOCKS5: port 15080 on its loopback (reference section 9). Greeting ->
//! request -> the way of a captured connection -> reply.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::base::limits;
use crate::base::net::Source;
use crate::path::dialogue::{Unheard, dismiss, enter, hear, note_refused, tell};
use crate::path::explicit::{Explicit, Outcome, announce};
use crate::path::underway::{Keeping, Staged};
use crate::shard::pod::{Accepted, PodWorld};
use crate::shard::socket::{Held, Socket};
use crate::shard::within;
use crate::wire::access_log::Via;
use crate::wire::destination::Destination;
use crate::wire::socks5::{self, MESSAGE_BYTES, Malformed, NO_AUTHENTICATION, Reply};

/// Carries one client's connection to its end.
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
            note_refused(world, "socks", source, &why);
            dismiss(world, app, &answer).await;
            return None;
        }
    };
    let early = world.shard.settings.socks5_early_reply;
    if early {
        tell(&app, &Reply::Succeeded.bytes()).await.ok()?;
    }
    let arrived = match (Explicit { world, source, via: Via::Socks5 }).arrive(&destination, &app).await {
        Ok(there) if early => Some(there),
        Ok(there) => announce(there, &app, &Reply::Succeeded.bytes()).await,
        // What was called a success can only be cut off now.
        Err(_) if early => None,
        Err(failure) => {
            dismiss(world, app, &Outcome::of(&failure).reply().bytes()).await;
            return None;
        }
    };
    arrived?.join(world, app)
}

/// Where the client wants to go; else why it isn't served, and what it is told (nothing where it said too little).
async fn ask(world: &PodWorld, app: &Socket) -> Result<Destination, (String, Vec<u8>)> {
    let _place = enter(world).map_err(|why| (why, Reply::GeneralFailure.bytes().into()))?;
    let heard = within(limits::PROXY_REQUEST_DEADLINE_MS, negotiate(app)).await.unwrap_or(Err(Unheard::Late));
    heard.map_err(|unheard| {
        let why = unheard.to_string();
        let answer = match unheard {
            Unheard::Malformed(malformed) => malformed.answer(),
            Unheard::Late | Unheard::Ended | Unheard::Io(_) => Vec::new(),
        };
        (why, answer)
    })
}

async fn negotiate(app: &Socket) -> Result<Destination, Unheard<Malformed>> {
    hear(app, MESSAGE_BYTES, |said, _| socks5::greeting(said)).await?;
    app.send_all(&NO_AUTHENTICATION).await?;
    hear(app, MESSAGE_BYTES, |said, _| socks5::request(said)).await
}
