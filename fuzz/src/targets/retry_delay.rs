//! Retry-delay expressions, compared with an evaluator that computes while parsing.

use posthaste_wire::retry_delay::{DELAY_MS_MAX, InvalidExpression, RetryDelay};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let expression = match RetryDelay::parse(text) {
        Ok(expression) => expression,
        Err(InvalidExpression::TooLong | InvalidExpression::TooManyNodes | InvalidExpression::TooDeep) => return,
        Err(refusal) => {
            super::check_refusal(&refusal.to_string());
            assert_eq!(evaluate(text, 0.0), None, "{text:?} was refused: {refusal}");
            return;
        }
    };
    for retried in [0, 1, 2, 5, 1_000, u32::MAX] {
        let delay = expression.delay_ms(retried);
        let expected = evaluate(text, f64::from(retried)).expect("it was accepted");
        let expected = (!expected.is_nan()).then(|| expected.max(0.0).min(DELAY_MS_MAX as f64).round() as u64);
        assert_eq!(delay, expected, "{text:?} at {retried}");
    }
    let checked = expression.check(6);
    let all_numbers = (0..6).all(|retried| expression.delay_ms(retried).is_some());
    assert_eq!(checked.is_ok(), all_numbers, "{text:?}");
}

/// The value of an expression; `None` if it is invalid.
fn evaluate(text: &str, retried: f64) -> Option<f64> {
    let tokens = tokens(text)?;
    let mut reader = Reader { tokens: &tokens, retried };
    let value = reader.binary(0)?;
    reader.tokens.is_empty().then_some(value)
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t']);
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '0'..='9' => number_end(rest)?,
            'a'..='z' | 'A'..='Z' | '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            '+' | '-' | '*' | '/' | '%' | '(' | ')' | ',' => 1,
            _ => return None,
        };
        let word = &rest[..end];
        tokens.push(match first {
            '0'..='9' => Token::Number(word.parse().ok()?),
            _ if first.is_ascii_alphabetic() || first == '_' => Token::Name(word.to_owned()),
            _ => Token::Sign(first),
        });
        rest = rest[end..].trim_start_matches([' ', '\t']);
    }
    Some(tokens)
}

/// The end of a number: digits, decimals, exponent.
fn number_end(text: &str) -> Option<usize> {
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(0);
    if text[end..].starts_with('.') {
        let decimals = digits(end + 1);
        end = (decimals > 0).then_some(end + 1 + decimals)?;
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = digits(end + 1 + sign);
        end = (exponent > 0).then_some(end + 1 + sign + exponent)?;
    }
    Some(end)
}

struct Reader<'a> {
    tokens: &'a [Token],
    retried: f64,
}

impl Reader<'_> {
    fn accept(&mut self, sign: char) -> bool {
        let found = self.tokens.first() == Some(&Token::Sign(sign));
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    /// Operators that bind at least as tightly as `level`, from the left.
    fn binary(&mut self, level: u8) -> Option<f64> {
        let mut left = self.operand()?;
        loop {
            let Some(Token::Sign(sign)) = self.tokens.first() else { return Some(left) };
            let (binds, sign) = match *sign {
                sign @ ('+' | '-') => (0, sign),
                sign @ ('*' | '/' | '%') => (1, sign),
                _ => return Some(left),
            };
            if binds < level {
                return Some(left);
            }
            self.tokens = &self.tokens[1..];
            let right = self.binary(binds + 1)?;
            left = match sign {
                '+' => left + right,
                '-' => left - right,
                '*' => left * right,
                '/' => left / right,
                _ => left % right,
            };
        }
    }

    fn operand(&mut self) -> Option<f64> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        match first {
            Token::Number(number) => Some(*number),
            Token::Sign('-') => self.operand().map(|value| -value),
            Token::Sign('(') => {
                let value = self.binary(0)?;
                self.accept(')').then_some(value)
            }
            Token::Sign(_) => None,
            Token::Name(name) if name == "retried" => Some(self.retried),
            Token::Name(name) => {
                let arguments = self.arguments()?;
                call(name, &arguments)
            }
        }
    }

    fn arguments(&mut self) -> Option<Vec<f64>> {
        let mut arguments = Vec::new();
        if !self.accept('(') || self.accept(')') {
            return None;
        }
        loop {
            arguments.push(self.binary(0)?);
            if !self.accept(',') {
                return self.accept(')').then_some(arguments);
            }
        }
    }
}

fn call(name: &str, arguments: &[f64]) -> Option<f64> {
    let any_nan = arguments.iter().any(|value| value.is_nan());
    match (name, arguments) {
        ("pow", [base, exponent]) => Some(base.powf(*exponent)),
        ("sqrt", [value]) => Some(value.sqrt()),
        ("abs", [value]) => Some(value.abs()),
        ("exp", [value]) => Some(value.exp()),
        ("floor", [value]) => Some(value.floor()),
        ("ceil", [value]) => Some(value.ceil()),
        ("round", [value]) => Some(value.round()),
        ("min" | "max", _) if any_nan => Some(f64::NAN),
        ("min", _) => Some(arguments.iter().copied().fold(f64::INFINITY, f64::min)),
        ("max", _) => Some(arguments.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        _ => None,
    }
}
