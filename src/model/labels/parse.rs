//! The query syntax of label selectors: tokens and a parser with upstream's complaints.

use std::collections::BTreeSet;

use super::error::SelectorError;
use super::requirement::{Operator, Requirement, invalid_for};
use crate::names::qualified_name_errors;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Symbol(&'static str),
    End,
}

impl Token {
    fn literal(&self) -> &str {
        match self {
            Token::Word(w) => w,
            Token::Symbol(s) => s,
            Token::End => "",
        }
    }
}

/// Cuts the text; runs of operator characters are matched longest first.
fn lex(text: &str) -> Vec<Token> {
    const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            return tokens;
        }
        if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
            tokens.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
            continue;
        }
        let end = rest.find(|c: char| " \t\r\n=!(),><".contains(c)).unwrap_or(rest.len());
        tokens.push(Token::Word(rest[..end].to_owned()));
        rest = &rest[end..];
    }
}

fn unexpected(found: &Token, wanted: &'static str) -> SelectorError {
    SelectorError::Unexpected { found: found.literal().to_owned(), wanted }
}

/// Reads tokens one after the other.
pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens.get(self.at).cloned().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// At the beginning of the text.
    pub(super) fn new(text: &str) -> Parser {
        Parser { tokens: lex(text), at: 0 }
    }

    /// The whole text, or upstream's complaint.
    pub(super) fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Symbol("!") => {
                    requirements.push(self.requirement().map_err(|e| SelectorError::Requirement(Box::new(e)))?);
                    match self.next() {
                        Token::End => return Ok(requirements),
                        Token::Symbol(",") => match self.peek() {
                            Token::Word(_) | Token::Symbol("!") => {}
                            other => return Err(unexpected(&other, "identifier after ','")),
                        },
                        other => return Err(unexpected(&other, "',' or 'end of string'")),
                    }
                }
                Token::End => return Ok(requirements),
                other => return Err(unexpected(&other, "!, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let mut token = self.next();
        let negated = token == Token::Symbol("!");
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else { return Err(unexpected(&token, "identifier")) };
        invalid_for("<nil>", &key, &qualified_name_errors(&key))?;
        if negated {
            return Requirement::checked(&key, Operator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Requirement::checked(&key, Operator::Exists, BTreeSet::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => BTreeSet::from([self.exact_value()?]),
        };
        Requirement::checked(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        let token = self.next();
        Ok(match token.literal() {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            "=" => Operator::Equals,
            "==" => Operator::DoubleEquals,
            "!=" => Operator::NotEquals,
            ">" => Operator::GreaterThan,
            "<" => Operator::LessThan,
            _ => return Err(unexpected(&token, "in, notin, =, ==, !=, gt, lt")),
        })
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(w) => Ok(w),
            other => Err(unexpected(&other, "identifier")),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let open = self.next();
        if open != Token::Symbol("(") {
            return Err(SelectorError::NoBracket(open.literal().to_owned()));
        }
        match self.peek() {
            Token::Word(_) | Token::Symbol(",") => {}
            Token::Symbol(")") => {
                self.next();
                return Ok(BTreeSet::new());
            }
            other => return Err(unexpected(&other, "',', ')' or identifier")),
        }
        let mut values = BTreeSet::new();
        // An empty place between commas or brackets is the empty value: `a in (,x)`.
        loop {
            match self.peek() {
                Token::Word(w) => {
                    self.next();
                    values.insert(w);
                }
                Token::Symbol("," | ")") => {
                    values.insert(String::new());
                }
                other => return Err(unexpected(&other, "',', or identifier")),
            }
            match self.next() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values),
                other => return Err(unexpected(&other, "',' or ')'")),
            }
        }
    }
}
