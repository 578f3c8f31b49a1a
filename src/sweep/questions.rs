//! The filters of many subscriptions as few filters that ask for the same. Pure.

use std::collections::BTreeSet;

use nostr::prelude::{Filter, Timestamp};

use super::plan::Stream;
use crate::hash::sha256;

/// What relays are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The stream that it is paged as.
    pub stream: Stream,
    /// What it asks for, without times and a limit.
    pub filter: Filter,
    /// Nothing older is wanted.
    pub since: Timestamp,
}

/// Puts together filters that differ in one list alone, in the place of the first of them: together they ask for exactly what each asked for, since what they
/// have alike. Each comes with the time before which nothing is wanted; its own times and limit are left to whoever looks at the events.
#[must_use]
pub fn questions(wanted: impl IntoIterator<Item = (Filter, Timestamp)>) -> Vec<Question> {
    let mut groups: Vec<(Filter, Timestamp)> = Vec::new();
    for (filter, since) in wanted {
        let mut one = (Filter { since: None, until: None, limit: None, ..filter }, since);
        let mut place = groups.len();
        // What is put together may fit to yet another.
        while let Some((at, both)) =
            groups.iter().enumerate().find_map(|(at, group)| Some((at, together(group, &one)?)))
        {
            groups.remove(at);
            (one, place) = (both, place.min(at));
        }
        groups.insert(place, one);
    }
    groups
        .into_iter()
        .map(|(filter, since)| Question { stream: Stream::Subscribed(number(&filter)), filter, since })
        .collect()
}

fn together(a: &(Filter, Timestamp), b: &(Filter, Timestamp)) -> Option<(Filter, Timestamp)> {
    let since = a.1.min(b.1);
    let (a, b) = (&a.0, &b.0);
    let mut both = a.clone();
    let mut differ = 0_usize;
    differ += join(&mut both.ids, b.ids.as_ref())?;
    differ += join(&mut both.authors, b.authors.as_ref())?;
    differ += join(&mut both.kinds, b.kinds.as_ref())?;
    if a.search != b.search || !a.generic_tags.keys().eq(b.generic_tags.keys()) {
        return None;
    }
    for (name, values) in &b.generic_tags {
        let joined = both.generic_tags.get_mut(name)?;
        if joined != values {
            differ += 1;
            joined.extend(values.iter().cloned());
        }
    }
    (differ <= 1).then_some((both, since))
}

/// Adds the other list; how many differed. `None` where only one of the two has such a list.
fn join<T: Ord + Clone>(list: &mut Option<BTreeSet<T>>, other: Option<&BTreeSet<T>>) -> Option<usize> {
    match (list.as_mut(), other) {
        (None, None) => Some(0),
        (Some(list), Some(other)) if list == other => Some(0),
        (Some(list), Some(other)) => {
            list.extend(other.iter().cloned());
            Some(1)
        }
        _ => None,
    }
}

/// The same filter has the same number in every process.
fn number(filter: &Filter) -> u64 {
    let hash = sha256(filter.try_as_json().unwrap_or_default().as_bytes());
    hash.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use nostr::filter::MatchEventOptions;
    use nostr::prelude::{Event, Kind};
    use proptest::prelude::*;

    use super::*;
    use crate::skill::tests::signed;

    fn of(filters: &[(&str, u64)]) -> Vec<(String, u64)> {
        let wanted = filters
            .iter()
            .map(|(filter, since)| (Filter::from_json(filter).unwrap(), Timestamp::from(*since)));
        questions(wanted).into_iter().map(|q| (q.filter.as_json(), q.since.as_secs())).collect()
    }

    #[test]
    fn filters_that_differ_in_one_list_are_asked_as_one_from_the_earlier_time_on() {
        assert_eq!(
            of(&[
                (r##"{"kinds":[1],"#t":["a"],"limit":5}"##, 30),
                (r##"{"kinds":[1],"#t":["b"],"since":7}"##, 20),
                (r##"{"kinds":[30023],"#t":["a","b"]}"##, 40),
            ]),
            [(r##"{"kinds":[1,30023],"#t":["a","b"]}"##.to_owned(), 20)]
        );
    }

    #[test]
    fn filters_that_differ_in_more_or_lack_a_list_stay_apart() {
        let apart = [
            (r##"{"kinds":[1],"#t":["a"]}"##, 1),
            (r##"{"kinds":[7],"#t":["b"]}"##, 1),
            (r##"{"#t":["a"]}"##, 1),
            (r##"{"kinds":[1],"#p":["a"]}"##, 1),
        ];
        let asked: Vec<(String, u64)> = apart.map(|(filter, since)| (filter.to_owned(), since)).into();
        assert_eq!(of(&apart), asked);
    }

    #[test]
    fn a_question_goes_by_the_same_number_whatever_order_it_was_written_in() {
        let number = |text: &str| super::number(&Filter::from_json(text).unwrap());
        assert_eq!(
            number(r##"{"#t":["b","a"],"kinds":[1]}"##),
            number(r##"{ "kinds": [1], "#t": ["a", "b"] }"##)
        );
        assert_ne!(number(r##"{"#t":["a"]}"##), number(r##"{"#t":["b"]}"##));
    }

    fn a_filter() -> impl Strategy<Value = Filter> {
        let kinds = proptest::collection::btree_set(1_u16..4, 0..3);
        let tags = proptest::collection::btree_set("[abc]", 0..3);
        (kinds, tags).prop_map(|(kinds, tags)| {
            let mut filter = Filter::new();
            filter.kinds = (!kinds.is_empty()).then(|| kinds.into_iter().map(Kind::from).collect());
            if tags.is_empty() { filter } else { filter.hashtags(tags) }
        })
    }

    fn events() -> Vec<Event> {
        let tags: [&[&[&str]]; 4] = [&[], &[&["t", "a"]], &[&["t", "b"]], &[&["t", "a"], &["t", "c"]]];
        let kinds = (1..4).map(Kind::from);
        kinds.flat_map(|kind| tags.map(|tags| signed(1, kind, tags, ""))).collect()
    }

    proptest! {
        #[test]
        fn what_is_asked_together_is_just_what_each_asked_for(filters in proptest::collection::vec(a_filter(), 0..6)) {
            let asked = questions(filters.iter().map(|filter| (filter.clone(), Timestamp::from(1))));
            prop_assert!(asked.len() <= filters.len());
            for event in events() {
                let fits = |filter: &Filter| filter.match_event(&event, MatchEventOptions::new());
                let together = asked.iter().any(|question| fits(&question.filter));
                prop_assert_eq!(together, filters.iter().any(fits));
            }
        }
    }
}
