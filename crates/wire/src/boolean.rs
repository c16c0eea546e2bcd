//! Booleans in headers: the set of Go's `strconv.ParseBool`, because Python sends `True` and others `1`.

/// Reads a boolean; `None` when the text is not in the set.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_go_set_is_accepted() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(parse_bool(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(parse_bool(text), Some(false), "{text}");
        }
        for text in ["", "yes", "maybe", "tRUE", " true", "2"] {
            assert_eq!(parse_bool(text), None, "{text}");
        }
    }
}
