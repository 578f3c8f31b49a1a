//! DynamoDB's bad days, which no emulator has: contention, throttling, half an answer. A server on loopback plays them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use didactyl::aws::Aws;
use didactyl::clock::Clock;
use didactyl::store::dynamodb::DynamoDb;
use didactyl::store::{Expect, Key, Store, StoreError, Write};
use serde_json::{Value, json};

use super::beds;

/// What the table will answer, one call after the other, and what it was asked.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<(StatusCode, String)>>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Script {
    fn then(self, status: u16, body: impl ToString) -> Self {
        let answer = (StatusCode::from_u16(status).unwrap(), body.to_string());
        self.answers.lock().unwrap().push_back(answer);
        self
    }

    fn then_error(self, code: &str) -> Self {
        self.then(
            400,
            json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{code}"), "message": "why"}),
        )
    }

    /// A transaction that ended for these reasons, one for each of its writes.
    fn then_cancelled(self, reasons: Value) -> Self {
        let code = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException";
        self.then(400, json!({"__type": code, "CancellationReasons": reasons}))
    }

    /// A store whose table plays this script.
    async fn play(&self) -> DynamoDb {
        async fn answer(State(script): State<Script>, body: Bytes) -> (StatusCode, String) {
            script.asked.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            script.answers.lock().unwrap().pop_front().expect("the script has ended")
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        DynamoDb::new(beds::client(&endpoint), "table", Clock::from_fn(|| 1_000_000))
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

fn put(sort: &str) -> Write {
    Write::put(Key::new("p", sort), Expect::Absent, vec![1], None)
}

fn item(sort: &str, value: &str) -> Value {
    json!({"pk": {"S": "p"}, "sk": {"S": sort}, "v": {"N": "3"}, "val": {"B": value}})
}

#[tokio::test]
async fn a_write_that_meets_another_transaction_is_tried_again() {
    let script = Script::default()
        .then_cancelled(json!([{"Code": "None"}, {"Code": "TransactionConflict"}]))
        .then(200, "{}")
        .then_error("TransactionConflictException")
        .then(200, "{}");
    let store = script.play().await;
    store.write(&[put("a"), put("b")]).await.unwrap();
    store.write(&[put("c")]).await.unwrap();

    let asked = script.asked();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[0]["TransactItems"], asked[1]["TransactItems"]);
    // The first was cancelled: with its token, the second would be told so again.
    assert_ne!(asked[0]["ClientRequestToken"], asked[1]["ClientRequestToken"]);
    assert_eq!(asked[2], asked[3]);
}

/// The claim is a transaction: this is how an overloaded table refuses it.
#[tokio::test]
async fn a_transaction_that_is_cancelled_for_a_throttle_is_tried_again() {
    let script = Script::default()
        .then_cancelled(json!([{"Code": "None"}, {"Code": "ThrottlingError"}]))
        .then_cancelled(json!([{"Code": "ProvisionedThroughputExceeded"}, {"Code": "None"}]))
        .then(200, "{}");
    script.play().await.write(&[put("a"), put("b")]).await.unwrap();
    assert_eq!(script.asked().len(), 3);
}

#[tokio::test]
async fn contention_without_end_is_unavailable() {
    let script =
        (0..8).fold(Script::default(), |script, _| script.then_error("TransactionConflictException"));
    let store = script.play().await;
    let error = store.write(&[put("a")]).await.unwrap_err();
    insta::assert_snapshot!(error, @"the store is unavailable: other transactions or a throttle hold this write up");
}

#[tokio::test]
async fn a_refused_condition_counts_more_than_contention() {
    let script = Script::default().then_cancelled(json!([
        {"Code": "TransactionConflict"},
        {"Code": "ConditionalCheckFailed", "Item": item("b", "AQ==")},
    ]));
    let store = script.play().await;
    let error = store.write(&[put("a"), put("b")]).await.unwrap_err();
    let StoreError::Conflict { key, current } = error else { panic!("{error}") };
    assert_eq!((key, current.unwrap().version), (Key::new("p", "b"), 3));
}

#[tokio::test]
async fn the_rest_of_a_batch_is_asked_for_again() {
    let rest = json!({"table": {"ConsistentRead": true, "Keys": [{"pk": {"S": "p"}, "sk": {"S": "b"}}]}});
    let script = Script::default()
        .then(200, json!({"Responses": {"table": [item("a", "AQ==")]}, "UnprocessedKeys": rest}))
        .then(200, json!({"Responses": {}, "UnprocessedKeys": rest}))
        .then(200, json!({"Responses": {"table": [item("b", "Ag==")]}, "UnprocessedKeys": {}}));
    let store = script.play().await;
    let rows = store.read(&["a", "b", "c"].map(|sort| Key::new("p", sort))).await.unwrap();
    let values: Vec<_> = rows.into_iter().map(|row| row.map(|row| row.value)).collect();
    assert_eq!(values, [Some(vec![1]), Some(vec![2]), None]);
    assert_eq!(script.asked()[2]["RequestItems"], rest);
}

#[tokio::test]
async fn errors_say_whether_a_retry_can_help_and_show_no_values() {
    let secret = "c2VjcmV0";
    let script = Script::default()
        .then_error("ThrottlingException")
        .then_error("ResourceNotFoundException")
        .then_error("AccessDeniedException")
        .then_error("ValidationException")
        .then(500, json!({"message": "why", "Item": item("a", secret)}))
        .then(200, json!({"Item": item("a", secret)}).to_string().replace('}', ""));
    let store = script.play().await;
    let mut errors = Vec::new();
    for _ in 0..6 {
        errors.push(store.read(&[Key::new("p", "a")]).await.unwrap_err().to_string());
    }
    insta::assert_snapshot!(errors.join("\n"), @r"
    the store is unavailable: DynamoDB: ThrottlingException: why (request unknown)
    the store is unavailable: DynamoDB: ResourceNotFoundException: why (request unknown)
    the store is unavailable: DynamoDB: AccessDeniedException: why (request unknown)
    the store refused the call: DynamoDB: ValidationException: why (request unknown)
    the store is unavailable: DynamoDB: an unreadable answer with status 500
    the store is unavailable: DynamoDB: an unreadable answer with status 200
    ");
}

#[tokio::test]
async fn a_cancelled_transaction_says_why() {
    let script = Script::default()
        .then_cancelled(json!([{"Code": "None"}, {"Code": "ItemCollectionSizeLimitExceeded"}]))
        .then_cancelled(json!([{"Code": "None"}, {"Code": "ValidationError", "Message": "why"}]));
    let store = script.play().await;
    let mut errors = Vec::new();
    for _ in 0..2 {
        errors.push(store.write(&[put("a"), put("b")]).await.unwrap_err().to_string());
    }
    insta::assert_snapshot!(errors.join("\n"), @r"
    the store is unavailable: DynamoDB cancelled the transaction: None, ItemCollectionSizeLimitExceeded
    the store refused the call: DynamoDB: why
    ");
}

#[tokio::test]
async fn a_table_out_of_reach_is_unavailable() {
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let store = DynamoDb::new(beds::client(&endpoint), "table", Clock::system());
    let error = store.read(&[Key::new("p", "a")]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)));
    assert!(error.to_string().contains("Connection refused"), "{error}");
}

/// The client that the function runs with, which takes its endpoint from the environment.
#[tokio::test]
async fn the_environment_names_the_endpoint() {
    let Some(endpoint) = beds::emulator() else { return };
    let table = beds::create_table(&beds::client(&endpoint)).await;
    let client = Client::new(Aws::default().config().await);
    let store = DynamoDb::new(client, table, Clock::system());
    store.write(&[put("a")]).await.unwrap();
    assert!(store.read(&[Key::new("p", "a")]).await.unwrap()[0].is_some());
}
