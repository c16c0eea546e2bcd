//! How errors repeat a rejected value: in quotes, cut, and without characters that a terminal would interpret.
//!
//! Secrets are not repeated. Values of forwarded headers, tokens, keys and deduplication ids never get here, and
//! [`echo_url`] leaves out the parts of a URL that may hold them.

/// Most characters of a rejected value that an error repeats. The rest is cut.
pub const ECHO_CHARS_MAX: usize = 64;
/// Stands for a part that is cut or left out.
const LEFT_OUT: char = '…';

/// The value in quotes, cut to [`ECHO_CHARS_MAX`] characters, with control characters and the like escaped.
pub fn echo(value: &str) -> String {
    let end = value.char_indices().nth(ECHO_CHARS_MAX).map(|(end, _)| end);
    match end {
        None => format!("{value:?}"),
        Some(end) => format!("{:?}", format!("{}{LEFT_OUT}", &value[..end])),
    }
}

/// The part of a value around a byte, in the form of [`echo`].
pub fn echo_around(value: &str, at: usize) -> String {
    let before = value.char_indices().take_while(|(start, _)| *start < at).count();
    let skipped = before.saturating_sub(ECHO_CHARS_MAX / 2);
    if skipped == 0 || value.chars().count() <= ECHO_CHARS_MAX {
        return echo(value);
    }
    let part = value.char_indices().nth(skipped).map_or("", |(start, _)| &value[start..]);
    echo(&format!("{LEFT_OUT}{part}"))
}

/// A URL, or a text that should be one, in the form of [`echo`]: without user, password, query and fragment.
pub fn echo_url(url: &str) -> String {
    let end = places_of(url, b"?#").next().map_or(url.len(), |(at, _)| at);
    let (shown, hidden) = url.split_at(end);
    let scheme = shown.split_once("://").map_or("", |(scheme, _)| scheme);
    let (scheme, shown) = if is_scheme(scheme) { shown.split_at(scheme.len() + "://".len()) } else { ("", shown) };
    // A password that is not encoded may contain slashes and question marks.
    let user_end = places_of(shown, b"@").last().map(|(_, after)| after);
    let is_query_of_user = user_end.is_none() && places_of(hidden, b"@").next().is_some();
    let password = places_of(shown, b":").next().filter(|_| is_query_of_user);
    let shown = match (user_end, password) {
        (Some(end), _) => format!("{LEFT_OUT}@{}", &shown[end..]),
        (None, Some((_, start))) => format!("{}{LEFT_OUT}", &shown[..start]),
        (None, None) => shown.to_owned(),
    };
    // The `?` or `#` stays, so that readers see that a part is missing.
    match hidden.chars().next() {
        None => echo(&format!("{scheme}{shown}")),
        Some('#') => echo(&format!("{scheme}{shown}#{LEFT_OUT}")),
        Some(_) => echo(&format!("{scheme}{shown}?{LEFT_OUT}")),
    }
}

/// Whether the text can be the scheme of a URL (RFC 3986).
pub(crate) fn is_scheme(text: &str) -> bool {
    let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(is_rest)
}

/// The positions of these characters, verbatim or percent-encoded one or more times.
fn places_of<'a>(text: &'a str, wanted: &'a [u8]) -> impl Iterator<Item = (usize, usize)> + 'a {
    let bytes = text.as_bytes();
    (0..bytes.len()).filter_map(move |at| match bytes[at] {
        b'%' => {
            let mut digits = at + 1;
            while bytes.get(digits..digits + 2) == Some(b"25") {
                digits += 2;
            }
            let pair = text.get(digits..digits + 2)?;
            let byte = u8::from_str_radix(pair, 16).ok().filter(|_| !pair.starts_with('+'))?;
            wanted.contains(&byte).then_some((at, digits + pair.len()))
        }
        byte => wanted.contains(&byte).then_some((at, at + 1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_quoted_cut_and_harmless() {
        let (fits, long) = ("a".repeat(ECHO_CHARS_MAX), "é".repeat(10_000_000));
        for (value, expected) in [
            ("500ms", r#""500ms""#.to_owned()),
            ("", r#""""#.to_owned()),
            (&fits, format!("\"{fits}\"")),
            (&long, format!("\"{}…\"", "é".repeat(ECHO_CHARS_MAX))),
            ("a\"b", r#""a\"b""#.to_owned()),
            ("\u{1b}[2J\r\n\0\u{9b}", r#""\u{1b}[2J\r\n\0\u{9b}""#.to_owned()),
            ("\u{202e}gpj.exe \u{200b}\u{2028}", r#""\u{202e}gpj.exe \u{200b}\u{2028}""#.to_owned()),
            ("<b>grün</b>", "\"<b>grün</b>\"".to_owned()),
        ] {
            assert_eq!(echo(value), expected);
        }
    }

    #[test]
    fn the_excerpt_of_a_long_value_is_around_the_mistake() {
        let long = format!("{}^{}", "1+".repeat(60), "2+".repeat(60));
        assert_eq!(echo_around("2^3", 1), "\"2^3\"");
        assert_eq!(echo_around(&"a".repeat(ECHO_CHARS_MAX), 60), echo(&"a".repeat(ECHO_CHARS_MAX)));
        let expected = format!("\"…{}^{}…\"", "1+".repeat(16), "2+".repeat(15));
        assert_eq!(echo_around(&long, 120), expected);
        assert_eq!(echo_around("é", 1), "\"é\"", "not at a character");
    }

    #[test]
    fn urls_lose_user_password_and_query() {
        for (url, expected) in [
            ("example.com/hook", "example.com/hook"),
            ("ftp://example.com", "ftp://example.com"),
            ("ftp://user:secret@example.com/a", "ftp://…@example.com/a"),
            ("user:secret@example.com", "…@example.com"),
            ("user:sec/ret@example.com", "…@example.com"),
            ("https://@example.com", "https://…@example.com"),
            ("https://u:p@q:secret@example.com", "https://…@example.com"),
            ("example.com/hook?token=secret", "example.com/hook?…"),
            ("example.com/hook?user:secret@example.org", "example.com/hook?…"),
            ("example.com/#secret", "example.com/#…"),
            ("example.com:80/?mail=a@b.example", "example.com:…?…"),
            ("ftp://user:sec/ret?1@example.com", "ftp://user:…?…"),
            ("ftp%3A%2F%2Fuser%3Asecret%40example.com", "…@example.com"),
            ("ftp%3A%2F%2Fuser%3Asecret%2540example.com", "…@example.com"),
            ("ftp%3A%2F%2Fexample.com%3Ftoken%3Dsecret", "ftp%3A%2F%2Fexample.com?…"),
            ("example.com/%", "example.com/%"),
            ("example.com/%é", "example.com/%é"),
        ] {
            assert_eq!(echo_url(url), format!("\"{expected}\""), "{url}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_echoed_bounded_and_printable(
            value in "[a-z@%?#:/4 0\u{0}-\u{9f}\u{2000}-\u{2100}]{0,200}",
            at in 0..210usize,
        ) {
            let longest_escape = r"\u{10ffff}".len();
            for text in [echo(&value), echo_url(&value), echo_around(&value, at)] {
                let is_bounded = text.chars().count() <= (ECHO_CHARS_MAX + 1) * longest_escape + 2;
                prop_assert!(is_bounded);
                prop_assert!(!text.contains(char::is_control));
            }
            let url = echo_url(&format!("ftp://user:secret{value}@example.com/?key=other"));
            prop_assert!(!url.contains("secret") && !url.contains("other"), "{}", url);
        }
    }
}
