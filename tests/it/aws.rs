//! SQS and SSM, answered by the emulator: the queue, and secrets that lie in parameters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use aws_sdk_ssm::types::ParameterType;
use didactyl::app::App;
use didactyl::aws::{Aws, sqs};
use didactyl::chat::{ChatAnswer, ChatRequest, Message, Params, Role, ToolChoice};
use didactyl::clock::Clock;
use didactyl::config::Config;
use didactyl::credentials::Credentials;
use didactyl::environment::Environment;
use didactyl::llm::openai::OpenAi;
use didactyl::llm::scripted::{Answer, Asked, Scripted};
use didactyl::llm::{Llm, LlmError};
use didactyl::queue::Queue;
use didactyl::record::run_id;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::agent::{Log, secret};
use crate::store::beds;

/// The emulator's clients, or `None` where none runs.
async fn aws() -> Option<Aws> {
    didactyl::install_crypto_provider();
    beds::emulator().map(|_| Aws::default())
}

/// A name that no other test has.
fn fresh(what: &str) -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("{what}-{}-{}", std::process::id(), NAMES.fetch_add(1, Ordering::SeqCst))
}

async fn create_queue(client: &aws_sdk_sqs::Client) -> String {
    client.create_queue().queue_name(fresh("work")).send().await.unwrap().queue_url.unwrap()
}

#[tokio::test]
async fn a_queued_run_comes_back_by_its_id_and_not_before_its_delay() {
    let Some(aws) = aws().await else { return };
    let client = aws_sdk_sqs::Client::new(aws.config().await);
    let url = create_queue(&client).await;
    let queue = sqs::Sqs::new(aws.config().await, &url);
    let (now, later) = (run_id("dm:1"), run_id("dm:2"));
    queue.enqueue(&now, Duration::ZERO).await.unwrap();
    queue.enqueue(&later, Duration::from_secs(24 * 60 * 60)).await.unwrap();

    let delayed = QueueAttributeName::ApproximateNumberOfMessagesDelayed;
    let attributes = client.get_queue_attributes().queue_url(&url).attribute_names(delayed.clone());
    let attributes = attributes.send().await.unwrap().attributes.unwrap();
    assert_eq!(attributes[&delayed], "1");
    let received = client.receive_message().queue_url(&url).max_number_of_messages(10).send().await.unwrap();
    let bodies: Vec<_> = received.messages().iter().filter_map(|message| message.body()).collect();
    assert_eq!(bodies.iter().filter_map(|body| sqs::parse_body(body)).collect::<Vec<_>>(), [now]);
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_unavailable() {
    let Some(aws) = aws().await else { return };
    let url = format!("{}/123456789012/{}", beds::emulator().unwrap(), fresh("absent"));
    let queue = sqs::Sqs::new(aws.config().await, url);
    let error = queue.enqueue(&run_id("dm:1"), Duration::ZERO).await.unwrap_err().to_string();
    let expected = "the queue is unavailable: SQS: AWS.SimpleQueueService.NonExistentQueue: ";
    assert!(error.starts_with(expected), "{error}");
}

#[tokio::test]
async fn the_agent_has_the_queue_that_its_configuration_names() {
    let Some(aws) = aws().await else { return };
    let client = aws_sdk_sqs::Client::new(aws.config().await);
    let url = create_queue(&client).await;
    let mut vars = vars();
    vars.insert("DIDACTYL_STORE".to_owned(), "sqlite::memory:".to_owned());
    let without = App::new(config(&vars).await).await.unwrap();
    assert!(without.queue.is_none());

    vars.insert("DIDACTYL_QUEUE_URL".to_owned(), url.clone());
    let app = App::new(config(&vars).await).await.unwrap();
    app.queue.unwrap().enqueue(&run_id("dm:1"), Duration::ZERO).await.unwrap();
    let received = client.receive_message().queue_url(&url).send().await.unwrap();
    assert_eq!(received.messages().len(), 1);
}

type Vars = BTreeMap<String, String>;

/// What an agent needs.
fn vars() -> Vars {
    [
        ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
        ("DIDACTYL_RELAYS", "ws://127.0.0.1:1".to_owned()),
        ("DIDACTYL_LLM", "scripted/test".to_owned()),
        ("SCRIPTED_BASE_URL", "http://127.0.0.1:1/v1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn environment(vars: &Vars) -> Environment {
    Environment::new(vars.clone(), Aws::default())
}

async fn config(vars: &Vars) -> Config {
    environment(vars).config().await.unwrap()
}

/// Parameters under a name of their own, one for each variable.
struct Parameters {
    client: aws_sdk_ssm::Client,
    path: String,
}

impl Parameters {
    async fn new(aws: &Aws) -> Self {
        Self { client: aws_sdk_ssm::Client::new(aws.config().await), path: format!("/{}", fresh("didactyl")) }
    }

    /// Puts a value in the parameter of this variable, and makes the variable refer to it.
    async fn put(&self, vars: &mut Vars, variable: &str, value: &str) {
        let name = format!("{}/{variable}", self.path);
        let put = self.client.put_parameter().name(&name).value(value).overwrite(true);
        put.r#type(ParameterType::SecureString).send().await.unwrap();
        vars.insert(variable.to_owned(), format!("ssm:{name}"));
    }

    async fn delete(&self, variable: &str) {
        self.client.delete_parameter().name(format!("{}/{variable}", self.path)).send().await.unwrap();
    }
}

#[tokio::test]
async fn every_variable_may_lie_in_a_parameter_and_they_may_be_more_than_one_call_takes() {
    let Some(aws) = aws().await else { return };
    let parameters = Parameters::new(&aws).await;
    let mut vars = vars();
    let keys = ["OPENAI", "GROQ", "XAI", "MISTRAL", "GEMINI", "TOGETHER", "DEEPSEEK", "ANTHROPIC"];
    vars.extend(keys.map(|key| (format!("{key}_API_KEY"), format!("key of {key}"))));
    for (variable, value) in vars.clone() {
        parameters.put(&mut vars, &variable, &value).await;
    }
    assert!(vars.values().all(|value| value.starts_with("ssm:/")) && vars.len() > 10);

    let config = config(&vars).await;
    assert_eq!(config.keys, secret(1));
    assert_eq!(config.admins, [secret(2).public_key()]);
    for key in keys {
        let model = config.providers.model(&format!("{key}/m").parse().unwrap()).unwrap();
        assert_eq!(model.provider.key.unwrap().expose(), format!("key of {key}"));
    }
}

#[tokio::test]
async fn parameters_that_are_not_there_are_told_with_all_other_faults() {
    let Some(aws) = aws().await else { return };
    let parameters = Parameters::new(&aws).await;
    let mut vars = vars();
    vars.remove("DIDACTYL_RELAYS");
    parameters.put(&mut vars, "DIDACTYL_ADMIN", "SEKRIT, which is no key").await;
    for (variable, value) in [("DIDACTYL_NSEC", "ssm:/absent/nsec"), ("SCRIPTED_API_KEY", "ssm:/absent/key")]
    {
        vars.insert(variable.to_owned(), value.to_owned());
    }
    let error = environment(&vars).config().await.unwrap_err();
    insta::assert_snapshot!(error, @r"
    the configuration has 4 fault(s):
    - DIDACTYL_NSEC names the SSM parameter /absent/nsec, which does not exist in this account and region: create it as a SecureString
    - SCRIPTED_API_KEY names the SSM parameter /absent/key, which does not exist in this account and region: create it as a SecureString
    - DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
    - DIDACTYL_RELAYS is not set: give at least one relay
    ");
}

/// A model that knows one key; its client, over secrets that lie in parameters; and the clock by which they age.
struct Rotation {
    parameters: Parameters,
    vars: Vars,
    model: Scripted,
    credentials: Arc<Credentials>,
    llm: OpenAi,
    now_ms: Arc<AtomicU64>,
}

impl Rotation {
    /// The model knows `right`, the parameter says `first`.
    async fn start(right: &'static str, first: &str) -> Option<Self> {
        let aws = aws().await?;
        let model = Scripted::start(move |asked: &Asked| match asked.authorization.as_deref() {
            Some(said) if said == format!("Bearer {right}") => Answer::Text("hello".to_owned()),
            _ => Answer::Refusal(401, Vec::new(), r#"{"error":{"message":"bad key"}}"#.to_owned()),
        });
        let model = model.await.unwrap();
        let parameters = Parameters::new(&aws).await;
        let mut vars = vars();
        vars.insert("SCRIPTED_BASE_URL".to_owned(), model.base_url.clone());
        parameters.put(&mut vars, "DIDACTYL_NSEC", &secret(1).secret_key().to_secret_hex()).await;
        parameters.put(&mut vars, "SCRIPTED_API_KEY", first).await;
        parameters.put(&mut vars, "DIDACTYL_API_TOKEN", &token(1)).await;

        let now_ms = Arc::new(AtomicU64::new(1_000));
        let time = Arc::clone(&now_ms);
        let clock = Clock::from_fn(move || time.load(Ordering::SeqCst));
        let environment = environment(&vars);
        let config = environment.config().await.unwrap();
        let credentials = Arc::new(Credentials::new(&config, environment, clock));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let llm = OpenAi::with_credentials(client, Arc::clone(&credentials));
        Some(Self { parameters, vars, model, credentials, llm, now_ms })
    }

    async fn put(&mut self, variable: &str, value: &str) {
        self.parameters.put(&mut self.vars, variable, value).await;
    }

    async fn ask(&self) -> Result<ChatAnswer, LlmError> {
        let (messages, params) = ([Message::text(Role::User, "hi")], Params::default());
        let request = ChatRequest {
            model: "scripted/test",
            messages: &messages,
            tools: &[],
            tool_choice: ToolChoice::Auto,
            params: &params,
        };
        self.llm.complete(&request, Instant::now() + Duration::from_secs(60)).await
    }

    /// The keys that the model was asked with.
    fn keys(&self) -> Vec<String> {
        let said = self.model.requests().into_iter().map(|asked| asked.authorization.unwrap());
        said.map(|said| said.trim_start_matches("Bearer ").to_owned()).collect()
    }

    fn knows(&self, token: &str) -> bool {
        self.credentials.api_tokens().iter().any(|known| known.sha256 == *Sha256::digest(token))
    }
}

fn token(number: u8) -> String {
    format!("token-{number:032}")
}

#[tokio::test]
async fn a_refused_key_that_was_changed_meanwhile_is_replaced_and_the_request_repeated() {
    let Some(mut rotation) = Rotation::start("new", "old").await else { return };
    rotation.put("SCRIPTED_API_KEY", "new").await;
    assert_eq!(rotation.ask().await.unwrap().content, "hello");
    assert_eq!(rotation.ask().await.unwrap().content, "hello");
    assert_eq!(rotation.keys(), ["old", "new", "new"]);
}

#[tokio::test]
async fn the_refusal_of_a_key_that_is_still_the_newest_stands() {
    let Some(rotation) = Rotation::start("right", "wrong").await else { return };
    assert!(matches!(rotation.ask().await, Err(LlmError::Account(_))));
    assert_eq!(rotation.keys(), ["wrong"]);
}

#[tokio::test]
async fn a_changed_key_is_tried_once() {
    let Some(mut rotation) = Rotation::start("right", "wrong").await else { return };
    rotation.put("SCRIPTED_API_KEY", "wrong too").await;
    assert!(matches!(rotation.ask().await, Err(LlmError::Account(_))));
    assert_eq!(rotation.keys(), ["wrong", "wrong too"]);
}

#[tokio::test]
async fn secrets_are_read_again_after_ten_minutes_and_not_before() {
    let Some(mut rotation) = Rotation::start("new", "old").await else { return };
    rotation.put("SCRIPTED_API_KEY", "new").await;
    rotation.put("DIDACTYL_API_TOKEN", &token(2)).await;
    rotation.now_ms.store(1_000 + 599_999, Ordering::SeqCst);
    rotation.credentials.refresh().await;
    assert!(rotation.knows(&token(1)) && !rotation.knows(&token(2)));

    rotation.now_ms.store(1_000 + 600_000, Ordering::SeqCst);
    rotation.credentials.refresh().await;
    assert!(rotation.knows(&token(2)) && !rotation.knows(&token(1)));
    assert_eq!(rotation.ask().await.unwrap().content, "hello");
    assert_eq!(rotation.keys(), ["new"]);

    rotation.put("DIDACTYL_API_TOKEN", &token(3)).await;
    rotation.now_ms.store(1_000 + 1_199_999, Ordering::SeqCst);
    rotation.credentials.refresh().await;
    assert!(rotation.knows(&token(2)));
}

#[tokio::test]
async fn secrets_that_cannot_be_read_again_stay_as_they_were() {
    let Some(rotation) = Rotation::start("old", "old").await else { return };
    rotation.parameters.delete("SCRIPTED_API_KEY").await;
    rotation.now_ms.store(1_000_000, Ordering::SeqCst);
    let log = Log::default();
    let logged = log.clone().start();
    rotation.credentials.refresh().await;
    drop(logged);
    assert_eq!(rotation.ask().await.unwrap().content, "hello");
    let log = log.text();
    assert!(log.contains("SCRIPTED_API_KEY names the SSM parameter"), "{log}");
}

#[tokio::test]
async fn a_changed_key_of_the_agent_waits_for_the_next_cold_start_and_is_warned_of_without_showing_it() {
    let Some(mut rotation) = Rotation::start("old", "old").await else { return };
    let other = secret(3).secret_key().to_secret_hex();
    rotation.put("DIDACTYL_NSEC", &other).await;
    rotation.now_ms.store(1_000_000, Ordering::SeqCst);
    let log = Log::default();
    let logged = log.clone().start();
    rotation.credentials.refresh().await;
    drop(logged);
    let log = log.text();
    assert!(log.contains("DIDACTYL_NSEC has changed"), "{log}");
    assert!(!log.contains(&other) && !log.contains(&secret(1).secret_key().to_secret_hex()), "{log}");
}
