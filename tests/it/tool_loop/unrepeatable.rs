//! A tool whose calls are not made twice: where nobody knows what came of one, the model is told so, and the record says it.

use std::future::pending;
use std::sync::Mutex;

use async_trait::async_trait;
use didactyl::tools::registry::Registry;
use didactyl::tools::{Class, Tool, ToolContext, ToolError};
use didactyl::trigger::Tier;

use super::*;

/// What the model is told.
const UNKNOWN: &str = "it is not known whether this was done";

/// What comes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// It knows that nothing was done.
    Refused,
    /// It does not know.
    Breaks,
    Hangs,
}

/// Pays, and can be called only so.
#[derive(Clone)]
struct Pay {
    fate: Fate,
    /// The calls so far.
    calls: Arc<Mutex<Vec<Value>>>,
}

#[async_trait]
impl Tool for Pay {
    fn name(&self) -> &'static str {
        "pay"
    }
    fn description(&self) -> &'static str {
        "Pays."
    }
    fn parameters(&self) -> Value {
        json!({"type": "object", "properties": {"to": {"type": "string"}}})
    }
    fn class(&self) -> Class {
        Class::Write
    }
    fn lowest_tier(&self) -> Tier {
        Tier::Admin
    }
    fn is_repeatable(&self) -> bool {
        false
    }
    async fn call(&self, arguments: Value, _: &ToolContext<'_>) -> Result<Value, ToolError> {
        self.calls.lock().unwrap().push(arguments["to"].clone());
        match self.fate {
            Fate::Done => Ok(json!("paid")),
            Fate::Refused => Err(ToolError::Model("nothing was paid".to_owned())),
            Fate::Breaks => Err(ToolError::Run(Error::Transient("the answer was lost".to_owned()))),
            Fate::Hangs => pending().await,
        }
    }
}

/// An agent whose model pays two people in one turn.
async fn scene(fate: Fate) -> (Scene, Arc<Mutex<Vec<Value>>>) {
    let pay = |to: &str| call("", "pay", &json!({"to": to}).to_string());
    let moves = vec![Move::Call(vec![pay("a"), pay("b")]), Move::Say("done".into())];
    let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
    let calls = Arc::default();
    scene.app.tools = Registry::of(vec![Box::new(Pay { fate, calls: Arc::clone(&calls) })]);
    (scene, calls)
}

/// The results that the model was told at last.
fn told(scene: &Scene) -> Vec<Value> {
    let requests = scene.script.requests();
    let messages = requests.last().unwrap()["messages"].as_array().unwrap();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results.map(|result| serde_json::from_str(result["content"].as_str().unwrap()).unwrap()).collect()
}

fn is_unknown(result: &Value) -> bool {
    result["success"] == false && result["error"].as_str().is_some_and(|error| error.starts_with(UNKNOWN))
}

fn unknown(count: usize) -> Vec<(u32, String)> {
    vec![(1, "pay".to_owned()); count]
}

#[test]
fn a_call_whose_outcome_is_known_is_made_and_told_like_any_other() {
    simulated(async {
        for (fate, result) in [
            (Fate::Done, json!({"success": true, "content": "paid"})),
            (Fate::Refused, json!({"success": false, "error": "nothing was paid"})),
        ] {
            let (mut scene, calls) = scene(fate).await;
            assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "done");
            assert_eq!(*calls.lock().unwrap(), ["a", "b"]);
            assert_eq!(told(&scene), [result.clone(), result]);
            assert_eq!(scene.claim.record.unknown_calls, unknown(0));
        }
    });
}

#[test]
fn a_call_that_hangs_is_told_as_unknown_and_stands_in_the_record() {
    simulated(async {
        let (mut scene, calls) = scene(Fate::Hangs).await;
        assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "done");
        assert_eq!(*calls.lock().unwrap(), ["a", "b"]);
        assert!(told(&scene).iter().all(is_unknown), "{:?}", told(&scene));
        assert_eq!(scene.claim.record.unknown_calls, unknown(2));
    });
}

#[test]
fn a_call_that_broke_is_not_made_again_by_whoever_takes_the_run_over() {
    simulated(async {
        let (mut scene, calls) = scene(Fate::Breaks).await;
        let error = scene.drive(&[], Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.to_string(), "the answer was lost");
        assert_eq!((calls.lock().unwrap().len(), scene.claim.record.unknown_calls.clone()), (1, unknown(1)));

        scene.restart();
        scene.app.tools = Registry::of(vec![Box::new(Pay { fate: Fate::Done, calls: Arc::clone(&calls) })]);
        assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "done");
        assert_eq!(*calls.lock().unwrap(), ["a", "b"]);
        let told = told(&scene);
        assert!(is_unknown(&told[0]) && told[1] == json!({"success": true, "content": "paid"}), "{told:?}");
        assert_eq!(scene.claim.record.unknown_calls, unknown(1));
    });
}
