//! The grammar of retry-delay expressions: recursive descent with limited depth and size.

use super::{DEPTH_MAX, Function, InvalidExpression, NODES_MAX, Node, Operator, SyntaxError};

/// Reads a whole text as one expression and returns its postfix program.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, InvalidExpression> {
    let mut parser = Parser { text, at: 0, depth: 0, program: Vec::new() };
    parser.sum()?;
    match parser.peek() {
        None => Ok(parser.program),
        Some(_) => Err(parser.syntax_error()),
    }
}

/// Recursive descent over the text. Emits the program while parsing.
struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    program: Vec<Node>,
}

impl<'a> Parser<'a> {
    /// `product (("+" | "-") product)*`
    fn sum(&mut self) -> Result<(), InvalidExpression> {
        self.product()?;
        loop {
            let operator = match self.peek() {
                Some(b'+') => Operator::Add,
                Some(b'-') => Operator::Subtract,
                _ => return Ok(()),
            };
            self.at += 1;
            self.product()?;
            self.emit(Node::Binary(operator))?;
        }
    }

    /// `operand (("*" | "/" | "%") operand)*`
    fn product(&mut self) -> Result<(), InvalidExpression> {
        self.operand()?;
        loop {
            let operator = match self.peek() {
                Some(b'*') => Operator::Multiply,
                Some(b'/') => Operator::Divide,
                Some(b'%') => Operator::Remainder,
                _ => return Ok(()),
            };
            self.at += 1;
            self.operand()?;
            self.emit(Node::Binary(operator))?;
        }
    }

    /// `"-" operand | "(" sum ")" | number | "retried" | function "(" sum ("," sum)* ")"`
    fn operand(&mut self) -> Result<(), InvalidExpression> {
        match self.peek() {
            Some(b'-') => {
                self.at += 1;
                self.nested(Self::operand)?;
                self.emit(Node::Negate)
            }
            Some(b'(') => {
                self.at += 1;
                self.nested(Self::sum)?;
                self.expect(b')')
            }
            Some(b'0'..=b'9') => self.number(),
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'_') => self.name(),
            _ => Err(self.syntax_error()),
        }
    }

    /// `digits ["." digits] [("e" | "E") ["+" | "-"] digits]`
    fn number(&mut self) -> Result<(), InvalidExpression> {
        let start = self.at;
        self.digits()?;
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = self.text[start..self.at].parse().map_err(|_| self.syntax_error_at(start))?;
        self.emit(Node::Number(number))
    }

    fn digits(&mut self) -> Result<(), InvalidExpression> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(self.syntax_error()) } else { Ok(()) }
    }

    fn name(&mut self) -> Result<(), InvalidExpression> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            self.at += 1;
        }
        let name = &self.text[start..self.at];
        if name == "retried" {
            return self.emit(Node::Retried);
        }
        match Function::named(name) {
            Some(function) => self.nested(|parser| parser.call(function)),
            None => Err(InvalidExpression::UnknownName(name.to_owned())),
        }
    }

    fn call(&mut self, function: Function) -> Result<(), InvalidExpression> {
        self.expect(b'(')?;
        let mut arguments = 0;
        if self.peek() != Some(b')') {
            self.sum()?;
            arguments += 1;
            while self.peek() == Some(b',') {
                self.at += 1;
                self.sum()?;
                arguments += 1;
            }
        }
        self.expect(b')')?;
        if !function.takes(arguments) {
            return Err(InvalidExpression::WrongArity(function.name()));
        }
        self.emit(Node::Call(function, arguments))
    }

    /// All nested parts pass through here, so the recursion is limited.
    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<(), InvalidExpression>,
    ) -> Result<(), InvalidExpression> {
        if self.depth == DEPTH_MAX {
            return Err(InvalidExpression::TooDeep);
        }
        self.depth += 1;
        parse(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn emit(&mut self, node: Node) -> Result<(), InvalidExpression> {
        if self.program.len() == NODES_MAX {
            return Err(InvalidExpression::TooManyNodes);
        }
        self.program.push(node);
        Ok(())
    }

    fn expect(&mut self, byte: u8) -> Result<(), InvalidExpression> {
        if self.peek() != Some(byte) {
            return Err(self.syntax_error());
        }
        self.at += 1;
        Ok(())
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn syntax_error(&self) -> InvalidExpression {
        self.syntax_error_at(self.at)
    }

    fn syntax_error_at(&self, at: usize) -> InvalidExpression {
        InvalidExpression::Syntax(SyntaxError::new(self.text, at))
    }
}
