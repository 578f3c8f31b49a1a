//! SSM parameters, read by name. What they are for is [`crate::environment`]'s affair.
//!
//! API: <https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html>

use std::collections::{BTreeMap, BTreeSet};

use aws_config::SdkConfig;
use aws_sdk_ssm::Client;
use aws_sdk_ssm::types::Parameter;
use futures_util::future::join_all;

use super::explain;
use crate::secret::Secret;

/// The most names of one `GetParameters`.
const NAMES: usize = 10;

/// The longest name or ARN with a selector that SSM takes.
const MAX_NAME_BYTES: usize = 2048;

/// What is said of a name that SSM does not know.
const MISSING: &str = "does not exist in this account and region: create it as a SecureString";

/// What was asked for, by name: the decrypted value, or why there is none.
pub(crate) type Values = BTreeMap<String, Result<Secret, String>>;

/// Whether `name` can be a parameter's name or ARN, with or without `:VERSION` or `:LABEL`. One that cannot would spoil
/// the whole call.
pub(crate) fn is_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte);
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(known)
}

/// Reads `names`, ten in a call, all calls at once.
pub(crate) async fn read(config: &SdkConfig, names: &BTreeSet<String>) -> Values {
    let client = Client::new(config);
    let names: Vec<&String> = names.iter().collect();
    let calls = names.chunks(NAMES).map(|names| read_some(&client, names));
    join_all(calls).await.into_iter().flatten().collect()
}

async fn read_some(client: &Client, names: &[&String]) -> Values {
    let call = client.get_parameters().with_decryption(true);
    let call = names.iter().fold(call, |call, name| call.names(*name));
    let answer = call.send().await.map_err(|error| explain("SSM", error));
    let value = |name: &str| match &answer {
        Ok(answer) => {
            let found = answer.parameters().iter().find(|parameter| is_named(parameter, name));
            let value = found.and_then(|parameter| parameter.value.clone());
            value.map(Secret::new).ok_or_else(|| MISSING.to_owned())
        }
        Err(why) => Err(format!("cannot be read: {why}")),
    };
    names.iter().map(|name| ((*name).clone(), value(name))).collect()
}

/// Whether `parameter` is the answer to `asked`: a selector comes back apart from the name.
fn is_named(parameter: &Parameter, asked: &str) -> bool {
    let selector = parameter.selector().unwrap_or_default().trim_start_matches(':');
    let names = [parameter.name(), parameter.arn()];
    names.into_iter().flatten().any(|name| {
        let rest = asked.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':') == Some(selector))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_by_name_or_arn_with_its_selector() {
        let arn = "arn:aws:ssm:eu-central-1:123456789012:parameter/didactyl/nsec";
        let parameter = |selector: Option<&str>| {
            let parameter = Parameter::builder().name("/didactyl/nsec").arn(arn);
            parameter.set_selector(selector.map(Into::into)).build()
        };
        for (selector, asked, expected) in [
            (None, "/didactyl/nsec", true),
            (None, arn, true),
            (None, "/didactyl/nsec2", false),
            (None, "/didactyl/nsec:3", false),
            (Some(":3"), "/didactyl/nsec:3", true),
            (Some("3"), "/didactyl/nsec:3", true),
            (Some(":3"), "/didactyl/nsec:4", false),
            (Some(":3"), &format!("{arn}:3"), true),
        ] {
            assert_eq!(is_named(&parameter(selector), asked), expected, "{asked} {selector:?}");
        }
    }

    #[test]
    fn what_ssm_would_refuse_is_no_name() {
        for name in ["/didactyl/nsec", "nsec.prod_1-a", "/a:3", "arn:aws:ssm:eu-central-1:1:parameter/a"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "a b", "sk-ü", "a,b", "a=b", &"a".repeat(2049)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
