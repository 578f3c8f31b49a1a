//! The adoption list, kind 10123: which skills the agent has, in the order in which the model reads them.

pub mod write;

use std::collections::BTreeMap;

use nostr::prelude::{Coordinate, Event, FromBech32, Kind, Nip19Coordinate, PublicKey};

use super::name;
use crate::events::parse_coordinate;
use crate::kinds;

/// The adopted skills' coordinates in list order, each d tag once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdoptionList {
    /// The entries.
    pub entries: Vec<Coordinate>,
}

impl AdoptionList {
    /// Reads the agent's list. Any value of any tag that is a skill's coordinate or naddr is an entry; an entry that
    /// cannot count is left out and told in `warnings`.
    ///
    /// Where two entries share a d tag the first wins, even where its skill is not at hand: otherwise a relay that
    /// keeps back the agent's own skill would put another author's in its place.
    #[must_use]
    pub fn parse(event: &Event, agent: PublicKey, warnings: &mut Vec<String>) -> Self {
        let mut entries: Vec<Coordinate> = Vec::new();
        let mut by_d: BTreeMap<String, usize> = BTreeMap::new();
        let values = event.tags.iter().flat_map(|tag| tag.as_slice().iter().skip(1));
        for entry in values.filter_map(|value| entry(value)) {
            let d = name(&entry.identifier);
            if entry.kind == kinds::PRIVATE_SKILL && entry.public_key != agent {
                warnings.push(format!("adoption list: {d} is a private skill of another author, left out"));
            } else if let Some(first) = by_d.get(&entry.identifier) {
                if entries.get(*first) != Some(&entry) {
                    warnings.push(format!(
                        "adoption list: two entries have the d tag {d}, the later is left out"
                    ));
                }
            } else {
                by_d.insert(entry.identifier.clone(), entries.len());
                entries.push(entry);
            }
        }
        Self { entries }
    }
}

fn entry(value: &str) -> Option<Coordinate> {
    let value = value.trim();
    let bech32 = value.strip_prefix("nostr:").unwrap_or(value);
    let coordinate = match parse_coordinate(value) {
        Some(coordinate) if value.matches(':').count() >= 2 => coordinate,
        _ => Nip19Coordinate::from_bech32(bech32).ok()?.coordinate,
    };
    is_skill(coordinate.kind).then_some(coordinate)
}

fn is_skill(kind: Kind) -> bool {
    kind == kinds::PUBLIC_SKILL || kind == kinds::PRIVATE_SKILL
}

#[cfg(test)]
mod tests {
    use nostr::prelude::ToBech32;

    use super::*;
    use crate::skill::tests::{keys, signed};

    fn list(tags: &[&[&str]]) -> (Vec<String>, Vec<String>) {
        let mut warnings = Vec::new();
        let list = AdoptionList::parse(
            &signed(1, kinds::ADOPTION_LIST, tags, ""),
            keys(1).public_key(),
            &mut warnings,
        );
        (list.entries.iter().map(|c| format!("{}:{}", c.kind, c.identifier)).collect(), warnings)
    }

    #[test]
    fn entries_are_found_in_any_tag_and_keep_their_order() {
        let (own, other) = (keys(1).public_key(), keys(2).public_key());
        let naddr = Coordinate::new(kinds::PUBLIC_SKILL, other).identifier("n:x").to_bech32().unwrap();
        let (entries, warnings) = list(&[
            &["a", &format!("31123:{other}:b:c"), "wss://relay.example"],
            &["skill", "note", &format!("31124:{own}:a")],
            &["naddr", &format!("nostr:{naddr}")],
            &["a", &format!("31123:{own}:")],
            &["a", &format!("30023:{own}:article")],
            &["a", &format!("31123:{own}")],
            &["a", "31123:zz:x"],
            &["a"],
            &["31123"],
        ]);
        assert_eq!(entries, ["31123:b:c", "31124:a", "31123:n:x", "31123:"]);
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn of_two_entries_with_one_d_the_first_wins() {
        let (own, other) = (keys(1).public_key(), keys(2).public_key());
        let (entries, warnings) = list(&[
            &["a", &format!("31124:{own}:chat")],
            &["a", &format!("31123:{other}:chat")],
            &["a", &format!("31124:{own}:chat")],
            &["a", &format!("31124:{other}:secret")],
        ]);
        assert_eq!(entries, ["31124:chat"]);
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        adoption list: two entries have the d tag "chat", the later is left out
        adoption list: "secret" is a private skill of another author, left out
        "#);
    }

    #[test]
    fn values_of_every_odd_shape_are_no_entries() {
        let own = keys(1).public_key();
        let huge = "9".repeat(100_000);
        let odd = [
            String::new(),
            " ".to_owned(),
            "31123".to_owned(),
            "31123:".to_owned(),
            format!("31123:{own}"),
            format!("-31123:{own}:x"),
            format!("NaN:{own}:x"),
            format!("99999999999999999999:{own}:x"),
            format!("31125:{own}:x"),
            format!("31123:{}:x", own.to_hex().to_uppercase().replace('0', "O")),
            format!("31123:0{own}:x"),
            format!("31123:\u{0}{own}:x"),
            format!("31123:{}:x", own.to_bech32().unwrap()),
            "naddr1qqqq".to_owned(),
            "nostr:".to_owned(),
            own.to_bech32().unwrap(),
            huge.clone(),
            format!("{huge}:{own}:x"),
        ];
        let tags: Vec<Vec<&str>> = odd.iter().map(|value| vec!["a", value]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        assert_eq!(list(&tags), (vec![], vec![]));
        // What is odd in its d tag alone names a skill all the same, and stays one line in warnings.
        let d = "a\n\u{0}".repeat(1_000);
        let (entries, warnings) =
            list(&[&["a", &format!("31123:{own}:{d}")], &["a", &format!("31124:{own}:{d}")]]);
        assert_eq!(entries, [format!("31123:{d}")]);
        assert!(
            warnings.len() == 1 && warnings[0].len() < 400 && !warnings[0].contains('\n'),
            "{warnings:?}"
        );
    }
}
