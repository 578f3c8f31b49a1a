//! A relay on loopback that does what a test tells it to, and remembers what it heard.
//!
//! A script runs once per connection and holds the [`Peer`]. When it ends, the connection is dropped without a
//! goodbye, as a crashing relay does.

use std::future::Future;
use std::sync::{Arc, Mutex};

use didactyl::relay::{Target, Trust};
use futures_util::{SinkExt, StreamExt};
use nostr::prelude::{Event, RelayUrl};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

/// The relay; it stops when dropped.
pub struct FakeRelay {
    url: String,
    heard: Arc<Mutex<Vec<(usize, Value)>>>,
    _accepting: JoinSet<()>,
}

impl FakeRelay {
    /// Starts a relay that runs `script` on every connection.
    pub async fn start<S, F>(script: S) -> Self
    where
        S: Fn(Peer) -> F + Send + 'static,
        F: Future<Output = Option<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            // Scripts end with the relay: they are owned by the task that accepts.
            let mut scripts = JoinSet::new();
            for connection in 1.. {
                let (stream, _) = listener.accept().await.unwrap();
                // What was said is there at once, not when the client has confirmed what was said before.
                stream.set_nodelay(true).unwrap();
                log.lock().unwrap().push((connection, json!("connected")));
                if let Ok(socket) = accept_async(stream).await {
                    scripts.spawn(script(Peer { connection, socket, log: Arc::clone(&log) }));
                }
            }
        });
        Self { url, heard, _accepting: accepting }
    }

    /// A well-behaved relay with these events, whatever is asked; it accepts every event.
    pub async fn serving(events: Vec<Event>) -> Self {
        Self::start(move |mut peer| {
            let events = events.clone();
            async move {
                loop {
                    let frame = peer.hear().await?;
                    match frame[0].as_str() {
                        Some("REQ") => {
                            for event in &events {
                                peer.say(json!(["EVENT", frame[1], event])).await?;
                            }
                            peer.say(json!(["EOSE", frame[1]])).await?;
                        }
                        Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], true, ""])).await?,
                        _ => {}
                    }
                }
            }
        })
        .await
    }

    /// It as one of our own relays.
    pub fn own(&self) -> Target {
        Target { url: RelayUrl::parse(&self.url).unwrap(), trust: Trust::Own }
    }

    /// It as a relay of somebody's list.
    pub fn foreign(&self) -> Target {
        Target { trust: Trust::Foreign, ..self.own() }
    }

    /// The frames of this kind that it heard so far, on all connections.
    pub fn heard(&self, kind: &str) -> Vec<Value> {
        self.heard
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, frame)| frame[0] == kind)
            .map(|(_, frame)| frame.clone())
            .collect()
    }

    /// How many connections it was asked for.
    pub fn connections(&self) -> usize {
        self.heard.lock().unwrap().iter().map(|(connection, _)| *connection).max().unwrap_or(0)
    }
}

/// A client, as the relay sees it. Its calls return `None` once the client is gone, so that scripts end with `?`.
pub struct Peer {
    /// Counted from 1.
    pub connection: usize,
    socket: WebSocketStream<TcpStream>,
    log: Arc<Mutex<Vec<(usize, Value)>>>,
}

impl Peer {
    /// The next frame.
    pub async fn hear(&mut self) -> Option<Value> {
        while let Some(Ok(message)) = self.socket.next().await {
            let frame = match message {
                Message::Text(text) => serde_json::from_str(&text).unwrap(),
                Message::Close(_) => json!(["goodbye"]),
                _ => continue,
            };
            self.log.lock().unwrap().push((self.connection, frame.clone()));
            if frame[0] != "goodbye" {
                return Some(frame);
            }
        }
        None
    }

    /// Hears frames until one of this kind comes.
    pub async fn hear_kind(&mut self, kind: &str) -> Option<Value> {
        loop {
            let frame = self.hear().await?;
            if frame[0] == kind {
                return Some(frame);
            }
        }
    }

    /// Hears frames until a ping comes. What is said next is behind its answer.
    pub async fn hear_ping(&mut self) -> Option<()> {
        while let Some(Ok(message)) = self.socket.next().await {
            if matches!(message, Message::Ping(_)) {
                return Some(());
            }
        }
        None
    }

    /// Says JSON.
    pub async fn say(&mut self, frame: Value) -> Option<()> {
        self.say_text(frame.to_string()).await
    }

    /// Says any text.
    pub async fn say_text(&mut self, text: String) -> Option<()> {
        self.socket.send(Message::text(text)).await.ok()
    }

    /// Says bytes.
    pub async fn say_bytes(&mut self, bytes: Vec<u8>) -> Option<()> {
        self.socket.send(Message::binary(bytes)).await.ok()
    }

    /// Ends the connection with a goodbye.
    pub async fn close(mut self) -> Option<()> {
        self.socket.close(None).await.ok()
    }

    /// Says nothing more, but hears all until the client leaves.
    pub async fn hear_out(&mut self) -> Option<()> {
        while self.hear().await.is_some() {}
        None
    }
}
