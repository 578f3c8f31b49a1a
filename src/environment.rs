//! The variables that the configuration is read from. A value `ssm:NAME` stands for the SSM parameter of that name, so
//! that no secret has to lie in a function's configuration. What the variables mean is [`crate::config`]'s affair.

use std::collections::{BTreeMap, BTreeSet};

use crate::aws::{Aws, ssm};
use crate::config::{Config, ConfigError};
use crate::secret::Secret;

/// What a reference begins with.
const PREFIX: &str = "ssm:";

/// Variables by name, and the AWS where the parameters lie that some of them refer to. The empty one refers to none.
#[derive(Debug, Default)]
pub struct Environment {
    vars: BTreeMap<String, Secret>,
    /// The parameters' names, by the variables that refer to them.
    references: BTreeMap<String, String>,
    aws: Aws,
}

impl Environment {
    /// The process's variables. Those that are not UTF-8 count as unset.
    #[must_use]
    pub fn of_process(aws: Aws) -> Self {
        let utf8 = std::env::vars_os().filter_map(|(name, value)| {
            let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { return None };
            Some((name, value))
        });
        Self::new(utf8, aws)
    }

    /// The given variables.
    #[must_use]
    pub fn new(vars: impl IntoIterator<Item = (String, String)>, aws: Aws) -> Self {
        let mut environment = Self { aws, ..Self::default() };
        for (variable, value) in vars {
            if let Some(name) = value.trim().strip_prefix(PREFIX) {
                environment.references.insert(variable.clone(), name.to_owned());
            }
            environment.vars.insert(variable, Secret::new(value));
        }
        environment
    }

    /// What the process's AWS clients are made from.
    #[must_use]
    pub fn aws(&self) -> &Aws {
        &self.aws
    }

    /// Whether [`Environment::config`] may tell something else another time.
    #[must_use]
    pub fn refers_to_parameters(&self) -> bool {
        !self.references.is_empty()
    }

    /// The configuration that the variables say, with each parameter as it is now.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault. That of a parameter names the variable and the parameter.
    pub async fn config(&self) -> Result<Config, ConfigError> {
        let parameters = self.parameters().await;
        let mut vars = self.vars.clone();
        let mut faults = Vec::new();
        let mut unresolved = Vec::new();
        for (variable, name) in &self.references {
            let fault = match parameters.get(name) {
                Some(Ok(value)) => {
                    vars.insert(variable.clone(), value.clone());
                    continue;
                }
                Some(Err(why)) => format!("{variable} names the SSM parameter {name}, which {why}"),
                None => format!("{variable} has after {PREFIX} what is no SSM parameter's name"),
            };
            faults.push(fault);
            unresolved.push(format!("{variable} "));
        }
        let config = Config::from_vars(&|name| vars.get(name).map(|value| value.expose().to_owned()));
        if faults.is_empty() {
            return config;
        }
        // What is said of a reference as if it were the value is no news.
        let others = config.err().map_or_else(Vec::new, |ConfigError(others)| others);
        faults.extend(others.into_iter().filter(|fault| !unresolved.iter().any(|it| fault.starts_with(it))));
        Err(ConfigError(faults))
    }

    async fn parameters(&self) -> ssm::Values {
        let names: BTreeSet<String> =
            self.references.values().filter(|name| ssm::is_name(name)).cloned().collect();
        if names.is_empty() {
            return ssm::Values::new();
        }
        ssm::read(self.aws.config().await, &names).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(vars: &[(&str, &str)]) -> Environment {
        let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment::new(vars, Aws::default())
    }

    #[tokio::test]
    async fn without_references_nothing_is_asked_and_the_configuration_is_that_of_the_variables() {
        let environment = environment(&[
            ("DIDACTYL_NSEC", &format!("{:064x}", 1)),
            ("DIDACTYL_ADMIN", "c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5"),
            ("DIDACTYL_RELAYS", "wss://relay.example"),
            ("DIDACTYL_LLM", "ollama/qwen3"),
            ("DIDACTYL_AGENT_NAME", "not ssm:but a name"),
        ]);
        assert!(!environment.refers_to_parameters());
        let config = environment.config().await.unwrap();
        assert_eq!(config.agent_name.as_deref(), Some("not ssm:but a name"));
    }

    #[tokio::test]
    async fn a_reference_that_is_no_name_is_a_fault_beside_the_others_and_is_not_shown() {
        let environment = environment(&[
            ("DIDACTYL_NSEC", "ssm:"),
            ("DIDACTYL_ADMIN", "ssm: SEKRIT words"),
            ("DIDACTYL_LLM", "ollama/qwen3"),
        ]);
        let error = environment.config().await.unwrap_err();
        insta::assert_snapshot!(error, @r"
    the configuration has 3 fault(s):
    - DIDACTYL_ADMIN has after ssm: what is no SSM parameter's name
    - DIDACTYL_NSEC has after ssm: what is no SSM parameter's name
    - DIDACTYL_RELAYS is not set: give at least one relay
    ");
    }

    #[test]
    fn an_environment_prints_no_value() {
        assert!(!format!("{:?}", environment(&[("DIDACTYL_NSEC", "SEKRIT")])).contains("SEKRIT"));
    }
}
