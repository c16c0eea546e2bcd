//! Every mistake in a configuration file, and the whole text that its author reads.

use super::*;

fn said(file: &str) -> String {
    let Err(error) = toml::from_str::<Settings>(file) else { panic!("nothing is wrong with {file}") };
    describe(file, &error)
}

/// A text about a line whose value is left out, with the caret below the key or below the value.
fn with_line(problem: &str, key: &str, is_in_value: bool) -> String {
    let caret = if is_in_value { format!("{}^", " ".repeat(key.len() + 3)) } else { "^".repeat(key.len()) };
    format!("line 1: {problem}\n  |\n1 | {key} = …\n  | {caret}")
}

#[test]
fn names_that_do_not_exist_lead_to_those_that_do() {
    for (file, expected) in [
        (
            "log_retentoin = \"7d\"",
            with_line("unknown key log_retentoin; did you mean log_retention?", "log_retentoin", false),
        ),
        ("xyzzy = 1", with_line("unknown key xyzzy", "xyzzy", false)),
        ("token_sha256 = \"a\"", with_line("unknown key token_sha256; it belongs below a [[tenants]]", "token_sha256", false)),
        ("\"a b\" = 1", "line 1: unknown key \"a b\"".to_owned()),
        ("xyzzy.listen = 1", "line 1: unknown key xyzzy".to_owned()),
        (
            "[[tenant]]\nname = \"a\"",
            "line 1: unknown key tenant; did you mean tenants?\n  |\n1 | [[tenant]]\n  | ^^^^^^^^^^".to_owned(),
        ),
        (
            "[server]\nlisten = \"a\"",
            "line 1: unknown key server; the only tables are [[tenants]] and [[tenants.tokens]], and other settings stand above \
             them\n  |\n1 | [server]\n  | ^^^^^^^^"
                .to_owned(),
        ),
        (
            "# ten lines\n\n\n\n\n\n\n\n[[tenants]]\n  tokn = \"secret\"",
            "line 10: unknown key tokn; did you mean token?\n   |\n10 | tokn = …\n   | ^^^^".to_owned(),
        ),
        (
            "[[tenants]]\nname = \"a\"\nlisten = \"x\"",
            "line 3: unknown key listen; it belongs before the first [[tenants]]\n  |\n3 | listen = …\n  | ^^^^^^".to_owned(),
        ),
        (
            "[[tenants]]\nname = \"a\"\n[[tenants.tokens]]\nname = \"b\"\nscop = \"full\"",
            "line 5: unknown key scop; did you mean scope?\n  |\n5 | scop = …\n  | ^^^^".to_owned(),
        ),
    ] {
        assert_eq!(said(file), expected, "{file}");
    }
}

#[test]
fn values_of_another_form_lead_to_the_right_one() {
    let count = "expected a whole number from 0 to 4294967295";
    for (key, value, problem) in [
        ("listen", "127.0.0.1:80", "strings need quotes"),
        ("log_retention", "7d", "strings need quotes"),
        ("log_retention", "“7d”", "strings need quotes"),
        ("log_format", "json", "strings need quotes"),
        ("egress_allow_hosts", "[\"a\", secret]", "strings need quotes"),
        ("journal", "yes", "expected true or false"),
        ("journal", "True", "expected true or false"),
        ("max_retries", "3 retries", count),
        ("egress_allow_hosts", "secret", "expected a list, such as [\"…\"]"),
        ("listen", "", "the value is missing"),
        ("listen", "\"secret", "the string has no closing quote"),
        ("listen", "'secret", "the string has no closing quote"),
        ("listen", "\"a\" \"secret\"", "expected the end of the line after the value"),
        ("log_retention", "7", "expected a string in quotes, found a whole number"),
        ("log_retention", "2026-01-01", "expected a string in quotes, found a date"),
        ("log_retention", "{ secret = \"secret\" }", "expected a string in quotes, found a table"),
        ("log_retention", "[\"secret\"]", "expected a string in quotes, found a list"),
        ("log_format", "3", "expected a string in quotes"),
        ("log_format", "\"secret\"", "expected \"pretty\" or \"json\""),
        ("log_format", "\"sec\\nret`, expected `secret`\"", "expected \"pretty\" or \"json\""),
        ("journal", "\"yes\"", "expected true or false, found a string"),
        ("journal", "1", "expected true or false, found a whole number"),
        ("max_retries", "\"secret\"", &format!("{count}, found a string")),
        ("max_retries", "\"secret, expected secret\"", &format!("{count}, found a string")),
        ("max_retries", "1.5", &format!("{count}, found a number with decimals")),
        ("max_retries", "true", &format!("{count}, found true or false")),
        ("max_retries", "-1", count),
        ("max_retries", "99999999999999999999", count),
        ("message_bytes_max", "-1", "expected a whole number, 0 or more"),
        ("egress_allow_hosts", "\"secret\"", "expected a list, such as [\"…\"], found a string"),
        ("tenants", "3", "tenants is a list of tables: write [[tenants]]"),
    ] {
        let file = format!("{key} = {value}");
        assert_eq!(said(&file), with_line(problem, key, true), "{file}");
    }
}

#[test]
fn tables_and_lines_lead_to_the_right_form() {
    let list = "line 1: tenants is a list of tables: write [[tenants]]\n  |\n1 | [tenants]\n  | ^^^^^^^^^";
    for (file, expected) in [
        ("[tenants]\nname = \"a\"", list),
        (
            "[tenants]\nname = \"a\"\n[tenants]\nname = \"b\"",
            "line 3: tenants comes twice: write each as [[tenants]]\n  |\n3 | [tenants]\n  | ^^^^^^^^^",
        ),
        (
            "[[tenants]]\nname = \"a\"\n[tenants.tokens]\nname = \"b\"",
            "line 3: tenants.tokens is a list of tables: write [[tenants.tokens]]\n  |\n3 | [tenants.tokens]\n  | ^^^^^^^^^^^^^^^^",
        ),
        (
            "[[tenants]]\nname = \"a\"\n[[tenants.tokens]]\nname = \"b\"",
            "line 3: scope is missing\n  |\n3 | [[tenants.tokens]]\n  | ^^^^^^^^^^^^^^^^^^",
        ),
        (
            "[[tenants]]\nname = \"a\"\n[[tenants.tokens]]\nname = \"b\"\nscope = \"secret\"",
            "line 5: expected \"full\" or \"read-only\"\n  |\n5 | scope = …\n  |         ^",
        ),
        ("listen = \"a\"\nlisten = \"secret\"", "line 2: listen is set twice\n  |\n2 | listen = …\n  | ^^^^^^"),
        ("[[tenants\nname = \"a\"", "line 1: a bracket is not closed"),
        ("listen", "line 1: expected a line such as key = value"),
    ] {
        assert_eq!(said(file), expected, "{file}");
    }
}

/// A line that does not begin with a name of ours may be a piece of a value.
#[test]
fn lines_that_may_be_pieces_of_a_value_are_not_shown() {
    for (file, expected) in [
        ("token: \"secret\"", "line 1: expected a line such as key = value"),
        ("\"secret\"", "line 1: expected a line such as key = value"),
        ("secret==\n", "line 1: strings need quotes"),
        ("egress_allow_hosts = [\n\"secret\",\nsecret==\n]", "line 3: unexpected `=` in array, expected value, `]`"),
        ("egress_allow_hosts = [\n\"secret==\", 1,\n]", "line 2: expected a string in quotes, found a whole number"),
        ("token = \"\"\"\nsecret==\n", "line 3: invalid multi-line basic string, expected `\"`"),
        ("token = \"\"\"\nsecret=\"\"\" 1\n", "line 2: expected the end of the line after the value"),
    ] {
        assert_eq!(said(file), expected, "{file}");
    }
}
