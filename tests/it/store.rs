//! One suite, run over every store. A case that is missing from the list at its head is an unused function, which clippy
//! refuses.

pub(crate) mod beds;
mod faults;
mod processes;

use std::sync::Arc;

use beds::Bed;
use didactyl::store::{
    Change, Expect, Key, MAX_CALL_BYTES, MAX_VALUE_BYTES, MAX_WRITES, Range, Row, Store, StoreError, Write,
};

macro_rules! suite {
    ($($case:ident),+ $(,)?) => {
        mod sqlite_in_memory {$(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::beds::sqlite_in_memory()).await;
            }
        )+}

        mod sqlite_in_a_file {$(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::beds::sqlite_in_a_file()).await;
            }
        )+}

        mod dynamodb {$(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                if let Some(bed) = super::beds::dynamodb().await {
                    super::$case(bed).await;
                }
            }
        )+}
    };
}

suite! {
    what_is_written_is_read_byte_for_byte,
    rows_are_read_in_the_order_of_their_keys,
    a_row_is_absent_from_the_second_it_expires,
    an_expired_row_counts_on_when_it_is_written_again,
    a_later_write_replaces_the_expiry_too,
    versions_count_up_whatever_was_expected,
    a_deleted_row_starts_again_at_1,
    a_write_that_expected_otherwise_gets_the_current_row,
    a_check_changes_nothing,
    several_writes_are_done_together,
    where_one_of_several_writes_is_refused_none_is_done,
    a_repeated_write_meets_its_own_row,
    keys_that_begin_alike_are_rows_of_their_own,
    a_prefix_is_taken_literally,
    sort_keys_are_ordered_by_their_bytes,
    the_newest_come_first_up_to_the_limit,
    expired_rows_take_no_place_in_a_list,
    a_list_longer_than_a_page_is_complete,
    as_many_writes_as_allowed_are_one_call,
    the_largest_rows_are_kept_and_larger_ones_refused,
    of_many_who_expect_absence_one_wins,
    of_many_transactions_over_the_same_rows_one_wins,
    racing_increments_lose_nothing,
}

fn key(sort: &str) -> Key {
    Key::new("p", sort)
}

fn put(sort: &str, expect: Expect, value: &str) -> Write {
    Write::put(key(sort), expect, value.into(), None)
}

fn row(sort: &str, version: u64, value: &str) -> Row {
    Row { key: key(sort), version, expires_at: None, value: value.into() }
}

fn all() -> Range {
    Range { partition: "p".into(), prefix: String::new(), newest_first: false, limit: None }
}

/// What tests ask again and again.
impl Bed {
    async fn write(&self, writes: &[Write]) {
        self.store.write(writes).await.unwrap();
    }

    async fn read(&self, sort: &str) -> Option<Row> {
        self.store.read(&[key(sort)]).await.unwrap().pop().unwrap()
    }

    async fn list(&self, range: &Range) -> Vec<String> {
        self.store.list(range).await.unwrap().into_iter().map(|row| row.key.sort).collect()
    }

    /// The key and the current row of the conflict in which `writes` end.
    async fn conflict(&self, writes: &[Write]) -> (Key, Option<Row>) {
        conflict(self.store.write(writes).await)
    }
}

fn conflict(outcome: Result<(), StoreError>) -> (Key, Option<Row>) {
    match outcome {
        Err(StoreError::Conflict { key, current }) => (key, current.map(|row| *row)),
        other => panic!("no conflict: {other:?}"),
    }
}

async fn what_is_written_is_read_byte_for_byte(bed: Bed) {
    assert_eq!(bed.read("s").await, None);
    for value in [vec![], vec![0], (0..=255).collect::<Vec<u8>>()] {
        bed.write(&[Write::put(key("s"), Expect::Anything, value.clone(), Some(2000))]).await;
        let found = bed.read("s").await.unwrap();
        assert_eq!((found.key, found.expires_at, found.value), (key("s"), Some(2000), value));
    }
}

async fn rows_are_read_in_the_order_of_their_keys(bed: Bed) {
    bed.write(&[put("a", Expect::Absent, "1"), put("b", Expect::Absent, "2")]).await;
    let elsewhere = Key::new("q", "a");
    let found = bed.store.read(&[key("b"), elsewhere, key("a"), key("b")]).await.unwrap();
    assert_eq!(found, [Some(row("b", 1, "2")), None, Some(row("a", 1, "1")), Some(row("b", 1, "2"))]);
    assert_eq!(bed.store.read(&[]).await.unwrap(), []);
}

async fn a_row_is_absent_from_the_second_it_expires(bed: Bed) {
    bed.write(&[Write::put(key("s"), Expect::Absent, "lease".into(), Some(1010))]).await;
    let lives = Row { expires_at: Some(1010), ..row("s", 1, "lease") };

    bed.time.set(1009);
    assert_eq!(bed.read("s").await, Some(lives.clone()));
    assert_eq!(bed.list(&all()).await, ["s"]);
    assert_eq!(bed.conflict(&[put("s", Expect::Absent, "mine")]).await, (key("s"), Some(lives)));

    bed.time.set(1010);
    assert_eq!(bed.read("s").await, None);
    assert_eq!(bed.store.read(&[key("s"), key("t")]).await.unwrap(), [None, None]);
    assert!(bed.list(&all()).await.is_empty());
    // Its last owner comes late, alone or in a transaction.
    let late = [
        put("s", Expect::Version(1), "mine still"),
        Write::delete(key("s"), Expect::Version(1)),
        Write::check(key("s"), 1),
    ];
    for write in late {
        assert_eq!(bed.conflict(std::slice::from_ref(&write)).await, (key("s"), None));
        assert_eq!(bed.conflict(&[put("t", Expect::Anything, ""), write]).await, (key("s"), None));
    }
    assert_eq!(bed.read("t").await, None);
}

/// Were it 1 again, the owner of the expired lease would hold a version that fits the new one.
async fn an_expired_row_counts_on_when_it_is_written_again(bed: Bed) {
    for (at, version) in [(1000, 1), (2000, 2), (3000, 3)] {
        bed.time.set(at);
        bed.write(&[Write::put(key("s"), Expect::Absent, "lease".into(), Some(at + 10))]).await;
        assert_eq!(bed.read("s").await.unwrap().version, version);
    }
}

async fn a_later_write_replaces_the_expiry_too(bed: Bed) {
    bed.write(&[Write::put(key("s"), Expect::Absent, "".into(), Some(1010))]).await;
    bed.write(&[put("s", Expect::Version(1), "for ever")]).await;
    bed.time.set(u64::from(u32::MAX));
    assert_eq!(bed.read("s").await, Some(row("s", 2, "for ever")));
}

async fn versions_count_up_whatever_was_expected(bed: Bed) {
    bed.write(&[put("s", Expect::Anything, "1")]).await;
    bed.write(&[put("s", Expect::Anything, "2")]).await;
    bed.write(&[put("s", Expect::Version(2), "3")]).await;
    bed.write(&[put("s", Expect::Anything, "4"), put("t", Expect::Absent, "")]).await;
    assert_eq!(bed.read("s").await, Some(row("s", 4, "4")));
}

async fn a_deleted_row_starts_again_at_1(bed: Bed) {
    bed.write(&[put("s", Expect::Absent, "1")]).await;
    bed.write(&[put("s", Expect::Version(1), "2")]).await;
    bed.write(&[Write::delete(key("s"), Expect::Version(2))]).await;
    assert_eq!(bed.read("s").await, None);
    bed.write(&[Write::delete(key("s"), Expect::Anything)]).await;
    bed.write(&[Write::delete(key("s"), Expect::Absent)]).await;
    bed.write(&[put("s", Expect::Absent, "3")]).await;
    assert_eq!(bed.read("s").await, Some(row("s", 1, "3")));
}

async fn a_write_that_expected_otherwise_gets_the_current_row(bed: Bed) {
    bed.write(&[put("s", Expect::Absent, "1")]).await;
    bed.write(&[put("s", Expect::Version(1), "2")]).await;
    for expect in [Expect::Absent, Expect::Version(1), Expect::Version(3)] {
        let wrong = [put("s", expect, "mine"), Write::delete(key("s"), expect)];
        for write in wrong {
            assert_eq!(bed.conflict(&[write]).await, (key("s"), Some(row("s", 2, "2"))));
        }
    }
    assert_eq!(bed.conflict(&[put("t", Expect::Version(1), "mine")]).await, (key("t"), None));
    assert_eq!(bed.read("s").await, Some(row("s", 2, "2")));
}

async fn a_check_changes_nothing(bed: Bed) {
    let check = |expect| Write { key: key("s"), expect, change: Change::Check };
    bed.write(&[]).await;
    bed.write(&[check(Expect::Anything)]).await;
    bed.write(&[check(Expect::Absent)]).await;
    assert_eq!(bed.conflict(&[check(Expect::Version(1))]).await, (key("s"), None));
    bed.write(&[put("s", Expect::Absent, "1")]).await;
    bed.write(&[Write::check(key("s"), 1)]).await;
    assert_eq!(bed.conflict(&[Write::check(key("s"), 2)]).await, (key("s"), Some(row("s", 1, "1"))));
    bed.write(&[check(Expect::Anything), put("t", Expect::Absent, "1")]).await;
    assert_eq!(bed.read("s").await, Some(row("s", 1, "1")));
    assert_eq!(bed.read("t").await, Some(row("t", 1, "1")));
}

async fn several_writes_are_done_together(bed: Bed) {
    bed.write(&[put("checked", Expect::Absent, "1"), put("deleted", Expect::Absent, "1")]).await;
    bed.write(&[
        Write::check(key("checked"), 1),
        Write::delete(key("deleted"), Expect::Version(1)),
        put("put", Expect::Absent, "1"),
    ])
    .await;
    assert_eq!(bed.store.list(&all()).await.unwrap(), [row("checked", 1, "1"), row("put", 1, "1")]);
}

async fn where_one_of_several_writes_is_refused_none_is_done(bed: Bed) {
    bed.write(&[put("b", Expect::Absent, "old"), put("c", Expect::Absent, "old")]).await;
    let before = bed.store.list(&all()).await.unwrap();
    let writes = [
        put("a", Expect::Absent, "new"),
        Write::delete(key("b"), Expect::Anything),
        put("c", Expect::Version(7), "new"),
        Write::check(key("d"), 7),
    ];
    // The first that is refused is told, not the last.
    assert_eq!(bed.conflict(&writes).await, (key("c"), Some(row("c", 1, "old"))));
    assert_eq!(bed.store.list(&all()).await.unwrap(), before);
}

/// So that a caller whose first try was applied, but whose answer was lost, can tell that it was.
async fn a_repeated_write_meets_its_own_row(bed: Bed) {
    let one = [Write::put(key("a"), Expect::Absent, "mine".into(), Some(2000))];
    let several = [put("b", Expect::Absent, "mine"), put("c", Expect::Absent, "mine")];
    bed.write(&one).await;
    bed.write(&several).await;
    let mine = Row { expires_at: Some(2000), ..row("a", 1, "mine") };
    assert_eq!(bed.conflict(&one).await, (key("a"), Some(mine)));
    assert_eq!(bed.conflict(&several).await, (key("b"), Some(row("b", 1, "mine"))));
}

/// Keys as skills make them, whose d tag is anybody's choice: separators, what an expression or a `LIKE` could read as
/// its own, prefixes of each other.
async fn keys_that_begin_alike_are_rows_of_their_own(bed: Bed) {
    let names =
        ["chat-admin", "chat", "chat:v2", "a:b", "a", "a/b", "a#b", "a%b", "a%", "a_b", "🦀", "🦀:v2", "ä"];
    let sorts: Vec<_> = [""].iter().chain(&names).map(|name| format!("31123:author:{name}")).collect();
    for sort in &sorts {
        bed.write(&[put(sort, Expect::Absent, sort)]).await;
    }
    for sort in &sorts {
        assert_eq!(bed.read(sort).await, Some(row(sort, 1, sort)));
    }
    // The parts of a key are no text that is put together.
    for (partition, sort) in
        [("a:b", "c"), ("a", "b:c"), ("a#b", "c"), ("a", "b#c"), ("a/b", "c"), ("a", "b/c")]
    {
        let value = format!("{partition} {sort}").into_bytes();
        bed.write(&[Write::put(Key::new(partition, sort), Expect::Absent, value, None)]).await;
    }
    let of_a = bed.store.list(&Range { partition: "a".into(), ..all() }).await.unwrap();
    let of_a: Vec<_> = of_a.iter().map(|row| row.key.sort.as_str()).collect();
    assert_eq!(of_a, ["b#c", "b/c", "b:c"]);
    // Deleting one leaves its neighbours.
    bed.write(&[Write::delete(key("31123:author:chat"), Expect::Version(1))]).await;
    assert_eq!(bed.list(&all()).await.len(), sorts.len() - 1);
}

async fn a_prefix_is_taken_literally(bed: Bed) {
    for sort in ["a", "a/1", "a/2", "a-1", "aa", "a%", "a%1", "a_", "b", "A/1", "a\u{10ffff}", "a\u{10ffff}b"]
    {
        bed.write(&[put(sort, Expect::Absent, "")]).await;
    }
    let cases: [(&str, &[&str]); 6] = [
        ("a/", &["a/1", "a/2"]),
        ("a%", &["a%", "a%1"]),
        ("a_", &["a_"]),
        ("%", &[]),
        ("aa", &["aa"]),
        ("a\u{10ffff}", &["a\u{10ffff}", "a\u{10ffff}b"]),
    ];
    for (prefix, expected) in cases {
        assert_eq!(bed.list(&Range { prefix: prefix.into(), ..all() }).await, expected, "{prefix:?}");
    }
    assert_eq!(bed.list(&Range { partition: "none".into(), ..all() }).await, [""; 0]);
}

async fn sort_keys_are_ordered_by_their_bytes(bed: Bed) {
    // U+FFFD and the crab: UTF-16 would turn them round.
    let mut sorts =
        ["0", "10", "9", "A", "a", "a:", "a/", "a#", "a%", "Z", "é", "\u{fffd}", "🦀", "~", " ", "\u{1}"];
    for sort in sorts {
        bed.write(&[put(sort, Expect::Absent, "")]).await;
    }
    sorts.sort_unstable_by_key(|sort| sort.as_bytes());
    assert_eq!(bed.list(&all()).await, sorts);
    sorts.reverse();
    assert_eq!(bed.list(&Range { newest_first: true, ..all() }).await, sorts);
}

async fn the_newest_come_first_up_to_the_limit(bed: Bed) {
    for sort in ["m/1", "m/2", "m/3", "m/4", "n/1"] {
        bed.write(&[put(sort, Expect::Absent, "")]).await;
    }
    let range = |newest_first, limit| Range { prefix: "m/".into(), newest_first, limit, ..all() };
    assert_eq!(bed.list(&range(true, Some(2))).await, ["m/4", "m/3"]);
    assert_eq!(bed.list(&range(false, Some(2))).await, ["m/1", "m/2"]);
    assert_eq!(bed.list(&range(true, Some(usize::MAX))).await, ["m/4", "m/3", "m/2", "m/1"]);
    assert_eq!(bed.list(&range(true, Some(0))).await, [""; 0]);
}

async fn expired_rows_take_no_place_in_a_list(bed: Bed) {
    for sort in ["1", "2", "3", "4", "5", "6"] {
        let expires_at = if sort > "3" { Some(1010) } else { None };
        bed.write(&[Write::put(key(sort), Expect::Absent, vec![], expires_at)]).await;
    }
    bed.time.set(1010);
    assert_eq!(bed.list(&Range { newest_first: true, limit: Some(2), ..all() }).await, ["3", "2"]);
}

/// A page of DynamoDB ends at 1 MB.
async fn a_list_longer_than_a_page_is_complete(bed: Bed) {
    let sorts = ["1", "2", "3", "4", "5", "6", "7"];
    for sort in sorts {
        bed.write(&[Write::put(key(sort), Expect::Absent, vec![sort.as_bytes()[0]; 300_000], None)]).await;
    }
    let rows = bed.store.list(&all()).await.unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row.key.sort.as_str(), row.value[0], row.value.len())).collect();
    assert_eq!(found, sorts.map(|sort| (sort, sort.as_bytes()[0], 300_000)));
    let newest = Range { newest_first: true, limit: Some(5), ..all() };
    assert_eq!(bed.list(&newest).await, ["7", "6", "5", "4", "3"]);
}

async fn as_many_writes_as_allowed_are_one_call(bed: Bed) {
    let sorts: Vec<_> = (0..MAX_WRITES).map(|n| format!("{n:03}")).collect();
    let writes: Vec<_> = sorts.iter().map(|sort| put(sort, Expect::Absent, sort)).collect();
    bed.write(&writes).await;
    assert_eq!(bed.list(&all()).await, sorts);

    // Reading has no such limit.
    let mut keys: Vec<_> = sorts.iter().map(|sort| key(sort)).collect();
    keys.extend((0..50).map(|n| key(&format!("absent {n}"))));
    let mut expected: Vec<_> = sorts.iter().map(|sort| Some(row(sort, 1, sort))).collect();
    expected.resize(keys.len(), None);
    assert_eq!(bed.store.read(&keys).await.unwrap(), expected);

    let mut too_many = writes;
    too_many.push(put("one more", Expect::Absent, ""));
    assert!(matches!(bed.store.write(&too_many).await, Err(StoreError::Invalid(_))));
}

async fn the_largest_rows_are_kept_and_larger_ones_refused(bed: Bed) {
    let large = Key::new("p".repeat(2048), "s".repeat(1024));
    let value = vec![7; MAX_VALUE_BYTES];
    bed.write(&[Write::put(large.clone(), Expect::Absent, value.clone(), None)]).await;
    let found = bed.store.read(std::slice::from_ref(&large)).await.unwrap();
    let expected = Row { key: large, version: 1, expires_at: None, value };
    assert!(found == [Some(expected)]);

    // As large as a call may be, in one transaction.
    let part = MAX_CALL_BYTES / 10;
    let parts: Vec<_> =
        (0..10).map(|n| Write::put(key(&format!("part {n}")), Expect::Absent, vec![7; part], None)).collect();
    bed.write(&parts).await;
    assert_eq!(bed.list(&all()).await.len(), 10);

    let invalid = [
        put("", Expect::Absent, ""),
        put(&"s".repeat(1025), Expect::Absent, ""),
        Write::put(Key::new("p".repeat(2049), "s"), Expect::Absent, vec![], None),
        Write::put(key("s"), Expect::Absent, vec![7; MAX_VALUE_BYTES + 1], None),
    ];
    for write in invalid {
        let writes = [put("t", Expect::Absent, ""), write];
        assert!(matches!(bed.store.write(&writes).await, Err(StoreError::Invalid(_))));
    }
    assert_eq!(bed.read("t").await, None);
    assert!(matches!(bed.store.read(&[key("")]).await, Err(StoreError::Invalid(_))));
    let nowhere = Range { partition: String::new(), ..all() };
    assert!(matches!(bed.store.list(&nowhere).await, Err(StoreError::Invalid(_))));
}

/// Starts `count` tasks at once and returns what each of them came to.
async fn race<T, F>(bed: &Bed, count: usize, task: impl Fn(usize, Arc<dyn Store>) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(task(n, Arc::clone(&bed.store)))).collect();
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

async fn of_many_who_expect_absence_one_wins(bed: Bed) {
    let outcomes =
        race(
            &bed,
            20,
            |n, store| async move { store.write(&[put("s", Expect::Absent, &n.to_string())]).await },
        )
        .await;
    let winner = outcomes.iter().position(Result::is_ok).unwrap();
    let claimed = row("s", 1, &winner.to_string());
    assert_eq!(bed.read("s").await, Some(claimed.clone()));
    for (n, outcome) in outcomes.into_iter().enumerate().filter(|(n, _)| *n != winner) {
        assert_eq!(conflict(outcome), (key("s"), Some(claimed.clone())), "{n}");
    }
}

async fn of_many_transactions_over_the_same_rows_one_wins(bed: Bed) {
    let outcomes = race(&bed, 20, |n, store| async move {
        let name = n.to_string();
        // Half of them name the rows in the other order.
        let mut writes = [put("s", Expect::Absent, &name), put("t", Expect::Absent, &name)];
        if n % 2 == 1 {
            writes.reverse();
        }
        store.write(&writes).await
    })
    .await;
    let winners: Vec<_> = (0..20).filter(|n| outcomes[*n].is_ok()).collect();
    let [winner] = winners[..] else { panic!("winners: {winners:?}") };
    let name = winner.to_string();
    assert_eq!(bed.store.list(&all()).await.unwrap(), [row("s", 1, &name), row("t", 1, &name)]);
}

async fn racing_increments_lose_nothing(bed: Bed) {
    race(&bed, 8, |_, store| async move {
        for _ in 0..5 {
            increment(&*store, &key("counter")).await;
        }
    })
    .await;
    assert_eq!(bed.read("counter").await, Some(row("counter", 40, "40")));
}

/// Adds one to the number in a row, as often as it takes.
async fn increment(store: &dyn Store, key: &Key) {
    let mut current = store.read(std::slice::from_ref(key)).await.unwrap().pop().unwrap();
    loop {
        let (number, expect) = match &current {
            None => (0, Expect::Absent),
            Some(row) => {
                let number = String::from_utf8(row.value.clone()).unwrap().parse::<u64>().unwrap();
                (number, Expect::Version(row.version))
            }
        };
        let value = (number + 1).to_string().into_bytes();
        match store.write(&[Write::put(key.clone(), expect, value, None)]).await {
            Ok(()) => return,
            Err(error) => current = conflict(Err(error)).1,
        }
    }
}
