//! One connection to a member. It is made by a task of its own: callers give up after half a second, and on a slow
//! machine or a long way a connection takes longer than that to come about.

use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use tokio::sync::watch;
use tokio::time::Instant;
use wire::dial::Http2;

use crate::member::Dial;

/// Dialling ends by then, so that a first packet that was lost in a cut does not hold up the next try for long.
const DIAL_TIMEOUT: Duration = Duration::from_secs(4);
/// A connection on which a call was given up counts as dead if nothing was answered on it for so long.
const SILENCE_MAX: Duration = Duration::from_secs(2);

enum State {
    Idle,
    Dialling(watch::Receiver<bool>),
    Open { sender: Http2, answered: Instant },
}

/// The connection, whether it is there or not.
pub struct Link(Mutex<State>);

impl Default for Link {
    fn default() -> Link {
        Link(Mutex::new(State::Idle))
    }
}

impl Link {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock()
    }

    /// The open connection; made if there is none. `None`: nobody answers there.
    ///
    /// Cancel safety: dialling goes on, and the next caller waits for it.
    pub async fn sender(self: &Arc<Self>, dial: &Arc<dyn Dial>, address: &str, group: &Group) -> Option<Http2> {
        let mut done = {
            let mut state = self.state();
            match &*state {
                State::Open { sender, .. } if !sender.is_closed() => return Some(sender.clone()),
                State::Dialling(done) => done.clone(),
                State::Open { .. } | State::Idle => {
                    let (tell, done) = watch::channel(false);
                    *state = State::Dialling(done.clone());
                    let (link, dial, address, connections) =
                        (Arc::clone(self), Arc::clone(dial), address.to_owned(), group.clone());
                    group.spawn_short("dial-member", async move {
                        let dialling = async {
                            let stream = dial.dial(&address).await.ok()?;
                            Http2::begin(stream, &address, &connections).await.ok()
                        };
                        let sender = tokio::time::timeout(DIAL_TIMEOUT, dialling).await.ok().flatten();
                        *link.state() =
                            sender.map_or(State::Idle, |sender| State::Open { sender, answered: Instant::now() });
                        tell.send_replace(true);
                    });
                    done
                }
            }
        };
        // A sender that is gone belongs to a store that closes.
        let _done = done.wait_for(|done| *done).await;
        match &*self.state() {
            State::Open { sender, .. } => Some(sender.clone()),
            State::Dialling(_) | State::Idle => None,
        }
    }

    /// Notes that the other end answered.
    pub fn answered(&self) {
        if let State::Open { answered, .. } = &mut *self.state() {
            *answered = Instant::now();
        }
    }

    /// Notes that a call was given up: a connection that was silent for long is not used again.
    pub fn given_up(&self) {
        let mut state = self.state();
        if matches!(&*state, State::Open { answered, .. } if answered.elapsed() > SILENCE_MAX) {
            *state = State::Idle;
        }
    }
}
