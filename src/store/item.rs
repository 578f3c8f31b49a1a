//! Rows and writes in DynamoDB's words: attributes, expressions, conditions. No client at hand, no I/O.
//!
//! An item has `pk` and `sk` (strings, the table's key), `v` (number, the version), `val` (binary) and, where the row
//! expires, `ttl` (number, Unix seconds), the attribute that the table's time to live looks at. DynamoDB removes expired
//! items days late, so every condition and every read compares `ttl` with the clock itself.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use super::{Change, Expect, Key, Row, StoreError, Write};

/// The partition key's attribute.
pub(crate) const PARTITION: &str = "pk";
/// The sort key's attribute.
pub(crate) const SORT: &str = "sk";
const VERSION: &str = "v";
const VALUE: &str = "val";
const EXPIRES_AT: &str = "ttl";

/// `ttl` is a reserved word: in expressions it goes by a name of its own.
const ALIAS: &str = "#ttl";

const ABSENT: &str = "attribute_not_exists(pk) OR #ttl <= :now";
const AT_VERSION: &str = "v = :v AND (attribute_not_exists(#ttl) OR #ttl > :now)";

/// Puts are updates, so that `v` counts on by itself, over an expired item too.
const PUT: &str = "SET val = :val REMOVE #ttl ADD v :one";
const PUT_EXPIRING: &str = "SET val = :val, #ttl = :ttl ADD v :one";

/// Attributes by name.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The parts that a single write and an action of a transaction have in common.
#[derive(Debug, PartialEq)]
pub(crate) struct Expressions {
    pub(crate) key: Item,
    /// What a put does; deletions and checks have none.
    pub(crate) update: Option<&'static str>,
    /// What must hold before; none for [`Expect::Anything`].
    pub(crate) condition: Option<&'static str>,
    /// The names that both use; none where there is neither, since DynamoDB refuses what is not used.
    pub(crate) names: Option<HashMap<String, String>>,
    /// The values that both use.
    pub(crate) values: Option<Item>,
}

/// `write` as expressions, where `now` is Unix seconds.
pub(crate) fn expressions(write: &Write, now: u64) -> Expressions {
    let mut values = Item::new();
    let condition = match write.expect {
        Expect::Anything => None,
        Expect::Absent => Some(ABSENT),
        Expect::Version(version) => {
            values.insert(":v".into(), number(version));
            Some(AT_VERSION)
        }
    };
    if condition.is_some() {
        values.insert(":now".into(), number(now));
    }
    let update = match &write.change {
        Change::Put { value, expires_at } => {
            values.insert(":val".into(), AttributeValue::B(Blob::new(value.clone())));
            values.insert(":one".into(), number(1));
            Some(match expires_at {
                None => PUT,
                Some(at) => {
                    values.insert(":ttl".into(), number(*at));
                    PUT_EXPIRING
                }
            })
        }
        Change::Delete | Change::Check => None,
    };
    let used = condition.is_some() || update.is_some();
    Expressions {
        key: key(&write.key),
        update,
        condition,
        names: used.then(|| HashMap::from([(ALIAS.into(), EXPIRES_AT.into())])),
        values: used.then_some(values),
    }
}

/// A key's attributes.
pub(crate) fn key(key: &Key) -> Item {
    HashMap::from([
        (PARTITION.into(), AttributeValue::S(key.partition.clone())),
        (SORT.into(), AttributeValue::S(key.sort.clone())),
    ])
}

/// The row of an item, or `None` where it has expired by `now` (Unix seconds).
///
/// # Errors
/// [`StoreError::Invalid`] for an item that is not ours: the table holds something else too.
pub(crate) fn row(mut item: Item, now: u64) -> Result<Option<Row>, StoreError> {
    let key = Key { partition: string(&mut item, PARTITION)?, sort: string(&mut item, SORT)? };
    let foreign = |attribute| {
        StoreError::Invalid(format!(
            "the item {}/{} has no readable `{attribute}`: the table holds items of another program",
            key.partition, key.sort
        ))
    };
    let expires_at = match item.remove(EXPIRES_AT) {
        None => None,
        Some(attribute) => Some(unsigned(&attribute).ok_or_else(|| foreign(EXPIRES_AT))?),
    };
    if expires_at.is_some_and(|at| at <= now) {
        return Ok(None);
    }
    let version = item.remove(VERSION).as_ref().and_then(unsigned).ok_or_else(|| foreign(VERSION))?;
    let Some(AttributeValue::B(value)) = item.remove(VALUE) else { return Err(foreign(VALUE)) };
    Ok(Some(Row { key, version, expires_at, value: value.into_inner() }))
}

fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

fn unsigned(attribute: &AttributeValue) -> Option<u64> {
    attribute.as_n().ok()?.parse().ok()
}

fn string(item: &mut Item, attribute: &str) -> Result<String, StoreError> {
    match item.remove(attribute) {
        Some(AttributeValue::S(text)) => Ok(text),
        _ => Err(StoreError::Invalid(format!(
            "an item has no string `{attribute}`: the table's key must be `{PARTITION}` and `{SORT}`, both strings"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 100;

    fn full(ttl: Option<&str>) -> Item {
        let mut item = key(&Key::new("p", "s"));
        item.insert("v".into(), AttributeValue::N("3".into()));
        item.insert("val".into(), AttributeValue::B(Blob::new("x")));
        if let Some(ttl) = ttl {
            item.insert("ttl".into(), AttributeValue::N(ttl.into()));
        }
        item
    }

    #[test]
    fn an_item_is_a_row_until_the_second_it_expires() {
        let lives = Row { key: Key::new("p", "s"), version: 3, expires_at: Some(101), value: b"x".to_vec() };
        assert_eq!(row(full(Some("101")), NOW).unwrap(), Some(lives.clone()));
        assert_eq!(row(full(Some("100")), NOW).unwrap(), None);
        assert_eq!(row(full(None), NOW).unwrap(), Some(Row { expires_at: None, ..lives }));
    }

    #[test]
    fn an_item_of_another_program_is_named_without_its_values() {
        for attribute in ["pk", "sk", "v", "ttl", "val"] {
            let mut item = full(Some("101"));
            item.insert(attribute.into(), AttributeValue::Bool(true));
            let error = row(item, NOW).unwrap_err().to_string();
            assert!(error.contains(&format!("`{attribute}`")), "{error}");
        }
    }

    /// DynamoDB refuses a call that names a value which no expression uses, or uses one that it does not name.
    #[test]
    fn every_placeholder_is_used_and_every_use_has_one() {
        let changes = [
            Change::Put { value: vec![1], expires_at: None },
            Change::Put { value: vec![1], expires_at: Some(9) },
            Change::Delete,
            Change::Check,
        ];
        for change in changes {
            for expect in [Expect::Anything, Expect::Absent, Expect::Version(2)] {
                let write = Write { key: Key::new("p", "s"), expect, change: change.clone() };
                let made = expressions(&write, NOW);
                let text = [made.update, made.condition].into_iter().flatten().collect::<Vec<_>>().join(" ");
                let mut used: Vec<_> = text
                    .split(|c: char| !c.is_alphanumeric() && c != ':' && c != '#')
                    .filter(|word| word.starts_with([':', '#']))
                    .collect();
                used.sort_unstable();
                used.dedup();
                let mut given: Vec<String> = made.values.unwrap_or_default().into_keys().collect();
                given.extend(made.names.unwrap_or_default().into_keys());
                given.sort_unstable();
                assert_eq!(given, used, "{write:?}");
            }
        }
    }
}
