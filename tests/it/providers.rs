//! What providers answer, through HTTP: a response in the shape of each family, plain and streamed, and each quirk.
//! Written by hand after the providers' documentation; no key was used.

use std::time::Duration;

use didactyl::chat::{
    ChatAnswer, ChatRequest, FinishReason, Message, Params, Role, ToolCall, ToolChoice, ToolSchema, Usage,
};
use didactyl::llm::catalogue::{Chain, Custom, Providers};
use didactyl::llm::openai::OpenAi;
use didactyl::llm::scripted::{Answer, Asked, Reply, Scripted};
use didactyl::llm::{Llm, LlmError};
use serde_json::{Value, json};
use tokio::time::Instant;

mod families;
mod whims;

/// A model that the test plays, and the real client.
struct Bed {
    server: Scripted,
    client: OpenAi,
}

impl Drop for Bed {
    fn drop(&mut self) {
        crate::agent::record(&self.server);
    }
}

impl Bed {
    /// The model's settings are those of `DIDACTYL_MODELS`.
    async fn new(settings: &str, script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        didactyl::install_crypto_provider();
        let server = Scripted::start(script).await.unwrap();
        let chain: Chain = "bed/m".parse().unwrap();
        let custom = Custom::parse(&format!(r#"{{"models": {{"bed/m": {settings}}}}}"#)).unwrap();
        let url = server.base_url.clone();
        let lookup = |name: &str| (name == "BED_BASE_URL").then(|| url.clone());
        let providers = Providers::with_custom(&chain, custom, &lookup);
        let client = OpenAi::new(reqwest::Client::builder().no_proxy().build().unwrap(), providers);
        Self { server, client }
    }

    /// One that answers with the same each time.
    async fn always(settings: &str, reply: Reply) -> Self {
        Self::new(settings, move |_| Answer::Raw(reply.clone())).await
    }

    async fn ask(&self) -> Result<ChatAnswer, LlmError> {
        self.ask_for(Duration::from_secs(60)).await
    }

    async fn ask_for(&self, time: Duration) -> Result<ChatAnswer, LlmError> {
        let tool = ToolSchema {
            name: "time".into(),
            description: "Tells the time.".into(),
            parameters: json!({"type": "object", "properties": {}}),
        };
        let request = ChatRequest {
            model: "bed/m",
            messages: &[Message::text(Role::User, "hi")],
            tools: &[tool],
            tool_choice: ToolChoice::Auto,
            params: &Params { temperature: Some(0.5), max_tokens: Some(512), seed: Some(7) },
        };
        let answer = self.client.complete(&request, Instant::now() + time).await;
        assert_eq!(self.server.refusals(), Vec::<String>::new());
        answer
    }
}

const PLAIN: &str = r#"{"stream": false}"#;
const STREAMED: &str = r#"{"stream": true}"#;

fn text(content: &str, usage: Option<Usage>) -> ChatAnswer {
    ChatAnswer {
        content: content.into(),
        tool_calls: vec![],
        finish_reason: FinishReason::Stop,
        usage,
        model: "bed/m".into(),
    }
}

fn calls(calls: &[(&str, &str, &str)], usage: Option<Usage>) -> ChatAnswer {
    let call = |(id, name, arguments): &(&str, &str, &str)| ToolCall::new(*id, *name, *arguments);
    ChatAnswer {
        tool_calls: calls.iter().map(call).collect(),
        finish_reason: FinishReason::ToolCalls,
        ..text("", usage)
    }
}

fn used(input: u64, cached: Option<u64>, output: u64) -> Option<Usage> {
    Some(Usage { input_tokens: Some(input), cached_input_tokens: cached, output_tokens: Some(output) })
}

/// A chunk whose only choice is this one.
fn chunk(delta: Value, finish_reason: Value) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
}
