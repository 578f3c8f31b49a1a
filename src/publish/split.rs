//! Cutting a long text into messages: at paragraphs before lines before sentences before words, never within a character,
//! and not within what a reader sees as one where that can be helped.

use unicode_segmentation::UnicodeSegmentation;

/// What a part may need to close a code block, and the next one to open it again; with less room blocks stay open.
const MAX_FENCE_BYTES: usize = 64;

/// Cuts `text` into parts of at most `max_bytes` each, which together are the text. A single character may be longer than
/// that. A code block that is cut is closed and opened again, which alone is added. Parts that would be
/// nothing but white space are left out.
pub(super) fn split(text: &str, max_bytes: usize) -> impl Iterator<Item = String> {
    let mut rest = text.trim_end();
    let mut open: Option<Fence<'_>> = None;
    let is_roomy = max_bytes > 4 * MAX_FENCE_BYTES;
    std::iter::from_fn(move || {
        loop {
            if rest.is_empty() {
                return None;
            }
            let opening =
                open.filter(|_| is_roomy).map(|fence| format!("{}\n", fence.line)).unwrap_or_default();
            let room = max_bytes.saturating_sub(opening.len());
            let mut len = cut_at(rest, room);
            if is_roomy
                && len < rest.len()
                && fence_after(open, rest.get(..len).unwrap_or_default()).is_some()
            {
                len = cut_at(rest, room.saturating_sub(MAX_FENCE_BYTES));
            }
            let (part, more) = rest.split_at_checked(len).unwrap_or((rest, ""));
            let after = fence_after(open, part);
            let closing = match after {
                Some(fence) if is_roomy && !more.is_empty() => {
                    format!("{}{}", if part.ends_with('\n') { "" } else { "\n" }, fence.mark)
                }
                _ => String::new(),
            };
            (rest, open) = (more, after);
            if !part.trim().is_empty() {
                return Some(format!("{opening}{part}{closing}"));
            }
        }
    })
}

/// Where to cut: a character boundary, never 0, at most `max_bytes` unless the first character is longer.
fn cut_at(text: &str, max_bytes: usize) -> usize {
    if text.len() <= max_bytes {
        return text.len();
    }
    let most = text.floor_char_boundary(max_bytes);
    let window = text.get(..most).unwrap_or(text);
    let at_mark = ["\n\n", "\n", ". ", " "]
        .iter()
        .filter_map(|mark| window.rfind(mark).map(|at| at + mark.len()))
        // A cut in the first half would leave a scrap.
        .find(|at| *at > most / 2);
    let at_cluster = || {
        text.grapheme_indices(true)
            .map(|(at, cluster)| at + cluster.len())
            .take_while(|end| *end <= most)
            .last()
    };
    let first = || text.chars().next().map_or(text.len(), char::len_utf8);
    at_mark.or_else(at_cluster).or(Some(most)).filter(|at| *at > 0).unwrap_or_else(first)
}

/// A code block that is open: what opened it, and what closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence<'a> {
    line: &'a str,
    mark: &'a str,
}

impl<'a> Fence<'a> {
    /// The fence that `line` is, if it opens a block.
    fn opened_by(line: &'a str) -> Option<Self> {
        let text = line.trim_end();
        let inner = text.trim_start_matches(' ');
        let mark = inner.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let after = inner.trim_start_matches(mark);
        let len = inner.len() - after.len();
        let is_fence = len >= 3 && text.len() - inner.len() <= 3 && !(mark == '`' && after.contains('`'));
        let mark = inner.get(..len).filter(|_| is_fence && len < MAX_FENCE_BYTES)?;
        Some(Self { line: if text.len() < MAX_FENCE_BYTES { text } else { mark }, mark })
    }

    fn is_closed_by(self, line: &str) -> bool {
        let rest = line.trim();
        rest.starts_with(self.mark) && rest.chars().all(|c| self.mark.starts_with(c))
    }
}

/// The code block that is open behind `part`, where `open` was before it.
fn fence_after<'a>(open: Option<Fence<'a>>, part: &'a str) -> Option<Fence<'a>> {
    part.lines().fold(open, |open, line| match open {
        Some(fence) if fence.is_closed_by(line) => None,
        Some(fence) => Some(fence),
        None => Fence::opened_by(line),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::publish::MAX_PART_BYTES;

    fn parts(text: &str, max_bytes: usize) -> Vec<String> {
        split(text, max_bytes).collect()
    }

    #[test]
    fn a_long_text_is_cut_at_paragraphs_before_lines_before_words() {
        let paragraph = "word ".repeat(1_900);
        let text = format!("{paragraph}\n\n{paragraph}\n\n{}", paragraph.trim_end());
        let cut = parts(&text, MAX_PART_BYTES);
        assert_eq!(cut.concat(), text);
        assert_eq!(cut.iter().map(|part| part.trim_end()).collect::<Vec<_>>(), vec![paragraph.trim_end(); 3]);
    }

    #[test]
    fn no_character_is_torn_however_short_the_parts_and_clusters_stay_whole_where_they_fit() {
        let family = "👩\u{200d}👩\u{200d}👧\u{200d}👦";
        let cluster = format!("{family}🇪🇸🦀");
        let text = cluster.repeat(20_000);
        for max_bytes in [3, 10, MAX_PART_BYTES] {
            let cut = parts(&text, max_bytes);
            assert!(cut.concat() == text, "{max_bytes}");
            assert!(cut.iter().all(|part| part.len() <= max_bytes.max(4)), "{max_bytes}");
        }
        // Of 10 bytes a flag is 8; a family of 25 fits nowhere whole.
        let whole = |max_bytes: usize, cluster: &str| {
            let cut = parts(&text, max_bytes);
            cut.iter().map(|part| part.matches(cluster).count()).sum::<usize>() == 20_000
        };
        assert!(whole(10, "🇪🇸") && !whole(10, family));
        assert!(whole(MAX_PART_BYTES, family) && whole(MAX_PART_BYTES, "🇪🇸"));
        let word = "x".repeat(100_000);
        let cut = parts(&word, MAX_PART_BYTES);
        assert_eq!((cut.len(), cut.concat() == word), (7, true));
    }

    #[test]
    fn a_code_block_that_is_cut_is_closed_and_opened_again() {
        let code = "let x = 1;\n".repeat(60);
        let text = format!("Look:\n```rust\n{code}```\nDone. {}", "word ".repeat(80).trim_end());
        let cut = parts(&text, 400);
        insta::assert_snapshot!(
            cut.iter().map(|part| format!("{:?} … {:?}", part.lines().next().unwrap(), part.lines().last().unwrap())).collect::<Vec<_>>().join("\n"),
            @r#"
        "Look:" … "```"
        "```rust" … "```"
        "Done. word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word " … "Done. word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word "
        "word word" … "word word"
        "#
        );
        assert!(cut.iter().all(|part| part.len() <= 400));
        for part in &cut {
            assert!(part.matches("```").count().is_multiple_of(2), "{part}");
        }
        let joined = cut.concat().replace("```\n```rust\n", "").replace("\n```rust\n```\n", "\n");
        assert!(joined.contains(&code) || joined.matches("let x = 1;").count() == 60, "{joined}");
    }

    proptest! {
        #[test]
        fn parts_fit_are_never_blank_and_lose_nothing_but_space(
            text in "(\\PC|\n| |```|🇪🇸|\u{301}){0,40}", times in 1usize..40, max_bytes in 1usize..600,
        ) {
            let text = text.repeat(times);
            let cut = parts(&text, max_bytes);
            prop_assert!(cut.iter().all(|part| !part.trim().is_empty() && part.len() <= max_bytes.max(4)));
            let solid = |text: &str| text.split_whitespace().collect::<String>();
            if !text.contains("```") {
                prop_assert_eq!(solid(&cut.concat()), solid(&text));
            } else {
                // Only fences are added.
                let plain = |text: &str| solid(text).replace('`', "");
                prop_assert!(plain(&cut.concat()).len() >= plain(&text).len());
            }
        }
    }
}
