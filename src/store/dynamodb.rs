//! The store on AWS: one DynamoDB table, on demand, without a secondary index.
//!
//! A single write is one conditional call, several are one transaction; both give back the row that refused them, so no
//! caller reads again. Reads are strongly consistent. How rows become items is the affair of `item.rs`, how the client is
//! set up that of [`crate::aws`]. The SDK repeats what the network or a throttle cost; where it gives up, the caller hears
//! [`StoreError::Unavailable`].
//!
//! API: <https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Operations_Amazon_DynamoDB.html>

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{BuildError, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::error::TransactionCanceledException;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, KeysAndAttributes, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem, Update,
};
use futures_util::future::try_join_all;

use super::item::{self, Expressions, Item};
use super::limits::{check_keys, check_range, check_writes};
use super::{Change, Expect, Key, Range, Row, Store, StoreError, Write};
use crate::aws::explain;
use crate::clock::Clock;

/// The most keys of one `BatchGetItem`.
const BATCH_KEYS: usize = 100;

/// How often a call is tried that others' transactions or an overloaded table hold up; with [`pause`], some two seconds.
const ATTEMPTS: u32 = 8;

const ALL_OLD: ReturnValuesOnConditionCheckFailure = ReturnValuesOnConditionCheckFailure::AllOld;

/// Rows in a DynamoDB table.
#[derive(Debug)]
pub struct DynamoDb {
    client: Client,
    table: String,
    clock: Clock,
}

impl DynamoDb {
    /// The store in `table`, whose key must be the strings `pk` and `sk`. Sends nothing yet.
    #[must_use]
    pub fn new(client: Client, table: impl Into<String>, clock: Clock) -> Self {
        Self { client, table: table.into(), clock }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_secs()
    }

    async fn get(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let request = self.client.get_item().table_name(&self.table).consistent_read(true);
        let answer = request.set_key(Some(item::key(key))).send().await.map_err(store_error)?;
        answer.item.map_or(Ok(None), |item| item::row(item, self.now()))
    }

    /// The items of at most [`BATCH_KEYS`] different keys, in no order. An answer ends at 16 MB: what is missing is asked
    /// for again.
    async fn get_batch(&self, keys: &[&Key]) -> Result<Vec<Item>, StoreError> {
        let mut asked: Vec<Item> = keys.iter().copied().map(item::key).collect();
        let mut found = Vec::new();
        let mut fruitless = 0;
        while !asked.is_empty() {
            let count = asked.len();
            let request = KeysAndAttributes::builder().consistent_read(true).set_keys(Some(asked)).build();
            let call = self.client.batch_get_item().request_items(&self.table, request.map_err(incomplete)?);
            let answer = call.send().await.map_err(store_error)?;
            // One table was asked, so whatever its name is there, one answers.
            found.extend(answer.responses.into_iter().flat_map(HashMap::into_values).flatten());
            let unprocessed = answer.unprocessed_keys.into_iter().flat_map(HashMap::into_values);
            asked = unprocessed.flat_map(|rest| rest.keys).collect();
            if !asked.is_empty() {
                fruitless = if asked.len() < count { 0 } else { fruitless + 1 };
                if fruitless == ATTEMPTS {
                    return Err(StoreError::Unavailable("the table answers no keys of a batch".into()));
                }
                pause(fruitless).await;
            }
        }
        Ok(found)
    }

    /// One put or deletion.
    async fn write_one(&self, write: &Write) -> Result<(), Failure> {
        let now = self.now();
        let Expressions { key, update, condition, names, values } = item::expressions(write, now);
        // The two calls differ in types alone.
        let (error, refused_by) = if let Some(update) = update {
            let call = self
                .client
                .update_item()
                .table_name(&self.table)
                .set_key(Some(key))
                .update_expression(update)
                .set_condition_expression(condition.map(Into::into))
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .set_return_values_on_condition_check_failure(condition.map(|_| ALL_OLD));
            let Err(error) = call.send().await else { return Ok(()) };
            let refused_by = match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => Some(refusal.item.clone()),
                _ => None,
            };
            (failure(error), refused_by)
        } else {
            let call = self
                .client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(key))
                .set_condition_expression(condition.map(Into::into))
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .set_return_values_on_condition_check_failure(condition.map(|_| ALL_OLD));
            let Err(error) = call.send().await else { return Ok(()) };
            let refused_by = match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(refusal)) => Some(refusal.item.clone()),
                _ => None,
            };
            (failure(error), refused_by)
        };
        Err(refused_by.map_or(error, |item| conflict(write, item, now)))
    }

    /// Several writes, or a check. The SDK gives the call a token, so that its own repetition is no second transaction.
    async fn write_all(&self, writes: &[&Write]) -> Result<(), Failure> {
        let now = self.now();
        let actions = writes.iter().map(|write| self.action(write, now)).collect::<Result<_, _>>();
        let actions = actions.map_err(|error| Failure::Final(incomplete(error)))?;
        let call = self.client.transact_write_items().set_transact_items(Some(actions));
        let Err(error) = call.send().await else { return Ok(()) };
        Err(match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(canceled)) => {
                cancellation(canceled, writes, now)
            }
            _ => failure(error),
        })
    }

    fn action(&self, write: &Write, now: u64) -> Result<TransactWriteItem, BuildError> {
        let Expressions { key, update, condition, names, values } = item::expressions(write, now);
        let all_old = condition.map(|_| ALL_OLD);
        let condition = condition.map(Into::into);
        let action = TransactWriteItem::builder();
        Ok(match &write.change {
            Change::Put { .. } => action.update(
                Update::builder()
                    .table_name(&self.table)
                    .set_key(Some(key))
                    .set_update_expression(update.map(Into::into))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .set_return_values_on_condition_check_failure(all_old)
                    .build()?,
            ),
            Change::Delete => action.delete(
                Delete::builder()
                    .table_name(&self.table)
                    .set_key(Some(key))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .set_return_values_on_condition_check_failure(all_old)
                    .build()?,
            ),
            Change::Check => action.condition_check(
                ConditionCheck::builder()
                    .table_name(&self.table)
                    .set_key(Some(key))
                    .set_condition_expression(condition)
                    .set_expression_attribute_names(names)
                    .set_expression_attribute_values(values)
                    .set_return_values_on_condition_check_failure(all_old)
                    .build()?,
            ),
        }
        .build())
    }
}

#[async_trait]
impl Store for DynamoDb {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        check_keys(keys)?;
        if let [key] = keys {
            return Ok(vec![self.get(key).await?]);
        }
        // A batch that names a key twice is refused.
        let different: Vec<&Key> = keys.iter().collect::<HashSet<_>>().into_iter().collect();
        let batches = try_join_all(different.chunks(BATCH_KEYS).map(|keys| self.get_batch(keys))).await?;
        let now = self.now();
        let mut rows = HashMap::new();
        for item in batches.into_iter().flatten() {
            if let Some(row) = item::row(item, now)? {
                rows.insert(row.key.clone(), row);
            }
        }
        Ok(keys.iter().map(|key| rows.get(key).cloned()).collect())
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        check_range(range)?;
        let limit = range.limit.unwrap_or(usize::MAX);
        let mut rows = Vec::new();
        // The first page asks for what is wanted. Where expired rows took places in it, the next are whole (1 MB).
        let mut page_rows = i32::try_from(limit).ok();
        let mut start = None;
        while rows.len() < limit {
            let call = self
                .client
                .query()
                .table_name(&self.table)
                .consistent_read(true)
                .scan_index_forward(!range.newest_first)
                .expression_attribute_values(":pk", AttributeValue::S(range.partition.clone()))
                .set_limit(page_rows.take())
                .set_exclusive_start_key(start);
            let call = if range.prefix.is_empty() {
                call.key_condition_expression("pk = :pk")
            } else {
                call.key_condition_expression("pk = :pk AND begins_with(sk, :prefix)")
                    .expression_attribute_values(":prefix", AttributeValue::S(range.prefix.clone()))
            };
            let page = call.send().await.map_err(store_error)?;
            let now = self.now();
            for item in page.items.unwrap_or_default() {
                rows.extend(item::row(item, now)?);
            }
            start = page.last_evaluated_key;
            if start.is_none() {
                break;
            }
        }
        rows.truncate(limit);
        Ok(rows)
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        check_writes(writes)?;
        let asks_or_changes = |write: &&Write| {
            let idle = write.change == Change::Check && write.expect == Expect::Anything;
            !idle
        };
        let writes: Vec<&Write> = writes.iter().filter(asks_or_changes).collect();
        for attempt in 0..ATTEMPTS {
            let outcome = match writes.as_slice() {
                [] => return Ok(()),
                [write] if write.change != Change::Check => self.write_one(write).await,
                several => self.write_all(several).await,
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Contended) => pause(attempt).await,
            }
        }
        Err(StoreError::Unavailable("other transactions or a throttle hold this write up".into()))
    }
}

/// Why a write failed.
enum Failure {
    /// Another transaction is at work on one of its rows, or the table throttles; nothing was written.
    Contended,
    /// For good.
    Final(StoreError),
}

/// The conflict of a write with the item that refused it, if there is one.
fn conflict(write: &Write, item: Option<Item>, now: u64) -> Failure {
    // An absent item comes as none, or as an empty one.
    let current = match item.filter(|item| !item.is_empty()).map(|item| item::row(item, now)).transpose() {
        Ok(current) => current.flatten().map(Box::new),
        Err(error) => return Failure::Final(error),
    };
    Failure::Final(StoreError::Conflict { key: write.key.clone(), current })
}

/// What a cancelled transaction means: it names a reason for each of its writes, in their order.
fn cancellation(canceled: &TransactionCanceledException, writes: &[&Write], now: u64) -> Failure {
    let reasons = canceled.cancellation_reasons();
    let with_code = |code| reasons.iter().zip(writes).find(move |(reason, _)| reason.code() == Some(code));
    if let Some((reason, write)) = with_code("ConditionalCheckFailed") {
        return conflict(write, reason.item().cloned(), now);
    }
    if let Some((reason, _)) = with_code("ValidationError") {
        let why = reason.message().unwrap_or("ValidationError");
        return Failure::Final(StoreError::Invalid(format!("DynamoDB: {why}")));
    }
    // The SDK repeats a throttled call, but not a transaction that was cancelled for a throttle.
    if ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"]
        .into_iter()
        .any(|code| with_code(code).is_some())
    {
        return Failure::Contended;
    }
    let codes: Vec<_> = reasons.iter().filter_map(|reason| reason.code()).collect();
    let why = format!("DynamoDB cancelled the transaction: {}", codes.join(", "));
    Failure::Final(StoreError::Unavailable(why))
}

fn failure<E: ProvideErrorMetadata + std::error::Error + 'static>(error: SdkError<E>) -> Failure {
    match error.code() {
        Some("TransactionConflictException" | "ReplicatedWriteConflictException") => Failure::Contended,
        _ => Failure::Final(store_error(error)),
    }
}

/// Only what DynamoDB calls invalid is [`StoreError::Invalid`]. A missing table or permission is not: it can be put
/// right, and until then nothing may be dropped.
fn store_error<E: ProvideErrorMetadata + std::error::Error + 'static>(error: SdkError<E>) -> StoreError {
    let invalid = error.code() == Some("ValidationException");
    let why = explain("DynamoDB", error);
    if invalid { StoreError::Invalid(why) } else { StoreError::Unavailable(why) }
}

/// A request that the SDK's builders refuse for want of a field, which would be our mistake.
fn incomplete(error: BuildError) -> StoreError {
    StoreError::Invalid(error.to_string())
}

/// Waits before the next attempt: 20 ms, doubled each time up to 500 ms, of which a random half, so that two writers that
/// met do not meet again.
async fn pause(attempt: u32) {
    let most_ms = 20_u64.saturating_mul(1 << attempt.min(10)).min(500);
    let random = getrandom::u64().unwrap_or_default();
    tokio::time::sleep(Duration::from_millis(most_ms / 2 + random % (most_ms / 2 + 1))).await;
}
