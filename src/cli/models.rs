//! `didactyl models`: which models the present environment can use, and why not the others. Asks no provider and prints
//! no key.

use std::io::Write;

use super::CliResult;
use crate::llm::catalogue::{Custom, KEYWORDS, ModelId, Price, Providers};

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Lists the chain, the keywords, the providers and the known models; fails where the chain has no usable model.
pub(super) fn run(env: Lookup<'_>, out: &mut dyn Write) -> CliResult {
    let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
    let custom = set("DIDACTYL_MODELS").map_or(Ok(Custom::default()), |text| Custom::parse(&text));
    let custom = custom.map_err(|fault| format!("DIDACTYL_MODELS {fault}"))?;
    let chain = set("DIDACTYL_LLM").map(|text| custom.chain(&text)).transpose();
    let chain = chain.map_err(|fault| format!("DIDACTYL_LLM: {fault}"))?;
    let providers = Providers::with_custom(&chain.clone().unwrap_or_default(), custom, env);

    match &chain {
        Some(chain) => {
            writeln!(out, "chain (DIDACTYL_LLM)")?;
            for id in chain.entries() {
                show(&providers, id, out)?;
            }
        }
        None => writeln!(out, "chain: DIDACTYL_LLM is not set; give for example openai/gpt-5-mini")?,
    }
    writeln!(out, "\nkeywords (DIDACTYL_MODELS)")?;
    for keyword in KEYWORDS {
        let meaning = match providers.keyword(keyword) {
            Some(chain) => chain.to_string(),
            None if keyword == "private" => "not configured: stands for no model".to_owned(),
            None => "not configured: stands for the chain".to_owned(),
        };
        writeln!(out, "       {keyword:<13} {meaning}")?;
    }
    writeln!(out, "\nproviders")?;
    for (name, resolved) in providers.all() {
        match resolved {
            Ok(provider) => writeln!(out, "  yes  {name:<13} {}", provider.base_url)?,
            Err(lacks) => writeln!(out, "  no   {name:<13} {lacks}")?,
        }
    }
    writeln!(out, "\nmodels with a known size and price; any other may be named too")?;
    for id in providers.known_models() {
        show(&providers, &id, out)?;
    }
    match chain {
        Some(chain) => Ok(providers.first_usable(&chain).map(drop)?),
        None => Err("no model is configured".into()),
    }
}

fn show(providers: &Providers, id: &ModelId, out: &mut dyn Write) -> std::io::Result<()> {
    let info = providers.info(id);
    let price = if info.is_price_known { dollars(&info.price) } else { "price unknown".to_owned() };
    let (usable, lacks) = match providers.model(id) {
        Ok(_) => ("yes", String::new()),
        Err(lacks) => ("no ", format!("  {lacks}")),
    };
    writeln!(out, "  {usable}  {id:<34} {:>9} tokens  {price}{lacks}", info.context_window)
}

/// Input, cached input and output per million tokens.
fn dollars(price: &Price) -> String {
    let micro = |price: u64| {
        let cents = format!("{}.{:06}", price / 1_000_000, price % 1_000_000);
        let (whole, rest) = cents.split_at(cents.len().saturating_sub(4));
        format!("{whole}{}", rest.trim_end_matches('0'))
    };
    format!("${} / ${} / ${}", micro(price.input), micro(price.cached_input), micro(price.output))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(vars: &[(&str, &str)]) -> (String, Option<String>) {
        let env = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut out = Vec::new();
        let fault = run(&env, &mut out).err().map(|fault| fault.to_string());
        (String::from_utf8(out).unwrap(), fault)
    }

    #[test]
    fn what_can_be_used_is_listed_and_what_the_others_lack() {
        let models = r#"{
            "providers": {"home": {"base_url": "http://10.0.0.7:8000/v1"}},
            "models": {"home/qwen3": {"context_window": 16384, "input_usd": 0, "output_usd": 0.0725}},
            "keywords": {"private": "home/qwen3"}
        }"#;
        let (list, fault) = listed(&[
            ("DIDACTYL_LLM", "openai/gpt-5-mini, private, groq/other"),
            ("DIDACTYL_MODELS", models),
            ("GROQ_API_KEY", "gsk-SEKRIT"),
        ]);
        assert_eq!(fault, None);
        assert!(!list.contains("SEKRIT"), "{list}");
        insta::assert_snapshot!(list, @"");
    }

    #[test]
    fn without_a_usable_model_the_command_fails_and_says_why() {
        assert_eq!(listed(&[]).1.unwrap(), "no model is configured");
        let lacks = "no model of the chain can be used: openai/gpt-5-mini: OPENAI_API_KEY is not set";
        assert_eq!(listed(&[("DIDACTYL_LLM", "gpt-5-mini")]).1.unwrap(), lacks);
        let fault = listed(&[("DIDACTYL_MODELS", r#"{"keywords": {"cheap": 1}}"#)]).1.unwrap();
        assert!(fault.starts_with("DIDACTYL_MODELS keywords, entry 1: "), "{fault}");
    }
}
