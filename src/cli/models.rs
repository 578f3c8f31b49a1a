//! `didactyl models`: which models the present environment can use, and why not the others. Asks no provider and prints
//! no key.

use std::io::Write;

use super::CliResult;
use crate::llm::catalogue::{Custom, KEYWORDS, KNOWN_SINCE, ModelId, Price, Providers};

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Lists the chain, the keywords, the providers and the known models; fails where the chain has no usable model.
pub(super) fn run(env: Lookup<'_>, out: &mut dyn Write) -> CliResult {
    let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
    let custom = set("DIDACTYL_MODELS").map_or(Ok(Custom::default()), |text| Custom::parse(&text));
    let custom = custom.map_err(|fault| format!("DIDACTYL_MODELS {fault}"))?;
    let chain = set("DIDACTYL_LLM").map(|text| custom.chain(&text)).transpose();
    let chain = chain.map_err(|fault| format!("DIDACTYL_LLM {}", fault.of_variable()))?;
    let providers = Providers::with_custom(&chain.clone().unwrap_or_default(), custom, env);

    match &chain {
        Some(chain) => {
            writeln!(out, "chain (DIDACTYL_LLM)")?;
            for id in chain.entries() {
                show(&providers, id, out)?;
            }
        }
        None => writeln!(out, "chain: DIDACTYL_LLM is not set; give for example openai/gpt-6-luna")?,
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
    writeln!(
        out,
        "\nmodels with a known size and price, as of {KNOWN_SINCE} (per million tokens: input / cached input / output)"
    )?;
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
        Err(lacks) => ("no ", lacks),
    };
    let (name, window) = (id.to_string(), info.context_window);
    let line = format!("  {usable}  {name:<32} {window:>9} tokens  {price:<22}  {lacks}");
    writeln!(out, "{}", line.trim_end())
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
            ("DIDACTYL_LLM", "openai/gpt-6-luna, private, groq/other"),
            ("DIDACTYL_MODELS", models),
            ("GROQ_API_KEY", "gsk-SEKRIT"),
        ]);
        assert_eq!(fault, None);
        assert!(!list.contains("SEKRIT"), "{list}");
        insta::assert_snapshot!(list, @r"
        chain (DIDACTYL_LLM)
          no   openai/gpt-6-luna                  1050000 tokens  $0.25 / $0.02 / $0.75   OPENAI_API_KEY is not set
          yes  home/qwen3                           16384 tokens  $0.00 / $0.00 / $0.0725
          yes  groq/other                           32768 tokens  price unknown

        keywords (DIDACTYL_MODELS)
               cheap         not configured: stands for the chain
               fast          not configured: stands for the chain
               smart         not configured: stands for the chain
               long-context  not configured: stands for the chain
               private       home/qwen3

        providers
          no   anthropic     ANTHROPIC_API_KEY is not set
          no   bedrock       AWS_BEARER_TOKEN_BEDROCK is not set
          no   deepseek      DEEPSEEK_API_KEY is not set
          no   gemini        GEMINI_API_KEY is not set
          yes  groq          https://api.groq.com/openai/v1
          yes  home          http://10.0.0.7:8000/v1
          yes  llamacpp      http://127.0.0.1:8080/v1
          no   mistral       MISTRAL_API_KEY is not set
          yes  ollama        http://127.0.0.1:11434/v1
          no   openai        OPENAI_API_KEY is not set
          no   openrouter    OPENROUTER_API_KEY is not set
          no   together      TOGETHER_API_KEY is not set
          yes  vllm          http://127.0.0.1:8000/v1
          no   xai           XAI_API_KEY is not set

        models with a known size and price, as of 2026-11-30 (per million tokens: input / cached input / output)
          yes  home/qwen3                           16384 tokens  $0.00 / $0.00 / $0.0725
          no   anthropic/claude-haiku-4-5          200000 tokens  $1.00 / $0.10 / $5.00   ANTHROPIC_API_KEY is not set
          no   anthropic/claude-haiku-5-5         1000000 tokens  $0.50 / $0.05 / $2.50   ANTHROPIC_API_KEY is not set
          no   anthropic/claude-opus-5-5          1000000 tokens  $4.00 / $0.20 / $20.00  ANTHROPIC_API_KEY is not set
          no   anthropic/claude-sonnet-5-5        1000000 tokens  $2.00 / $0.10 / $10.00  ANTHROPIC_API_KEY is not set
          no   deepseek/deepseek-v4-flash         1000000 tokens  $0.30 / $0.006 / $1.20  DEEPSEEK_API_KEY is not set
          no   deepseek/deepseek-v4-pro           1000000 tokens  $1.32 / $0.044 / $3.96  DEEPSEEK_API_KEY is not set
          no   gemini/gemini-2.5-flash-lite       1048576 tokens  $0.10 / $0.01 / $0.40   GEMINI_API_KEY is not set
          no   gemini/gemini-3.5-flash-lite       1048576 tokens  $0.30 / $0.03 / $2.50   GEMINI_API_KEY is not set
          no   gemini/gemini-3.8-flash            1048576 tokens  $0.75 / $0.075 / $3.75  GEMINI_API_KEY is not set
          no   gemini/gemini-4-argon              1048576 tokens  $2.00 / $0.10 / $10.00  GEMINI_API_KEY is not set
          yes  groq/openai/gpt-oss-120b            131072 tokens  $0.15 / $0.075 / $0.60
          yes  groq/openai/gpt-oss-20b             131072 tokens  $0.075 / $0.0375 / $0.30
          no   mistral/mistral-large-latest        262144 tokens  $0.70 / $0.07 / $2.10   MISTRAL_API_KEY is not set
          no   mistral/mistral-small-latest        262144 tokens  $0.15 / $0.015 / $0.60  MISTRAL_API_KEY is not set
          no   openai/gpt-5.4-mini                 400000 tokens  $0.75 / $0.075 / $4.50  OPENAI_API_KEY is not set
          no   openai/gpt-6-luna                  1050000 tokens  $0.25 / $0.02 / $0.75   OPENAI_API_KEY is not set
          no   openai/gpt-6.1-sol                 1050000 tokens  $5.00 / $0.20 / $15.00  OPENAI_API_KEY is not set
          no   openai/gpt-6.1-terra               1050000 tokens  $2.50 / $0.10 / $7.50   OPENAI_API_KEY is not set
          no   xai/grok-4.20                      1000000 tokens  $2.50 / $0.40 / $5.00   XAI_API_KEY is not set
          no   xai/grok-4.7                        500000 tokens  $4.00 / $1.00 / $12.00  XAI_API_KEY is not set
        ");
    }

    #[test]
    fn without_a_usable_model_the_command_fails_and_says_why() {
        assert_eq!(listed(&[]).1.unwrap(), "no model is configured");
        let lacks = "no model of the chain can be used: openai/gpt-6-luna: OPENAI_API_KEY is not set";
        assert_eq!(listed(&[("DIDACTYL_LLM", "gpt-6-luna")]).1.unwrap(), lacks);
        let fault = listed(&[("DIDACTYL_MODELS", r#"{"keywords": {"cheap": 1}}"#)]).1.unwrap();
        assert!(fault.starts_with("DIDACTYL_MODELS keywords, entry 1: "), "{fault}");
    }

    #[test]
    fn a_chain_that_cannot_be_read_is_told_without_its_text() {
        for llm in ["sk-proj-SEKRIT", "nsec1SEKRIT/", "SEKRIT SEKRIT/x"] {
            let (list, fault) = listed(&[("DIDACTYL_LLM", llm)]);
            let fault = fault.unwrap();
            assert!(
                fault.starts_with("DIDACTYL_LLM has ") && !format!("{list}{fault}").contains("SEKRIT"),
                "{fault}"
            );
        }
    }
}
