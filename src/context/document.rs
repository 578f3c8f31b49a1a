//! The document: the agent's name as its title, and the skills below it, their headings one level down.
//!
//! Authors' text is edited by byte ranges that a CommonMark parser names, and only at heading markers, so what is
//! no heading (hashtags, fences, indented code, HTML) stays as it was written.

use std::borrow::Cow;
use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag};

/// What stands between two skills. The blank lines keep a last line from becoming a heading over the rule.
pub(crate) const SEPARATOR: &str = "\n\n---\n\n";

/// How many lists and quotes one line may lie in: the parser's work grows with their number times that of the lines.
/// And how many marks a fence may have, which is closed by as many.
pub(crate) const MAX_NESTING: usize = 200;

/// One change: the bytes `range` of the source became `with`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) range: Range<usize>,
    pub(crate) with: String,
}

/// Text whose headings are one level down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bumped {
    pub(crate) text: String,
    /// What was changed, in order and without overlap.
    pub(crate) edits: Vec<Edit>,
    /// Headings of several lines over a rule of dashes: no other form holds them, so they stay at level 2.
    pub(crate) kept: usize,
}

/// The whole document; empty where no skill has text. The skills come prepared by [`prepare`].
pub(crate) fn join(title: &str, skills: &[String]) -> String {
    let skills: Vec<&str> = skills.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    if skills.is_empty() {
        return String::new();
    }
    format!("# {title}\n\n{}", skills.join(SEPARATOR))
}

/// The text as all readers of markdown take it. They do not agree on a carriage return alone, nor on tabs behind a fence, and
/// so not on where a fence ends: the one becomes a line end, the others go.
pub(crate) fn settled(text: &str) -> Cow<'_, str> {
    if !text.contains(['\r', '\t', '\u{b}', '\u{c}']) {
        return Cow::Borrowed(text);
    }
    // `\r\n` stays as it was written.
    let text = text.split("\r\n").map(|part| part.replace('\r', "\n")).collect::<Vec<_>>().join("\r\n");
    let lines = text.split_inclusive('\n').flat_map(|line| {
        let (line, end) = line.split_at(line.trim_end_matches(['\r', '\n']).len());
        let marks = line.trim_end_matches([' ', '\t', '\u{b}', '\u{c}']);
        [if is_fence(marks) { marks } else { line }, end]
    });
    Cow::Owned(lines.collect())
}

/// A skill's text as it stands in the document: no blank lines around it, headings one level down, an open fence or
/// HTML block closed.
pub(crate) fn prepare(text: &str) -> Bumped {
    let text = trim_blank_lines(text);
    let outline = Outline::of(text);
    let mut bumped = bump(text, &outline);
    bumped.text.extend(outline.closing(text));
    bumped
}

/// Closes a fence or HTML block that the text leaves open.
pub(crate) fn close(text: &mut String) {
    if ["```", "~~~", "<"].iter().any(|mark| text.contains(mark)) {
        let closing = Outline::of(text).closing(text);
        text.extend(closing);
    }
}

/// Whether the last line may be a fence.
pub(crate) fn ends_with_fence(text: &str) -> bool {
    text.lines().next_back().is_some_and(is_fence)
}

/// Whether a line is fence marks and nothing else, but for what begins lists and quotes.
fn is_fence(line: &str) -> bool {
    let marks = without_prefix(line);
    marks.len() >= 3 && ['`', '~'].iter().any(|mark| marks.chars().all(|c| c == *mark))
}

/// Whether a line lies in more lists and quotes than [`MAX_NESTING`], or is a fence of more marks, so that the text is
/// better not parsed.
pub(crate) fn is_too_deep(text: &str) -> bool {
    text.lines().any(|line| {
        let is_prefix = |c: &char| c.is_ascii_digit() || " \t>-+*.)".contains(*c);
        let end = line.find(|c| !is_prefix(&c)).unwrap_or(line.len());
        let prefix = line.get(..end).unwrap_or_default().as_bytes();
        // A rule is no nesting: but for quotes, white space or a quote follows what begins one.
        let begins = |pair: &&[u8]| {
            matches!(pair, [b'>', _] | [b'-' | b'+' | b'*' | b'.' | b')', b' ' | b'\t' | b'>'])
        };
        let marks =
            line.get(end..).unwrap_or_default().bytes().take_while(|mark| matches!(mark, b'`' | b'~'));
        let nesting = prefix.windows(2).filter(begins).count();
        nesting > MAX_NESTING || marks.count() > MAX_NESTING
    })
}

/// Whether one of the lines at `seams`, which ascend, may open a fence or an HTML block.
pub(crate) fn opens_at(text: &str, seams: &[usize]) -> bool {
    let mut done = None;
    seams.iter().any(|&seam| {
        // Of the seams of one line the first is enough.
        let Some(before) = text.get(done.unwrap_or(0)..seam) else { return false };
        let start = match (before.rfind('\n'), done) {
            (Some(newline), from) => from.unwrap_or(0) + newline + 1,
            (None, None) => 0,
            (None, Some(_)) => return false,
        };
        done = Some(seam);
        may_open(text.get(start..).unwrap_or_default())
    })
}

/// Whether an indented line may open a fence or an HTML block: below a list it opens it in the list, which ends it.
pub(crate) fn opens_indented(text: &str) -> bool {
    text.lines().any(|line| line.starts_with([' ', '\t']) && may_open(line))
}

fn may_open(line: &str) -> bool {
    without_prefix(line).starts_with(['`', '~', '<'])
}

/// A line without what begins lists and quotes.
fn without_prefix(line: &str) -> &str {
    line.trim_start_matches(|c: char| c.is_ascii_digit() || " \t>-+*.)".contains(c))
}

/// What a CommonMark parser says of a text.
struct Outline {
    /// Level and place of each heading.
    headings: Vec<(HeadingLevel, Range<usize>)>,
    /// Where the last block begins that could stay open. Only one at the outermost level can: a list or quote that
    /// ends closes what is in it.
    last_open: Option<usize>,
}

impl Outline {
    fn of(source: &str) -> Self {
        let start = front_matter_len(source);
        let body = source.get(start..).unwrap_or_default();
        let mut outline = Self { headings: Vec::new(), last_open: None };
        let mut depth = 0_usize;
        for (event, range) in Parser::new_ext(body, Options::empty()).into_offset_iter() {
            match event {
                Event::Start(tag) => {
                    match tag {
                        Tag::Heading { level, .. } => {
                            outline.headings.push((level, start + range.start..start + range.end));
                        }
                        Tag::CodeBlock(CodeBlockKind::Fenced(_)) | Tag::HtmlBlock if depth == 0 => {
                            outline.last_open = Some(start + range.start);
                        }
                        _ => {}
                    }
                    depth += 1;
                }
                Event::End(_) => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        outline
    }

    /// What closes the last block, on a line of its own, if the text leaves it open.
    fn closing(&self, source: &str) -> Option<String> {
        let block = source.get(self.last_open?..)?.trim_start_matches(' ');
        let mark = block.chars().next()?;
        let end = match mark {
            '`' | '~' => open_fence(block, mark)?,
            '<' => open_html(block)?.to_owned(),
            _ => return None,
        };
        Some(format!("\n{end}"))
    }
}

/// Moves every heading one level down: `#` gains one, a line over `===` gets `---`, a line over `---` becomes `###`.
/// Level 6 has nothing below it and stays.
///
/// A block between two `---` lines at the very start, without a blank line, a fence or HTML in it, is front matter and stays
/// too.
fn bump(source: &str, outline: &Outline) -> Bumped {
    let (mut edits, mut kept) = (Vec::new(), 0_usize);
    for (level, range) in &outline.headings {
        let Some(heading) = source.get(range.clone()) else { continue };
        let indent = heading.len().saturating_sub(heading.trim_start().len());
        let heading = heading.trim_end();
        let underline = heading.trim_end_matches(['=', '-']).len();
        let mut edit = |part: Range<usize>, with: &str| {
            let range = range.start + part.start..range.start + part.end;
            edits.push(Edit { range, with: with.to_owned() });
        };
        if is_atx(heading.trim_start(), *level) {
            if *level < HeadingLevel::H6 {
                edit(indent..indent, "#");
            }
        } else if *level == HeadingLevel::H1 {
            edit(underline..heading.len(), &"-".repeat(heading.len().saturating_sub(underline)));
        } else if let Some(line) = only_line(heading, underline) {
            // The line may be indented as far as it likes below a link definition; with hashes it may not.
            edit(0..indent, "### ");
            // Hashes at the end of the line would be taken for the closing ones.
            edit(line..heading.len(), if closes_itself(heading, line) { " ###" } else { "" });
        } else {
            kept += 1;
        }
    }
    Bumped { text: apply(source, &edits), edits, kept }
}

fn apply(source: &str, edits: &[Edit]) -> String {
    let mut text = String::with_capacity(source.len().saturating_add(edits.len()));
    let mut done = 0;
    for edit in edits {
        text.push_str(source.get(done..edit.range.start).unwrap_or_default());
        text.push_str(&edit.with);
        done = edit.range.end;
    }
    text.push_str(source.get(done..).unwrap_or_default());
    text
}

/// Whether a heading is of the `#` kind, and not a line over a rule that happens to begin with hashes.
fn is_atx(heading: &str, level: HeadingLevel) -> bool {
    let rest = heading.trim_start_matches('#');
    heading.len().saturating_sub(rest.len()) == level as usize
        && (rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Where the text of a heading over a rule ends, if it is one line.
fn only_line(heading: &str, underline: usize) -> Option<usize> {
    let above = heading.get(..underline)?;
    let end = above.rfind(['\n', '\r'])?;
    let end =
        if above.get(..end)?.ends_with('\r') && above.get(end..)?.starts_with('\n') { end - 1 } else { end };
    (!above.get(..end)?.contains(['\n', '\r'])).then_some(end)
}

fn closes_itself(heading: &str, line: usize) -> bool {
    heading.get(..line).is_some_and(|line| line.trim_end().ends_with('#'))
}

fn front_matter_len(source: &str) -> usize {
    let mut lines = source.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| line.trim_end() == "---") else { return 0 };
    let mut len = first.len();
    for (index, line) in lines.enumerate() {
        len += line.len();
        match line.trim_end() {
            "" => return 0,
            "---" if index > 0 => return len,
            "---" => return 0,
            // Readers who know no front matter would find it open to the end of the document.
            line if may_open(line) => return 0,
            _ => {}
        }
    }
    0
}

/// The fence that closes a block of code, if nothing after its first line does.
fn open_fence(block: &str, mark: char) -> Option<String> {
    let fence: String = block.chars().take_while(|c| *c == mark).collect();
    let is_closed = block.lines().skip(1).any(|line| is_closing(line, &fence, mark));
    (!is_closed).then_some(fence)
}

/// What closes an HTML block, if nothing in it does. Blocks of other kinds end at a blank line.
fn open_html(block: &str) -> Option<&'static str> {
    let is_open = |end: &str| !block.contains(end);
    for (start, end) in [("<!--", "-->"), ("<?", "?>"), ("<![CDATA[", "]]>"), ("<!", ">")] {
        if block.starts_with(start) {
            return Some(end).filter(|end| is_open(end));
        }
    }
    let lower = block.to_ascii_lowercase();
    let tags =
        [("<pre", "</pre>"), ("<script", "</script>"), ("<style", "</style>"), ("<textarea", "</textarea>")];
    let (_, end) = tags.iter().find(|(start, _)| {
        let rest = lower.strip_prefix(start);
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with(['>', ' ', '\t', '\n', '\u{b}', '\u{c}', '\r'])
        })
    })?;
    // For some readers another tag of these ends it as well.
    (!lower.contains(end)).then_some(end)
}

/// Nothing but spaces may follow the marks: of tabs markdown's readers think differently.
fn is_closing(line: &str, fence: &str, mark: char) -> bool {
    let marks = line.trim_start_matches(' ');
    let indent = line.len().saturating_sub(marks.len());
    let marks = marks.trim_end_matches(' ');
    indent <= 3 && marks.len() >= fence.len() && marks.chars().all(|c| c == mark)
}

/// Without blank lines at the start and white space at the end; the first line keeps its indentation.
fn trim_blank_lines(text: &str) -> &str {
    let text = text.trim_end();
    let indent = text.len().saturating_sub(text.trim_start().len());
    let start = text.get(..indent).and_then(|blank| blank.rfind('\n')).map_or(0, |newline| newline + 1);
    text.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bump_headings(text: &str) -> Bumped {
        super::bump(text, &Outline::of(text))
    }

    fn bump(text: &str) -> String {
        bump_headings(text).text
    }

    #[test]
    fn headings_of_every_form_go_one_level_down() {
        for (text, expected) in [
            ("# One", "## One"),
            ("#\tTab heading\n", "##\tTab heading\n"),
            ("# Heading #\n", "## Heading #\n"),
            ("   ## Two\r\ntext", "   ### Two\r\ntext"),
            ("#", "##"),
            ("##### Five\n###### Six", "###### Five\n###### Six"),
            ("Title\n=====\nSub\n---\ntext", "Title\n-----\n### Sub\ntext"),
            ("Title\n=  \n\nx", "Title\n-  \n\nx"),
            ("Sub #\r\n  ---  \r\ntext", "### Sub # ###  \r\ntext"),
            ("#tag\n===", "#tag\n---"),
            ("> Sub\n> ---\n> text", "> ### Sub\n> text"),
            ("- # In a list\n- Sub\n  ---", "- ## In a list\n- ### Sub"),
        ] {
            assert_eq!(bump(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_heading_stays_as_written() {
        for text in [
            "#bitcoin is great\n#nostr\n\n#!/bin/sh\n",
            "```sh\n# comment\nTitle\n===\n```\n",
            "~~~\n# open",
            "    # indented code",
            "<!--\n# comment\n-->",
            "<pre>\n# pre\n</pre>",
            "####### seven",
            "\\# escaped",
            "Be brief\n\n---\n\nthen",
            "",
        ] {
            assert_eq!(bump(text), text);
        }
    }

    #[test]
    fn a_heading_of_several_lines_stays_and_is_counted() {
        let bumped = bump_headings("one\ntwo\n---\n\nthree\nfour\n===\n");
        assert_eq!(bumped.text, "one\ntwo\n---\n\nthree\nfour\n---\n");
        assert_eq!(bumped.kept, 1);
    }

    #[test]
    fn front_matter_is_left_alone() {
        assert_eq!(bump("---\ntitle: x\n---\n# Two"), "---\ntitle: x\n---\n## Two");
        assert_eq!(bump("---\n\n# One\n\n---\n"), "---\n\n## One\n\n---\n");
        // No front matter: what opens in it would stay open.
        assert_eq!(prepare("---\n```\n---").text, "---\n```\n---\n```");
    }

    #[test]
    fn skills_are_joined_by_rules_and_empty_ones_leave_no_trace() {
        let skills: Vec<String> =
            ["Be brief", "---\ntitle: x\n---\n# Two", "Title\n=====\nSub\n---\ntext", "", " \n "]
                .iter()
                .map(|text| prepare(text).text)
                .collect();
        insta::assert_snapshot!(join("Didactyl Agent", &skills), @r"
        # Didactyl Agent

        Be brief

        ---

        ---
        title: x
        ---
        ## Two

        ---

        Title
        -----
        ### Sub
        text
        ");
        assert_eq!(join("Didactyl Agent", &skills[3..]), "");
    }

    #[test]
    fn lines_that_readers_take_differently_are_settled() {
        for (text, expected) in [
            ("a\rb\r\r\nc\r\n\r", "a\nb\n\r\nc\r\n\n"),
            ("é\r", "é\n"),
            ("```\r```\t \r\n\tb\t\n> ~~~ \t", "```\n```\r\n\tb\t\n> ~~~"),
            ("``` \t", "```"),
            ("``` rust\t\n", "``` rust\t\n"),
            ("a\r\nb", "a\r\nb"),
            ("", ""),
        ] {
            assert_eq!(settled(text), expected, "{text:?}");
        }
    }

    #[test]
    fn an_open_fence_is_closed_at_the_join() {
        for (text, expected) in [
            ("```rust\nfn main() {}\n", "```rust\nfn main() {}\n```"),
            ("~~~~\na\n~~~\n", "~~~~\na\n~~~\n~~~~"),
            ("a\n```", "a\n```\n```"),
            ("```\na\n```\n\nb", "```\na\n```\n\nb"),
            ("- ```\n  in a list", "- ```\n  in a list"),
            ("  ```\n  a\n  ```", "  ```\n  a\n  ```"),
            ("~~~\n\t~~~", "~~~\n\t~~~\n~~~"),
            ("~~~\n~~~\u{85}x", "~~~\n~~~\u{85}x\n~~~"),
            ("~~~\n~~~\u{a0}\n.", "~~~\n~~~\u{a0}\n.\n~~~"),
        ] {
            assert_eq!(prepare(text).text, expected, "{text:?}");
        }
    }

    #[test]
    fn an_open_html_block_is_closed_at_the_join() {
        for (text, end) in [
            ("<!-- note", "\n-->"),
            ("<!-- note -->", ""),
            ("<!-- a\n\nb -->\n\n<PRE>\n# code", "\n</pre>"),
            ("<pre>\n# code\n</pre>", ""),
            ("<pre\u{c}x", "\n</pre>"),
            ("<pre></textarea>\n\n<", "\n</pre>"),
            ("<script>\n\nx</STYLE>", "\n</script>"),
            ("<?php\n\nx", "\n?>"),
            ("<![CDATA[ x", "\n]]>"),
            ("<!DOCTYPE", "\n>"),
            ("<prefix>\nx", ""),
            ("- <!-- in a list", ""),
            ("text <!-- inline", ""),
        ] {
            assert_eq!(prepare(text).text, format!("{text}{end}"), "{text:?}");
        }
    }

    #[test]
    fn a_line_that_opens_something_is_found_by_its_seam() {
        let text = "``` x\nplain\n- > ~~~ y\nmore, <pre>\n<pre>";
        for (seams, expected) in [
            (&[0_usize][..], true),
            (&[4], true),
            (&[8], false),
            (&[6, 7, 9], false),
            (&[8, 18], true),
            (&[8, 9, 28], false),
            (&[28, 35], true),
            (&[99], false),
            (&[], false),
        ] {
            assert_eq!(opens_at(text, seams), expected, "{seams:?}");
        }
    }

    #[test]
    fn nesting_without_end_is_known_from_the_line() {
        for (text, expected) in [
            ("> ".repeat(200), false),
            ("> ".repeat(202), true),
            (">".repeat(202), true),
            ("text\n".to_owned() + &"- > 1. ".repeat(70) + "x", true),
            ("  ".to_owned() + &"`".repeat(201), true),
            ("~".repeat(200), false),
            ("-".repeat(500), false),
            ("*".repeat(500), false),
            ("> a\n".repeat(500), false),
            ("text ".to_owned() + &"> ".repeat(500), false),
        ] {
            assert_eq!(is_too_deep(&text), expected, "{text:?}");
        }
    }

    #[test]
    fn blank_lines_around_a_skill_are_dropped_but_not_its_indentation() {
        assert_eq!(prepare("\n \n    code\n\n").text, "    code");
    }

    /// Takes the edits back one after the other: what stands before the next one is then the source's again.
    fn undo(bumped: &Bumped, source: &str) -> String {
        let mut text = bumped.text.clone();
        for edit in &bumped.edits {
            let start = edit.range.start;
            text.replace_range(start..start + edit.with.len(), source.get(edit.range.clone()).unwrap());
        }
        text
    }

    fn levels(body: &str) -> Vec<usize> {
        Parser::new_ext(body, Options::empty())
            .filter_map(|event| match event {
                Event::Start(Tag::Heading { level, .. }) => Some(level as usize),
                _ => None,
            })
            .collect()
    }

    fn markdown() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "# ", "## ", "###### ", "#", "a", "b c", "\n", "\n", "\n", "===", "---", "```", "~~~~", "> ",
            "- ", "1. ", "    ", "\t", " ", "\r\n", "\\", "`", "<!--", "-->", "<div>", "[a]: b", "{{x}}",
            "*", "é🦀", "=", "-", "+",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
        #[test]
        fn undoing_the_edits_gives_the_source_back(source in markdown()) {
            let bumped = bump_headings(&source);
            prop_assert_eq!(undo(&bumped, &source), source.as_str());
            for edit in &bumped.edits {
                // Only markers: hashes, rules, and the line break and quote marks before a rule that goes.
                let marker = |c: char| "#=-> \t\r\n".contains(c);
                prop_assert!(source.get(edit.range.clone()).unwrap().chars().all(marker), "{edit:?}");
                prop_assert!(edit.with.chars().all(marker), "{edit:?}");
            }
        }

        #[test]
        fn every_heading_but_the_kept_ones_goes_one_level_down(source in markdown()) {
            let bumped = bump_headings(&source);
            let body = front_matter_len(&source);
            let of = |text: &str| levels(text.get(body..).unwrap());
            let (before, after) = (of(&source), of(&bumped.text));
            prop_assert_eq!(before.len(), after.len(), "{:?} -> {:?}", source, bumped.text);
            let kept = before.iter().zip(&after).filter(|(b, a)| **b == 2 && a == b).count();
            prop_assert_eq!(kept, bumped.kept);
            for (before, after) in before.into_iter().zip(after) {
                prop_assert!(after == (before + 1).min(6) || (before, after) == (2, 2));
            }
        }

        #[test]
        fn preparing_any_text_is_quiet(source in any::<String>()) {
            let text = prepare(&source).text;
            prop_assert_eq!(text.trim_end(), text.as_str());
        }
    }
}
