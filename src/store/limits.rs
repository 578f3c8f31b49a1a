//! What every store refuses before it touches its rows, so that a call is right on all of them or on none.
//!
//! The numbers are DynamoDB's, the narrowest of the stores
//! (<https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Constraints.html>), with some room left.

use std::collections::HashSet;

use super::{Change, Key, MAX_CALL_BYTES, MAX_VALUE_BYTES, MAX_WRITES, Range, StoreError, Write};

/// The longest [`Key::partition`] in bytes.
const MAX_PARTITION_BYTES: usize = 2048;

/// The longest [`Key::sort`] in bytes.
const MAX_SORT_BYTES: usize = 1024;

/// Refuses keys that no store takes.
pub(crate) fn check_keys(keys: &[Key]) -> Result<(), StoreError> {
    keys.iter().try_for_each(check_key)
}

/// Refuses a range that no store takes. An empty prefix is one: it means all.
pub(crate) fn check_range(range: &Range) -> Result<(), StoreError> {
    check_part("partition", &range.partition, MAX_PARTITION_BYTES)?;
    if range.prefix.is_empty() { Ok(()) } else { check_part("prefix", &range.prefix, MAX_SORT_BYTES) }
}

/// Refuses writes that no store takes.
pub(crate) fn check_writes(writes: &[Write]) -> Result<(), StoreError> {
    if writes.len() > MAX_WRITES {
        return invalid(format!("{} writes in one call, at most {MAX_WRITES} are possible", writes.len()));
    }
    let mut seen = HashSet::new();
    let mut call_bytes = 0_usize;
    for write in writes {
        let Key { partition, sort } = &write.key;
        check_key(&write.key)?;
        if !seen.insert(&write.key) {
            return invalid(format!("the row {partition}/{sort} is named twice in one call"));
        }
        let Change::Put { value, expires_at } = &write.change else { continue };
        if value.len() > MAX_VALUE_BYTES {
            return invalid(format!(
                "the value of {partition}/{sort} has {} bytes, at most {MAX_VALUE_BYTES} are possible: split it",
                value.len()
            ));
        }
        if expires_at.is_some_and(|at| i64::try_from(at).is_err()) {
            return invalid(format!(
                "{partition}/{sort} expires beyond all dates: give unix seconds or none"
            ));
        }
        call_bytes = call_bytes.saturating_add(value.len());
    }
    if call_bytes > MAX_CALL_BYTES {
        return invalid(format!("{call_bytes} bytes in one call, at most {MAX_CALL_BYTES} are possible"));
    }
    Ok(())
}

fn check_key(key: &Key) -> Result<(), StoreError> {
    check_part("partition", &key.partition, MAX_PARTITION_BYTES)?;
    check_part("sort key", &key.sort, MAX_SORT_BYTES)
}

fn check_part(name: &str, part: &str, max_bytes: usize) -> Result<(), StoreError> {
    match part.len() {
        0 => invalid(format!("a {name} is empty")),
        bytes if bytes > max_bytes => {
            invalid(format!("a {name} has {bytes} bytes, at most {max_bytes} are possible"))
        }
        _ => Ok(()),
    }
}

fn invalid<T>(why: String) -> Result<T, StoreError> {
    Err(StoreError::Invalid(why))
}

#[cfg(test)]
mod tests {
    use super::super::Expect;
    use super::*;

    fn put(sort: &str, bytes: usize) -> Write {
        Write::put(Key::new("p", sort), Expect::Anything, vec![0; bytes], None)
    }

    fn refusal(writes: &[Write]) -> String {
        check_writes(writes).map_or_else(|error| error.to_string(), |()| "accepted".into())
    }

    #[test]
    fn each_limit_names_itself() {
        let many: Vec<_> = (0..=MAX_WRITES).map(|n| put(&n.to_string(), 0)).collect();
        let large: Vec<_> = (0..11).map(|n| put(&n.to_string(), MAX_VALUE_BYTES)).collect();
        let late = Write::put(Key::new("p", "s"), Expect::Anything, vec![], Some(u64::MAX));
        let table = [
            refusal(&many),
            refusal(&many[1..]),
            refusal(&large),
            refusal(&large[1..]),
            refusal(&[put("s", MAX_VALUE_BYTES + 1)]),
            refusal(&[put("s", 0), put("s", 1)]),
            refusal(&[put("", 0)]),
            refusal(&[put(&"s".repeat(MAX_SORT_BYTES + 1), 0)]),
            refusal(&[Write::delete(Key::new("", "s"), Expect::Anything)]),
            refusal(&[late]),
            refusal(&[]),
        ];
        insta::assert_snapshot!(table.join("\n"), @r"
        the store refused the call: 101 writes in one call, at most 100 are possible
        accepted
        the store refused the call: 3850000 bytes in one call, at most 3500000 are possible
        accepted
        the store refused the call: the value of p/s has 350001 bytes, at most 350000 are possible: split it
        the store refused the call: the row p/s is named twice in one call
        the store refused the call: a sort key is empty
        the store refused the call: a sort key has 1025 bytes, at most 1024 are possible
        the store refused the call: a partition is empty
        the store refused the call: p/s expires beyond all dates: give unix seconds or none
        accepted
        ");
    }

    #[test]
    fn an_empty_prefix_means_all_and_a_long_one_is_refused() {
        let range = |partition: &str, prefix: String| Range {
            partition: partition.into(),
            prefix,
            newest_first: false,
            limit: None,
        };
        assert!(check_range(&range("p", String::new())).is_ok());
        assert!(check_range(&range("", String::new())).is_err());
        assert!(check_range(&range("p", "s".repeat(MAX_SORT_BYTES + 1))).is_err());
    }
}
