//! Suggestions for forms that people know from other languages: powers, and durations with units.

use crate::duration::{Units, parse_duration_in};

/// How to write the part of a text at this byte, which is not a valid expression; `None` if it cannot be guessed.
pub(super) fn of(text: &str, at: usize) -> Option<String> {
    power(text, at).or_else(|| duration(text, at))
}

/// `2^retried` and `2**retried` become `pow(2, retried)`.
fn power(text: &str, at: usize) -> Option<String> {
    let (before, rest) = text.split_at_checked(at)?;
    let (base, exponent) = match (rest.strip_prefix('^'), rest.strip_prefix('*')) {
        (Some(exponent), _) => (before, exponent),
        (None, Some(exponent)) => (before.trim_end().strip_suffix('*')?, exponent),
        (None, None) => return None,
    };
    let (base, exponent) = (base.trim_end(), exponent.trim_start());
    let base = &base[base.rfind(|c: char| !is_of_operand(c)).map_or(0, |end| end + 1)..];
    let exponent = &exponent[..exponent.find(|c: char| !is_of_operand(c)).unwrap_or(exponent.len())];
    match base.is_empty() || exponent.is_empty() {
        true => Some("use pow(x, y)".to_owned()),
        false => Some(format!("use pow({base}, {exponent})")),
    }
}

/// `5s` becomes 5000, because results are in milliseconds.
fn duration(text: &str, at: usize) -> Option<String> {
    let (before, rest) = text.split_at_checked(at)?;
    let start = before.rfind(|c: char| !is_of_operand(c)).map_or(0, |end| end + 1);
    let end = rest.find(|c: char| !is_of_operand(c)).map_or(text.len(), |end| at + end);
    let written = &text[start..end];
    let millis = match written.strip_suffix("ms") {
        Some(number) => number.parse().ok()?,
        None if written.ends_with(|c: char| c.is_ascii_digit()) => return None,
        None => parse_duration_in(Units::Long, written).ok()?,
    };
    Some(format!("the result is in milliseconds: {millis}"))
}

/// Whether a number or a name may contain this character.
fn is_of_operand(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

#[cfg(test)]
mod tests {
    use crate::retry_delay::RetryDelay;

    #[test]
    fn syntax_errors_name_the_place_and_the_form_that_is_right() {
        let long = format!("{}2^retried{}", "1+".repeat(20), "+1".repeat(20));
        for (text, expected) in [
            ("2^retried", "1 of \"2^retried\"; use pow(2, retried)"),
            ("1000 * 2 ^ retried", "9 of \"1000 * 2 ^ retried\"; use pow(2, retried)"),
            ("2**retried", "2 of \"2**retried\"; use pow(2, retried)"),
            ("(1+2)^retried", "5 of \"(1+2)^retried\"; use pow(x, y)"),
            ("2^(1+1)", "1 of \"2^(1+1)\"; use pow(x, y)"),
            ("^", "0 of \"^\"; use pow(x, y)"),
            ("*", "0 of \"*\""),
            ("5s", "1 of \"5s\"; the result is in milliseconds: 5000"),
            ("1h30m", "1 of \"1h30m\"; the result is in milliseconds: 5400000"),
            ("500ms", "3 of \"500ms\"; the result is in milliseconds: 500"),
            ("1.5m * retried", "3 of \"1.5m * retried\"; the result is in milliseconds: 90000"),
            ("retried * 5s", "11 of \"retried * 5s\"; the result is in milliseconds: 5000"),
            ("5 s", "2 of \"5 s\""),
            ("5x", "1 of \"5x\""),
            ("1 +", "3 of \"1 +\""),
            ("", "0 of \"\""),
            ("1 \u{1b}", "2 of \"1 \\u{1b}\""),
            ("é", "0 of \"é\""),
            ("1é^2", "1 of \"1é^2\""),
            (&long, &format!("41 of \"…+{}2^retried{}+…\"; use pow(2, retried)", "1+".repeat(15), "+1".repeat(11))),
        ] {
            let error = RetryDelay::parse(text).unwrap_err().to_string();
            assert_eq!(error, format!("invalid retry delay expression: syntax error at position {expected}"), "{text}");
        }
    }
}
