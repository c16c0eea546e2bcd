//! `Upstash-Retry-Delay`: the publisher's own formula for the wait before each retry, in milliseconds.
//!
//! Decimal numbers, `retried`, `+ - * / %`, unary minus, parentheses and the functions of `Function`. The parser (in
//! `parser`) writes a postfix program, so evaluation needs no recursion and at most one step per node. `hint`
//! recognizes common mistakes. Start at [`RetryDelay::parse`].

mod checks;
mod hint;
mod parser;

pub use checks::RetryDelayChecks;

use crate::echo::{echo, echo_around};
use std::fmt;

/// Longest expression.
const TEXT_BYTES_MAX: usize = 256;
/// Most numbers, operators and calls in one expression.
const NODES_MAX: usize = 64;
/// Deepest nesting of parentheses, calls and unary minus; also bounds the parser's recursion.
const DEPTH_MAX: u32 = 16;
/// Retries beyond this number are not checked in advance. No limit allows more.
const CHECKED_RETRIES_MAX: u32 = 1_000;
/// Longest wait between two attempts. Longer waits, and infinity, are cut to it.
pub const DELAY_MS_MAX: u64 = 86_400_000;

/// A parsed retry-delay expression.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryDelay {
    program: Vec<Node>,
}

/// One step of the postfix program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    Number(f64),
    Retried,
    Negate,
    Binary(Operator),
    Call(Function, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Pow,
    Sqrt,
    Abs,
    Exp,
    Floor,
    Ceil,
    Round,
    Min,
    Max,
}

/// Why a text is not a usable retry-delay expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidExpression {
    /// Over 256 bytes.
    TooLong,
    /// Over 64 numbers, operators and calls.
    TooManyNodes,
    /// Nested deeper than 16.
    TooDeep,
    /// A name that is neither `retried` nor a function.
    UnknownName(String),
    /// A function with the wrong number of arguments.
    WrongArity(&'static str),
    /// Anything else that does not read as an expression.
    Syntax(SyntaxError),
    /// The result is not a number for this value of `retried`.
    NotANumber(u32),
    /// Checking the expressions of one request would take more steps than this.
    TooManySteps(u64),
}

/// The place of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The offset in bytes, from 0 on.
    pub at: usize,
    /// The text around it, in quotes.
    excerpt: String,
    /// The correct form, if it can be guessed.
    hint: Option<String>,
}

impl SyntaxError {
    fn new(text: &str, at: usize) -> SyntaxError {
        SyntaxError { at, excerpt: echo_around(text, at), hint: hint::of(text, at) }
    }
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "syntax error at position {} of {}", self.at, self.excerpt)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl fmt::Display for InvalidExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid retry delay expression: ")?;
        match self {
            InvalidExpression::TooLong => write!(f, "at most {TEXT_BYTES_MAX} bytes are accepted"),
            InvalidExpression::TooManyNodes => write!(f, "at most {NODES_MAX} numbers and operators are accepted"),
            InvalidExpression::TooDeep => write!(f, "at most {DEPTH_MAX} levels of nesting are accepted"),
            InvalidExpression::UnknownName(name) => write!(
                f,
                "unknown name {}, accepted are retried, pow, sqrt, abs, exp, floor, ceil, round, min and max",
                echo(name)
            ),
            InvalidExpression::WrongArity(name) => write!(f, "wrong number of arguments for {name}"),
            InvalidExpression::Syntax(error) => error.fmt(f),
            InvalidExpression::NotANumber(retried) => write!(f, "not a number when retried is {retried}"),
            InvalidExpression::TooManySteps(max) => write!(
                f,
                "the different expressions of this request take more than {max} steps to check; use fewer of them, fewer \
                 retries, or several requests"
            ),
        }
    }
}

impl std::error::Error for InvalidExpression {}

impl RetryDelay {
    /// Reads an expression. [`RetryDelay::check`] checks whether it yields a number for every retry.
    pub fn parse(text: &str) -> Result<RetryDelay, InvalidExpression> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(InvalidExpression::TooLong);
        }
        Ok(RetryDelay { program: parser::parse(text)? })
    }

    /// The wait before the next attempt after `retried` retries; `None` if the result is not a number.
    ///
    /// Results below zero become 0, results over [`DELAY_MS_MAX`] become that, and others are rounded to whole
    /// milliseconds.
    pub fn delay_ms(&self, retried: u32) -> Option<u64> {
        let result = self.evaluate(f64::from(retried));
        if result.is_nan() {
            return None;
        }
        // The value is in range after the clamp, so the conversion is exact.
        Some(result.clamp(0.0, DELAY_MS_MAX as f64).round() as u64)
    }

    /// Rejects an expression that does not yield a number for some retry of a message with `max_retries`.
    pub fn check(&self, max_retries: u32) -> Result<(), InvalidExpression> {
        self.check_from(0, max_retries)
    }

    /// Like [`RetryDelay::check`], for an expression whose first `known` retries were already checked.
    fn check_from(&self, known: u32, max_retries: u32) -> Result<(), InvalidExpression> {
        match (known..max_retries.min(CHECKED_RETRIES_MAX)).find(|retried| self.delay_ms(*retried).is_none()) {
            None => Ok(()),
            Some(retried) => Err(InvalidExpression::NotANumber(retried)),
        }
    }

    fn evaluate(&self, retried: f64) -> f64 {
        let mut stack = Stack { values: [0.0; NODES_MAX], len: 0 };
        for node in &self.program {
            let value = match *node {
                Node::Number(number) => number,
                Node::Retried => retried,
                Node::Negate => -stack.take(1)[0],
                Node::Binary(operator) => {
                    let values = stack.take(2);
                    operator.apply(values[0], values[1])
                }
                Node::Call(function, arguments) => function.apply(stack.take(arguments)),
            };
            stack.push(value);
        }
        stack.take(1)[0]
    }
}

/// Operands of the running program. The parser emits operands before the operation that takes them, so the stack never
/// runs empty. No program has more nodes than the stack has slots.
struct Stack {
    values: [f64; NODES_MAX],
    len: usize,
}

impl Stack {
    fn push(&mut self, value: f64) {
        self.values[self.len] = value;
        self.len += 1;
    }

    fn take(&mut self, count: usize) -> &[f64] {
        let end = self.len;
        self.len -= count;
        &self.values[self.len..end]
    }
}

impl Operator {
    fn apply(self, left: f64, right: f64) -> f64 {
        match self {
            Operator::Add => left + right,
            Operator::Subtract => left - right,
            Operator::Multiply => left * right,
            Operator::Divide => left / right,
            Operator::Remainder => left % right,
        }
    }
}

impl Function {
    fn named(name: &str) -> Option<Function> {
        Some(match name {
            "pow" => Function::Pow,
            "sqrt" => Function::Sqrt,
            "abs" => Function::Abs,
            "exp" => Function::Exp,
            "floor" => Function::Floor,
            "ceil" => Function::Ceil,
            "round" => Function::Round,
            "min" => Function::Min,
            "max" => Function::Max,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Function::Pow => "pow",
            Function::Sqrt => "sqrt",
            Function::Abs => "abs",
            Function::Exp => "exp",
            Function::Floor => "floor",
            Function::Ceil => "ceil",
            Function::Round => "round",
            Function::Min => "min",
            Function::Max => "max",
        }
    }

    fn takes(self, arguments: usize) -> bool {
        match self {
            Function::Min | Function::Max => arguments >= 1,
            Function::Pow => arguments == 2,
            _ => arguments == 1,
        }
    }

    /// `arguments` has a length that [`Function::takes`] allows.
    fn apply(self, arguments: &[f64]) -> f64 {
        let first = arguments[0];
        match self {
            Function::Pow => first.powf(arguments[1]),
            Function::Sqrt => first.sqrt(),
            Function::Abs => first.abs(),
            Function::Exp => first.exp(),
            Function::Floor => first.floor(),
            Function::Ceil => first.ceil(),
            Function::Round => first.round(),
            Function::Min => select(arguments, |candidate, best| candidate < best),
            Function::Max => select(arguments, |candidate, best| candidate > best),
        }
    }
}

/// The best of the values. Unlike `f64::min`, a value that is not a number wins, so that it is detected.
fn select(values: &[f64], better: impl Fn(f64, f64) -> bool) -> f64 {
    let pick = |best: f64, value: &f64| if value.is_nan() || better(*value, best) { *value } else { best };
    values[1..].iter().fold(values[0], pick)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../../vectors/retry-expr.json")).unwrap()
    }

    fn accepted(text: &str) -> Result<RetryDelay, InvalidExpression> {
        let expression = RetryDelay::parse(text)?;
        expression.check(6)?;
        Ok(expression)
    }

    #[test]
    fn valid_expressions_yield_the_listed_values() {
        for case in vectors()["valid"].as_array().unwrap() {
            let text = case["expr"].as_str().unwrap();
            let expression = accepted(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            for (retried, expected) in case["values_ms"].as_array().unwrap().iter().enumerate() {
                assert_eq!(expression.delay_ms(retried as u32), expected.as_u64(), "{text} at {retried}");
            }
        }
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for case in vectors()["invalid"].as_array().unwrap() {
            let text = case["expr"].as_str().unwrap();
            assert!(accepted(text).is_err(), "{text}: {}", case["reason"]);
        }
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let nested = |levels: usize| format!("{}1{}", "(".repeat(levels), ")".repeat(levels));
        let cases = [
            (nested(16), Ok(())),
            (nested(17), Err(InvalidExpression::TooDeep)),
            ("(".repeat(100_000) + "1", Err(InvalidExpression::TooLong)),
            ("-".repeat(200) + "1", Err(InvalidExpression::TooDeep)),
            ("1".repeat(400), Err(InvalidExpression::TooLong)),
            ("1+".repeat(31) + "1", Ok(())),
            ("1+".repeat(32) + "1", Err(InvalidExpression::TooManyNodes)),
            (format!("max({}1)", "1,".repeat(63)), Err(InvalidExpression::TooManyNodes)),
        ];
        for (text, expected) in cases {
            assert_eq!(RetryDelay::parse(&text).map(|_| ()), expected, "{text}");
        }
        assert_eq!(vectors()["generated"].as_array().unwrap().len(), 5);
        let tower = accepted(&format!("{}9{}", "pow(9,".repeat(12), ")".repeat(12))).unwrap();
        assert!((0..6).all(|retried| tower.delay_ms(retried) == Some(DELAY_MS_MAX)));
    }

    #[test]
    fn not_a_number_is_found_wherever_it_appears() {
        for (text, retried) in
            [("retried/retried", 0), ("sqrt(2-retried)", 3), ("min(1, 0/0, 2)", 0), ("max(0/0,1)", 0)]
        {
            let expression = RetryDelay::parse(text).unwrap();
            assert_eq!(expression.delay_ms(retried), None, "{text}");
            assert_eq!(expression.check(retried), Ok(()), "{text}");
            assert_eq!(expression.check(retried + 1), Err(InvalidExpression::NotANumber(retried)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "(retried|pow|min|[0-9]{1,3}|[-+*/%(),. e]){0,40}|.{0,60}",
            retried: u32,
        ) {
            if let Ok(expression) = RetryDelay::parse(&text) {
                let delay = expression.delay_ms(retried);
                prop_assert!(delay.is_none_or(|ms| ms <= DELAY_MS_MAX));
            }
        }
    }
}
