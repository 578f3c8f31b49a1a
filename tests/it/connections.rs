//! Connections that died while the sandbox was frozen: a server on loopback plays what the network leaves of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use didactyl::app::App;
use didactyl::aws::Aws;
use didactyl::chat::{ChatAnswer, ChatRequest, Message, Params, Role, ToolChoice};
use didactyl::clock::Clock;
use didactyl::llm::catalogue::{Chain, Providers};
use didactyl::llm::openai::OpenAi;
use didactyl::llm::{Llm, LlmError};
use didactyl::relay::pool::{Limits, Pool};
use didactyl::store::dynamodb::DynamoDb;
use didactyl::store::{Key, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::agent::{TestAgent, config, echo};
use crate::store::beds;

/// What the server does with one request.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// Answers with this JSON and keeps the connection.
    Answer(&'static str),
    /// Reads it and closes.
    Close,
    /// Closes without reading: the client gets a reset.
    Reset,
    /// Answers what is no HTTP, and closes.
    Garbage,
    /// Sends the head of an answer and half its body, and closes.
    Half,
}

/// A server on loopback that plays a script: for each connection, what it does with one request after the other.
struct Wire {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Wire {
    async fn play(script: &[&[Then]]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let (script, count) = (script.iter().map(|s| s.to_vec()).collect::<Vec<_>>(), connections.clone());
        tokio::spawn(async move {
            for requests in script {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, requests));
            }
        });
        Self { url, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, requests: Vec<Then>) {
    for then in requests {
        match then {
            Then::Reset => return stream.readable().await.unwrap(),
            _ => read_request(&mut stream).await,
        }
        let head = |length| {
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n")
        };
        let answer = match then {
            Then::Answer(body) => head(body.len()) + body,
            Then::Half => head(100) + "{\"choices\":",
            Then::Garbage => "nobody speaks HTTP here\r\n\r\n".to_owned(),
            Then::Close | Then::Reset => return,
        };
        stream.write_all(answer.as_bytes()).await.unwrap();
        if !matches!(then, Then::Answer(_)) {
            return;
        }
    }
    // The script has ended; the connection stays open for as long as the client wants it.
    let _ = stream.read(&mut [0; 1]).await;
}

async fn read_request(stream: &mut TcpStream) {
    let mut request = Vec::new();
    loop {
        request.push(stream.read_u8().await.unwrap());
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() == length.map_or(0, |length| length.parse().unwrap()) {
            return;
        }
    }
}

const HELLO: Then = Then::Answer(r#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#);

fn model(wire: &Wire) -> OpenAi {
    didactyl::install_crypto_provider();
    let chain: Chain = "wire/m".parse().unwrap();
    let url = wire.url.clone();
    let providers = Providers::resolve(&chain, &|name| (name == "WIRE_BASE_URL").then(|| url.clone()));
    OpenAi::new(reqwest::Client::builder().no_proxy().build().unwrap(), providers)
}

async fn ask(model: &OpenAi) -> Result<ChatAnswer, LlmError> {
    let (messages, params) = ([Message::text(Role::User, "hi")], Params::default());
    let request = ChatRequest {
        model: "wire/m",
        messages: &messages,
        tools: &[],
        tool_choice: ToolChoice::Auto,
        params: &params,
    };
    model.complete(&request, Instant::now() + Duration::from_secs(60)).await
}

#[tokio::test]
async fn a_model_is_asked_again_over_a_new_connection_where_the_kept_one_died() {
    for death in [Then::Close, Then::Reset] {
        let wire = Wire::play(&[&[HELLO, death], &[HELLO]]).await;
        let model = model(&wire);
        for _ in 0..2 {
            assert_eq!(ask(&model).await.unwrap().content, "hello", "{death:?}");
        }
        assert_eq!(wire.connections(), 2, "{death:?}");
    }
}

#[tokio::test]
async fn a_model_is_asked_again_once_and_only_where_nothing_of_an_answer_came() {
    for (deaths, connections) in [
        (&[&[Then::Close][..], &[Then::Close], &[HELLO]][..], 2),
        (&[&[Then::Garbage], &[HELLO]], 1),
        (&[&[Then::Half], &[HELLO]], 1),
    ] {
        let wire = Wire::play(deaths).await;
        let error = ask(&model(&wire)).await.unwrap_err();
        assert!(error.is_transient() && !error.to_string().contains("127.0.0.1"), "{deaths:?}: {error}");
        assert_eq!(wire.connections(), connections, "{deaths:?}");
    }
}

/// A store with the configuration of the function, at the server. Needs the variables of the tests against AWS.
async fn store(wire: &Wire) -> Option<DynamoDb> {
    beds::emulator()?;
    let config = aws_sdk_dynamodb::config::Builder::from(Aws::default().config().await);
    let client = aws_sdk_dynamodb::Client::from_conf(config.endpoint_url(&wire.url).build());
    Some(DynamoDb::new(client, "table", Clock::system()))
}

#[tokio::test]
async fn the_store_is_asked_again_over_a_new_connection_where_the_kept_one_died() {
    for death in [Then::Close, Then::Reset] {
        let wire = Wire::play(&[&[Then::Answer("{}"), death], &[Then::Answer("{}")]]).await;
        let Some(store) = store(&wire).await else { return };
        for _ in 0..2 {
            assert_eq!(store.read(&[Key::new("p", "s")]).await.unwrap(), [None], "{death:?}");
        }
        assert_eq!(wire.connections(), 2, "{death:?}");
    }
}

#[tokio::test]
async fn the_first_invocation_finds_the_stores_connection_open() {
    let wire = Wire::play(&[&[Then::Answer("{}"), Then::Answer("{}")]]).await;
    let Some(store) = store(&wire).await else { return };
    let agent = TestAgent::bare(echo).await;
    let config = config(&agent.vars());
    let relays = Arc::new(Pool::new(config.keys.clone(), Limits::default()));
    let app = App::with_ports(config, Arc::new(store), relays, Arc::new(model(&wire)), agent.clock.clock());
    app.warm_up().await;
    assert_eq!(wire.connections(), 1);
    app.store.read(&[Key::new("p", "s")]).await.unwrap();
    assert_eq!(wire.connections(), 1);
}
