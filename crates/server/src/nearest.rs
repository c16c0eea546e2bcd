//! The known name that is nearest to a typo, for headers in `dev` and keys of the configuration file.

/// A name that is less similar than this is not suggested; 1 is the same name.
const SIMILARITY_MIN: f64 = 0.5;
/// Longest name that is compared; a longer one is no typo.
const NAME_BYTES_MAX: usize = 64;

/// The most similar of the known names, if it is similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let similar = known.into_iter().map(|known| (strsim::normalized_damerau_levenshtein(name, known), known));
    let (similarity, known) = similar.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= SIMILARITY_MIN).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_leads_to_the_name_and_other_words_to_none() {
        let known = ["listen", "log_retention", "dlq_retention"];
        let long = format!("listen{}", "n".repeat(NAME_BYTES_MAX));
        for (name, expected) in [
            ("log_retentoin", Some("log_retention")),
            ("lsten", Some("listen")),
            ("xyzzy", None),
            ("", None),
            (long.as_str(), None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(nearest("listen", []), None);
    }
}
