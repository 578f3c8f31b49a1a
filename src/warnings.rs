//! Warnings for the operator: sentences that say what was left out, and why.

use std::collections::BTreeSet;

/// The most warnings of one state or context. What is wrong a thousand times is told well enough by a few.
const MAX_WARNINGS: usize = 100;

/// Keeps each warning once, and of very many the first.
pub(crate) fn limit(warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    warnings.retain(|warning| seen.insert(warning.clone()));
    let more = warnings.len().saturating_sub(MAX_WARNINGS);
    if more > 0 {
        warnings.truncate(MAX_WARNINGS);
        warnings.push(format!("{more} more warnings are not shown; mend those above first"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_told_once_and_not_without_end() {
        let mut warnings: Vec<String> = (0..300).map(|n| (n % 150).to_string()).collect();
        limit(&mut warnings);
        let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        assert_eq!(warnings[..100], expected);
        assert_eq!(warnings[100..], ["50 more warnings are not shown; mend those above first"]);
    }
}
