//! One WebSocket connection to one relay: frames in and out, and authentication (NIP-42).
//!
//! Every call ends by the instant it is given. How a connection is opened is left to `dial`, and what a relay is
//! asked to `fetch` and `publish`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use nostr::prelude::{
    ClientAuthentication, ClientMessage, FinalizeEvent, IntoEventBuilder, Keys, SubscriptionId,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::address::normalize;
use super::dial::{Challenger, Dialer};
use super::frame::{Frame, words};
use super::{RelayError, Target, Trust};

/// The socket under a connection.
pub(crate) type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What a frame is charged at least, so that empty ones are not free.
const MIN_FRAME_BYTES: usize = 64;

/// After this many frames the other relays get their turn: one that always has more to say would else be the only
/// one heard.
const FRAMES_PER_TURN: usize = 16;

/// How long a relay has to answer a ping. Whoever says nothing to it is taken at its word.
const PONG_TIME: Duration = Duration::from_secs(1);

/// `OK`s kept while the one that answers `AUTH` is awaited; more than were ever asked for are dropped.
const MAX_BACKLOG: usize = 256;

/// An open connection.
pub(crate) struct Connection {
    dialer: Arc<Dialer>,
    target: Target,
    socket: Socket,
    challenge: Option<String>,
    login: Login,
    /// Whether a challenge, or the answer to our `AUTH`, did not come in time.
    unanswered: bool,
    backlog: VecDeque<Frame>,
    /// Whether the relay was heard out after it had nothing to show, and sent no challenge until then.
    believed: bool,
    /// Of the current use: frames and bytes received, how many may be, and whether one of the frames was an answer.
    frames: usize,
    bytes: usize,
    max_bytes: usize,
    answered: bool,
    subscriptions: u64,
    heard_at: Instant,
}

/// What came over the socket.
enum Received {
    Frame(Frame),
    Pong,
    Nothing,
}

/// Where a connection stands with NIP-42. `AUTH` is sent once.
enum Login {
    Untried,
    Done,
    Failed(RelayError),
}

impl Connection {
    /// A connection over a socket whose handshake is done.
    pub(crate) fn new(dialer: Arc<Dialer>, target: Target, socket: Socket) -> Self {
        let max_bytes = dialer.limits().max_bytes;
        Self {
            dialer,
            target,
            socket,
            challenge: None,
            login: Login::Untried,
            unanswered: false,
            backlog: VecDeque::new(),
            believed: false,
            frames: 0,
            bytes: 0,
            max_bytes,
            answered: false,
            subscriptions: 0,
            heard_at: Instant::now(),
        }
    }

    /// The relay.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Begins another use of it: what was read before no longer counts.
    pub(crate) fn renew(&mut self) {
        self.backlog.clear();
        self.frames = 0;
        self.allow(self.dialer.limits().max_bytes);
        self.answered = false;
        self.heard_at = Instant::now();
    }

    /// From here on so many bytes may come.
    pub(crate) fn allow(&mut self, max_bytes: usize) {
        (self.bytes, self.max_bytes) = (0, max_bytes);
    }

    /// When the relay last said anything.
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Asks the relay's end of the socket whether it lives.
    pub(crate) async fn ping(&mut self, until: Instant) -> Result<(), RelayError> {
        self.push(Message::Ping(Default::default()), until).await
    }

    /// Whether the relay answered anything in this use.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// A subscription id that this connection has not had.
    pub(crate) fn new_subscription(&mut self) -> SubscriptionId {
        self.subscriptions = self.subscriptions.wrapping_add(1);
        SubscriptionId::new(format!("s{}", self.subscriptions))
    }

    /// Sends a frame.
    pub(crate) async fn send(
        &mut self,
        message: &ClientMessage<'_>,
        until: Instant,
    ) -> Result<(), RelayError> {
        self.push(Message::text(message.as_json()), until).await
    }

    async fn push(&mut self, message: Message, until: Instant) -> Result<(), RelayError> {
        match timeout_at(until, self.socket.send(message)).await {
            Ok(sent) => sent.map_err(|error| self.broken(&error)),
            Err(_) => Err(RelayError::Timeout),
        }
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`RelayError::Timeout`]; [`RelayError::Lost`]; [`RelayError::Cut`] for a frame or a sum of frames above the
    /// limits. After any of them but a timeout the connection is of no more use.
    pub(crate) async fn next(&mut self, until: Instant) -> Result<Frame, RelayError> {
        match self.backlog.pop_front() {
            Some(frame) => Ok(frame),
            None => self.receive(until).await,
        }
    }

    async fn receive(&mut self, until: Instant) -> Result<Frame, RelayError> {
        loop {
            if let Received::Frame(frame) = self.receive_any(until).await? {
                return Ok(frame);
            }
        }
    }

    async fn receive_any(&mut self, until: Instant) -> Result<Received, RelayError> {
        // A timeout looks at the clock only while it waits; a flood never lets it wait.
        if Instant::now() >= until {
            return Err(RelayError::Timeout);
        }
        let message = match timeout_at(until, self.socket.next()).await {
            Ok(Some(received)) => received.map_err(|error| self.broken(&error))?,
            Ok(None) => return Err(RelayError::Lost("closed by the relay".into())),
            Err(_) => return Err(RelayError::Timeout),
        };
        self.heard_at = Instant::now();
        self.charge(message.len())?;
        if self.frames.is_multiple_of(FRAMES_PER_TURN) {
            tokio::task::yield_now().await;
        }
        match message {
            Message::Text(text) => {
                let frame = Frame::parse(&text, self.dialer.limits().max_event_bytes);
                self.note(&frame);
                Ok(Received::Frame(frame))
            }
            Message::Binary(_) => Ok(Received::Frame(Frame::Unreadable)),
            Message::Close(Some(close)) if !close.reason.is_empty() => {
                Err(RelayError::Lost(words(&close.reason)))
            }
            Message::Close(_) => Err(RelayError::Lost("closed by the relay".into())),
            Message::Pong(_) => Ok(Received::Pong),
            Message::Ping(_) | Message::Frame(_) => Ok(Received::Nothing),
        }
    }

    /// Receives what the relay has said so far, once per connection: it answers a ping behind all that. So a challenge that it
    /// sends after its end of stored events is met. Longer than that is waited only for a relay that is known to send one, and
    /// for one of which nobody knows yet.
    pub(crate) async fn hear_out(&mut self, until: Instant) {
        if self.believed || self.challenge.is_some() {
            return;
        }
        let mut expected = self.dialer.challengers().get(&self.target).copied();
        let (auth_timeout, first_timeout) =
            (self.dialer.limits().auth_timeout, self.dialer.limits().first_challenge_timeout);
        let time = if expected == Some(Challenger::Known) { auth_timeout } else { PONG_TIME };
        let pinged_at = Instant::now();
        let mut heard_out_at = until.min(pinged_at + time);
        if self.ping(heard_out_at).await.is_err() {
            return;
        }
        while self.challenge.is_none() {
            match self.receive_any(heard_out_at).await {
                Ok(Received::Frame(frame)) => self.set_aside(frame),
                Ok(Received::Pong) => match expected {
                    None => break,
                    Some(Challenger::Known) => {}
                    Some(Challenger::Possible) => {
                        // Once, however many pongs it sends.
                        expected = Some(Challenger::Known);
                        let time = first_timeout.max(pinged_at.elapsed());
                        heard_out_at = until.min(Instant::now() + time);
                    }
                },
                Ok(Received::Nothing) => {}
                Err(RelayError::Timeout) => break,
                // A connection that breaks now is found out at its next use.
                Err(_) => return,
            }
        }
        if self.challenge.is_none() {
            self.believed = true;
            self.dialer.challengers().remove(&self.target);
        }
    }

    /// Receives what has come by now, and waits for nothing.
    pub(crate) fn catch_up(&mut self) {
        for _ in 0..FRAMES_PER_TURN {
            let at_once = Instant::now() + PONG_TIME;
            match self.receive_any(at_once).now_or_never() {
                Some(Ok(Received::Frame(frame))) => self.set_aside(frame),
                Some(Ok(Received::Pong | Received::Nothing)) => {}
                // A connection that breaks now is found out at its next use.
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Whether a challenge came after it was believed that the relay has nothing to show, and was not answered yet.
    pub(crate) fn was_believed_too_early(&self) -> bool {
        self.believed && self.may_withhold()
    }

    fn charge(&mut self, bytes: usize) -> Result<(), RelayError> {
        self.frames = self.frames.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes.max(MIN_FRAME_BYTES));
        let max = self.max_bytes;
        if self.bytes > max {
            return Err(RelayError::Cut(format!("it sent more than {max} bytes")));
        }
        Ok(())
    }

    fn note(&mut self, frame: &Frame) {
        match frame {
            Frame::Auth(challenge) => {
                self.challenge = Some(challenge.clone());
                // A foreign relay never learns who we are: it is not waited for.
                if self.target.trust == Trust::Own {
                    self.dialer.challengers().insert(self.target.clone(), Challenger::Known);
                }
            }
            Frame::Event { .. }
            | Frame::Malformed(_)
            | Frame::Eose(_)
            | Frame::Closed { .. }
            | Frame::Ok { .. } => self.answered = true,
            Frame::TooLarge { bytes, event } => tracing::warn!(
                relay.url = %self.target.url,
                event.id = event.as_ref().map(|event| event.id.to_hex()),
                frame.bytes = bytes,
                limit.bytes = self.dialer.limits().max_event_bytes,
                "a frame above the size limit was skipped"
            ),
            Frame::Notice(_) | Frame::Unreadable => {}
        }
    }

    fn broken(&self, error: &tungstenite::Error) -> RelayError {
        match error {
            tungstenite::Error::Capacity(tungstenite::error::CapacityError::MessageTooLong { .. }) => {
                RelayError::Cut(format!(
                    "a frame has more than {} bytes",
                    self.dialer.limits().max_frame_bytes
                ))
            }
            error => RelayError::Lost(words(&error.to_string())),
        }
    }

    /// Whether the relay may hold back what it shows only to those who authenticate: it sent a challenge, and we
    /// did not authenticate.
    pub(crate) fn may_withhold(&self) -> bool {
        self.challenge.is_some() && !self.is_authenticated()
    }

    /// Whether it could not authenticate for no more than a lack of time: another connection may.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Whether our `AUTH` was taken.
    pub(crate) fn is_authenticated(&self) -> bool {
        matches!(self.login, Login::Done)
    }

    /// Authenticates, because the relay said `reason`. Sent once per connection: where it was taken before, a relay
    /// that asks again does not want us.
    ///
    /// # Errors
    /// [`RelayError::Auth`], which leaves the connection usable; else as [`Connection::next`].
    pub(crate) async fn authenticate(&mut self, reason: &str, until: Instant) -> Result<(), RelayError> {
        if self.target.trust == Trust::Foreign {
            return Err(RelayError::Auth(format!("never given to a foreign relay ({reason})")));
        }
        let Some(keys) = self.dialer.keys().cloned() else {
            return Err(RelayError::Auth(format!("needs the agent's key ({reason})")));
        };
        match &self.login {
            Login::Done => return Err(RelayError::Auth(reason.to_owned())),
            Login::Failed(error) => return Err(error.clone()),
            Login::Untried => {}
        }
        let outcome = self.log_in(&keys, until.min(Instant::now() + self.dialer.limits().auth_timeout)).await;
        self.login = match &outcome {
            Ok(()) => Login::Done,
            Err(error) => Login::Failed(error.clone()),
        };
        outcome
    }

    async fn log_in(&mut self, keys: &Keys, until: Instant) -> Result<(), RelayError> {
        // Relays send the challenge before or after they refuse.
        let challenge = loop {
            if let Some(challenge) = &self.challenge {
                break challenge.clone();
            }
            let frame =
                self.receive(until).await.map_err(|error| self.untimely(error, "it sent no challenge"))?;
            self.set_aside(frame);
        };
        // Relays compare the tag with their own name for themselves, some of them letter by letter.
        let relay = normalize(self.target.url.as_str()).unwrap_or_else(|| self.target.url.clone());
        let event = ClientAuthentication::new(challenge, relay)
            .into_event_builder()
            .finalize(keys)
            .map_err(|_| RelayError::Auth("the event could not be signed".into()))?;
        let ours = event.id;
        self.send(&ClientMessage::auth(event), until).await?;
        loop {
            match self.receive(until).await.map_err(|error| self.untimely(error, "it did not answer ours"))? {
                Frame::Ok { id, accepted: true, .. } if id == ours => return Ok(()),
                Frame::Ok { id, reason, .. } if id == ours => {
                    return Err(RelayError::Auth(format!("ours was refused ({reason})")));
                }
                frame => self.set_aside(frame),
            }
        }
    }

    /// Keeps a frame for [`Connection::next`] that came while another was awaited, where it may matter.
    fn set_aside(&mut self, frame: Frame) {
        if matches!(frame, Frame::Ok { .. }) && self.backlog.len() < MAX_BACKLOG {
            self.backlog.push_back(frame);
        }
    }

    /// Names what did not come in time; other errors stay.
    fn untimely(&mut self, error: RelayError, what: &str) -> RelayError {
        if error != RelayError::Timeout {
            return error;
        }
        self.unanswered = true;
        RelayError::Auth(what.to_owned())
    }

    /// Says goodbye, and does not wait for the answer. A challenge that came too late for its connection serves the next one.
    pub(crate) async fn close(mut self) {
        self.catch_up();
        // The relay may be gone; there is nothing left to tell anybody.
        let _ = self.socket.close(None).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nostr::prelude::{Filter, RelayUrl};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_tungstenite::accept_async;

    use super::*;
    use crate::relay::fetch::{Read, Seen, Sink};
    use crate::relay::pool::{Exchange, Limits};

    /// A relay that challenges at once, answers each `REQ` with `refusal`, and hands on what it hears.
    async fn challenging(refusal: fn(&Value) -> Value) -> (Target, mpsc::UnboundedReceiver<Value>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = RelayUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let (hand_on, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut socket = accept_async(listener.accept().await.unwrap().0).await.unwrap();
            socket.send(Message::text(json!(["AUTH", "c1"]).to_string())).await.unwrap();
            while let Some(Ok(Message::Text(text))) = socket.next().await {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame[0] == "REQ" {
                    socket.send(Message::text(refusal(&frame[1]).to_string())).await.unwrap();
                }
                hand_on.send(frame[0].clone()).unwrap();
            }
        });
        (Target { url, trust: Trust::Own }, heard)
    }

    #[tokio::test]
    async fn a_foreign_relay_never_learns_who_asks() {
        let refusals: [fn(&Value) -> Value; 2] =
            [|id| json!(["CLOSED", id, "auth-required: log in"]), |id| json!(["EOSE", id])];
        for refusal in refusals {
            let (target, mut heard) = challenging(refusal).await;
            let until = Instant::now() + Duration::from_secs(20);
            let dialer = Arc::new(Dialer::new(Some(Keys::generate()), Limits::default()));
            let mut connection = dialer.connect(&target, until).await.unwrap();
            // Foreign relays are not on loopback, so it becomes one after it was dialled.
            connection.target.trust = Trust::Foreign;

            let (filters, seen) = ([Filter::new()], Seen::default());
            let outcome = Read::new(&filters, Sink::Verified(&seen), 10, until).run(&mut connection).await;
            let Err(RelayError::Auth(words)) = outcome else { panic!("{outcome:?}") };
            assert!(words.starts_with("never given to a foreign relay"), "{words}");

            connection.close().await;
            let mut frames = Vec::new();
            while let Some(frame) = heard.recv().await {
                frames.push(frame);
            }
            assert!(!frames.contains(&json!("AUTH")), "{frames:?}");
        }
    }

    #[tokio::test]
    async fn an_end_that_has_passed_is_kept_even_while_frames_wait() {
        let (target, mut heard) = challenging(|id| json!(["EOSE", id])).await;
        let until = Instant::now() + Duration::from_secs(20);
        let dialer = Arc::new(Dialer::new(Some(Keys::generate()), Limits::default()));
        let mut connection = dialer.connect(&target, until).await.unwrap();
        let id = connection.new_subscription();
        connection.send(&ClientMessage::req(id, Filter::new()), until).await.unwrap();
        heard.recv().await.unwrap();
        assert_eq!(connection.next(Instant::now()).await, Err(RelayError::Timeout));
        assert_eq!(connection.next(until).await, Ok(Frame::Auth("c1".into())));
    }
}
