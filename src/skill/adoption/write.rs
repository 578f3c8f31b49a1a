//! New versions of the adoption list. Whatever is not asked to change stays as it was written: order, tag forms,
//! relay hints, tags and entries that we cannot read.

use nostr::prelude::{Coordinate, RelayUrl, Tag};

use super::entry;

/// The list's tags with `skill` at their end, as `["a", coordinate, relay?]`; unchanged where an entry names it.
///
/// An entry of another skill with the same d tag, further up, would still win: ask [`super::AdoptionList`] first.
#[must_use]
pub fn adopt(mut tags: Vec<Tag>, skill: &Coordinate, relay: Option<&RelayUrl>) -> Vec<Tag> {
    if !tags.iter().any(|tag| names(tag, skill)) {
        let hint = relay.map(ToString::to_string);
        tags.push(Tag::custom("a", std::iter::once(skill.to_string()).chain(hint)));
    }
    tags
}

/// The list's tags without `skill`, wherever and however it is named. Of a tag that names other skills too, only the
/// values that name this one go.
#[must_use]
pub fn unadopt(tags: Vec<Tag>, skill: &Coordinate) -> Vec<Tag> {
    tags.into_iter().filter_map(|tag| without(tag, skill)).collect()
}

fn without(tag: Tag, skill: &Coordinate) -> Option<Tag> {
    if !names(&tag, skill) {
        return Some(tag);
    }
    let is_other = |value: &String| entry(value).is_some_and(|other| other != *skill);
    let values = tag.as_slice().get(1..).unwrap_or_default();
    if !values.iter().any(is_other) {
        return None;
    }
    let rest = values.iter().filter(|value| entry(value).as_ref() != Some(skill));
    Some(Tag::custom(tag.kind(), rest))
}

fn names(tag: &Tag, skill: &Coordinate) -> bool {
    tag.as_slice().iter().skip(1).any(|value| entry(value).as_ref() == Some(skill))
}

#[cfg(test)]
mod tests {
    use nostr::prelude::ToBech32;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::kinds;
    use crate::skill::adoption::AdoptionList;
    use crate::skill::tests::{keys, signed};

    fn coordinate(n: u8, d: &str) -> Coordinate {
        Coordinate::new(kinds::PUBLIC_SKILL, keys(n).public_key()).identifier(d)
    }

    fn tags(tags: &[&[&str]]) -> Vec<Tag> {
        tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()).collect()
    }

    #[test]
    fn adopting_appends_and_leaves_the_rest_as_it_is() {
        let naddr = coordinate(2, "x").to_bech32().unwrap();
        let before = tags(&[
            &["alt", "skills"],
            &["skill", &format!("nostr:{naddr}"), "note"],
            &["a", "31123:zz:damaged"],
            &["a"],
        ]);
        let relay = RelayUrl::parse("wss://relay.example").unwrap();
        let after = adopt(before.clone(), &coordinate(1, "a:b"), Some(&relay));
        let added = format!("31123:{}:a:b", keys(1).public_key());
        assert_eq!(after, [before.clone(), tags(&[&["a", &added, "wss://relay.example"]])].concat());
        assert_eq!(adopt(after.clone(), &coordinate(1, "a:b"), None), after, "named by an a tag");
        assert_eq!(adopt(before.clone(), &coordinate(2, "x"), None), before, "named by an naddr");
        assert_eq!(
            adopt(vec![], &coordinate(1, "n"), None),
            tags(&[&["a", &coordinate(1, "n").to_string()]])
        );
    }

    #[test]
    fn unadopting_removes_every_form_of_one_entry_and_nothing_else() {
        let (x, y) = (coordinate(2, "x"), coordinate(2, "x:y"));
        let naddr = x.to_bech32().unwrap();
        let before = tags(&[
            &["title", "mine"],
            &["a", &x.to_string(), "wss://relay.example"],
            &["skill", &naddr],
            &["set", "first", &y.to_string(), &x.to_string()],
            &["a", "31123:zz:x"],
            &["a", &coordinate(3, "x").to_string()],
        ]);
        let after = tags(&[
            &["title", "mine"],
            &["set", "first", &y.to_string()],
            &["a", "31123:zz:x"],
            &["a", &coordinate(3, "x").to_string()],
        ]);
        assert_eq!(unadopt(before, &x), after);
        assert_eq!(unadopt(after.clone(), &x), after);
    }

    /// All entries, shadowed ones and repetitions too.
    fn entries(tags: &[Tag]) -> Vec<Coordinate> {
        tags.iter().flat_map(|tag| tag.as_slice().iter().skip(1)).filter_map(|value| entry(value)).collect()
    }

    fn any_value() -> impl Strategy<Value = String> {
        let named = (1u8..4, select(vec!["", "a", "a:b", "b"])).prop_map(|(n, d)| coordinate(n, d));
        prop_oneof![
            named.clone().prop_map(|named| named.to_string()),
            named.prop_map(|named| named.to_bech32().unwrap()),
            "\\PC{0,12}",
            Just("30023:x:y".to_owned()),
        ]
    }

    fn any_tags() -> impl Strategy<Value = Vec<Tag>> {
        let tag = (select(vec!["a", "naddr", "skill", "t"]), proptest::collection::vec(any_value(), 0..3));
        proptest::collection::vec(tag.prop_map(|(name, values)| Tag::custom(name, values)), 0..8)
    }

    proptest! {
        #[test]
        fn a_list_keeps_all_that_is_not_asked_to_change(tags in any_tags(), n in 1u8..4, d in "a|b|c") {
            let skill = coordinate(n, &d);
            let known = entries(&tags).contains(&skill);
            let adopted = adopt(tags.clone(), &skill, None);
            prop_assert_eq!(&adopted[..tags.len()], &tags[..]);
            prop_assert_eq!(adopted.len() - tags.len(), usize::from(!known));
            prop_assert!(entries(&adopted).contains(&skill));

            let removed = unadopt(adopted, &skill);
            let others = |all: Vec<Coordinate>| all.into_iter().filter(|e| *e != skill).collect::<Vec<_>>();
            prop_assert_eq!(entries(&removed), others(entries(&tags)));
            if !known {
                prop_assert_eq!(&removed, &tags);
            }
            let mut event = signed(1, kinds::ADOPTION_LIST, &[], "");
            event.tags = nostr::prelude::Tags::from_list(removed);
            let list = AdoptionList::parse(&event, keys(1).public_key(), &mut Vec::new());
            prop_assert!(!list.entries.contains(&skill));
        }
    }
}
