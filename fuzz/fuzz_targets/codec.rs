//! Skill events and adoption lists of any tags and content: read the same twice, whoever signed them.
#![no_main]

use didactyl::kinds;
use didactyl::skill::Skill;
use didactyl::skill::adoption::AdoptionList;
use didactyl_fuzz::{event, keys};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: (bool, Vec<Vec<String>>, String)| {
    let (is_private, tags, content) = parts;
    let kind = if is_private { kinds::PRIVATE_SKILL } else { kinds::PUBLIC_SKILL };
    let skill = event(kind, tags.clone(), &content);
    for reader in [keys(1), keys(3)] {
        let (mut warnings, mut again) = (Vec::new(), Vec::new());
        let read = Skill::parse(&skill, &reader, &mut warnings);
        assert_eq!(read, Skill::parse(&skill, &reader, &mut again));
        assert_eq!(warnings, again);
    }
    let list = event(kinds::ADOPTION_LIST, tags, &content);
    let list = AdoptionList::parse(&list, keys(1).public_key(), &mut Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    assert!(list.entries.iter().all(|entry| seen.insert(&entry.identifier)), "two entries have one d tag");
});
