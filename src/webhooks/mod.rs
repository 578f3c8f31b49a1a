//! Webhooks: which are open, who may call them, and how a call becomes a run.
//!
//! A webhook is open where `DIDACTYL_WEBHOOK_SECRETS` has a secret for its slug. `signature` tells an authentic request
//! from any other, and what its sender's repetitions have in common; `desk` stores it once. The routes are in
//! [`crate::http`].

pub(crate) mod desk;
pub(crate) mod signature;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::secret::Secret;
use crate::trigger::webhook::is_slug;

/// The webhooks that are open, by slug.
#[derive(Debug, Clone, Default)]
pub struct Webhooks(BTreeMap<String, Hook>);

/// How requests to a webhook are told to be its sender's.
#[derive(Debug, Clone)]
pub struct Hook {
    /// What proves it.
    pub form: Form,
    /// Each of them does: while a secret is changed, two are good.
    pub secrets: Vec<Secret>,
}

/// What proves that a request is its sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `X-Hub-Signature-256`: the body is signed.
    Github,
    /// `Stripe-Signature`: time and body are signed.
    Stripe,
    /// `Authorization: Bearer SECRET`: nothing is signed.
    Bearer,
}

/// How many requests a webhook takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In an hour (UTC).
    pub per_hour: u32,
    /// In a day (UTC).
    pub per_day: u32,
}

/// A shorter secret of a signature can be found by whoever has one request; a shorter token, by whoever tries.
const MIN_SIGNING_CHARS: usize = 12;
const MIN_TOKEN_CHARS: usize = 22;

/// An entry as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    form: Form,
    secret: Vec<String>,
}

impl Webhooks {
    /// Reads `{"slug":{"form":"github","secret":["…"]}}`.
    ///
    /// # Errors
    /// What is wrong, half a sentence. It tells entries by their places: any of their texts may be a secret.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let entries: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|_| "is not a JSON object".to_owned())?;
        let mut hooks = BTreeMap::new();
        for (i, (slug, entry)) in entries.into_iter().enumerate() {
            let fault = |fault: &str| format!("entry {} {fault}", i + 1);
            if !is_slug(&slug) {
                return Err(fault(
                    "has a slug that no webhook can have: 1 to 128 bytes without white space and `:`",
                ));
            }
            let Entry { form, secret } = serde_json::from_value(entry).map_err(|_| {
                fault(r#"is not {"form":"github","secret":["…"]} with form github, stripe or bearer"#)
            })?;
            let least = if form == Form::Bearer { MIN_TOKEN_CHARS } else { MIN_SIGNING_CHARS };
            if secret.is_empty() {
                return Err(fault("has no secret"));
            }
            if secret.iter().any(|secret| secret.chars().count() < least) {
                return Err(fault(&format!(
                    "has a secret of less than {least} characters: it could be guessed"
                )));
            }
            hooks.insert(slug, Hook { form, secrets: secret.into_iter().map(Secret::new).collect() });
        }
        Ok(Self(hooks))
    }

    /// The webhook of this slug, if it is open.
    #[must_use]
    pub fn get(&self, slug: &str) -> Option<&Hook> {
        self.0.get(slug)
    }

    /// The slugs, in order.
    pub fn slugs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All secrets.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.0.values().flat_map(|hook| &hook.secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_read_and_show_no_secret() {
        let hooks = Webhooks::parse(
            r#"{"ci":{"form":"github","secret":["SEKRIT-of-ci-1","SEKRIT-of-ci-2"]},"pay/eu":{"form":"stripe","secret":["whsec_SEKRIT"]}}"#,
        )
        .unwrap();
        assert_eq!(hooks.slugs().collect::<Vec<_>>(), ["ci", "pay/eu"]);
        assert_eq!(hooks.get("ci").map(|hook| (hook.form, hook.secrets.len())), Some((Form::Github, 2)));
        assert!(hooks.get("CI").is_none());
        assert!(!format!("{hooks:?}").contains("SEKRIT"));
    }

    #[test]
    fn each_fault_is_told_by_its_place_and_not_by_its_text() {
        let good = r#""ok":{"form":"github","secret":["long enough 1"]}"#;
        let faults: Vec<String> = [
            "[]".to_owned(),
            "SEKRIT".to_owned(),
            format!(r#"{{{good},"SEK RIT":{{"form":"github","secret":["x"]}}}}"#),
            format!(r#"{{{good},"a:b":{{"form":"github","secret":["x"]}}}}"#),
            format!(r#"{{{good},"a":{{"form":"SEKRIT","secret":["x"]}}}}"#),
            format!(r#"{{{good},"a":{{"form":"github","secret":"SEKRIT"}}}}"#),
            format!(r#"{{{good},"a":{{"form":"github","secret":[],"SEKRIT":1}}}}"#),
            format!(r#"{{{good},"a":{{"form":"github","secret":[]}}}}"#),
            format!(r#"{{{good},"a":{{"form":"stripe","secret":["long enough 1","SEKRIT"]}}}}"#),
            format!(r#"{{{good},"a":{{"form":"bearer","secret":["SEKRIT-twenty-one-cha"]}}}}"#),
        ]
        .iter()
        .map(|text| Webhooks::parse(text).unwrap_err())
        .collect();
        insta::assert_snapshot!(faults.join("\n"), @r#"
        is not a JSON object
        is not a JSON object
        entry 2 has a slug that no webhook can have: 1 to 128 bytes without white space and `:`
        entry 2 has a slug that no webhook can have: 1 to 128 bytes without white space and `:`
        entry 2 is not {"form":"github","secret":["…"]} with form github, stripe or bearer
        entry 2 is not {"form":"github","secret":["…"]} with form github, stripe or bearer
        entry 2 is not {"form":"github","secret":["…"]} with form github, stripe or bearer
        entry 2 has no secret
        entry 2 has a secret of less than 12 characters: it could be guessed
        entry 2 has a secret of less than 22 characters: it could be guessed
        "#);
    }
}
