//! CEL's text to its tree: the parser, with the macros as nodes of their own.

use std::sync::Arc;

use super::issue::Issue;
use super::lexer::{LiteralToken, Token, lex};
use super::value::Val;

/// A node and the place in the text that errors point to (counted in characters).
#[derive(Clone, Debug)]
pub struct Expr {
    /// Where.
    pub at: usize,
    /// What.
    pub kind: Kind,
}

impl Expr {
    /// `a.b.C` as one name.
    pub fn dotted(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.clone()),
            Kind::Select { of, field, how: Access::Plain } => Some(format!("{}.{field}", of.dotted()?)),
            _ => None,
        }
    }
}

/// The sorts of nodes.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A literal.
    Literal(Val),
    /// A name.
    Ident(String),
    /// `of.field`, `of.?field`, `has(of.field)`.
    Select { of: Box<Expr>, field: String, how: Access },
    /// `target.name(args)`, `name(args)`; operators have names like `_+_`.
    Call { name: String, target: Option<Box<Expr>>, args: Vec<Expr> },
    /// `a + b + c …` of one level of precedence, from left to right: flat, so that length costs no stack.
    Chain(Box<Expr>, Vec<(usize, String, Expr)>),
    /// `[a, ?b]`: the flag says optional.
    List(Vec<(Expr, bool)>),
    /// `{a: b, ?c: d}`
    Map(Vec<(Expr, Expr, bool)>),
    /// `Name{field: value}`, with the places of the colons: the flag says optional.
    Struct { name: String, fields: Vec<(usize, String, Expr, bool)> },
    /// A macro with variables of its own.
    Macro(Box<Macro>),
}

/// How a field is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It must be there.
    Plain,
    /// `has()`
    Test,
    /// `.?`
    Optional,
}

/// `range.name(vars, body…)`.
#[derive(Clone, Debug)]
pub struct Macro {
    /// Such as `all` or `map`.
    pub name: &'static str,
    /// The collection that is walked, or the optional, or the bound value.
    pub range: Expr,
    /// One or two names.
    pub vars: Vec<String>,
    /// The predicate, the transformation, or both.
    pub body: Vec<Expr>,
}

/// As cel-go's default.
const TEXT_CHARS_MAX: usize = 100_000;
/// Fields, indices and calls that follow one another: `a.b[c].d()`.
const MEMBERS_MAX: usize = 64;
/// Nodes on the way from the root to a leaf, of whatever kind.
const NODES_DEEP_MAX: usize = 200;
/// cel-go allows 250; a level is some ten calls here, and threads have 2 MiB of stack, also in builds without
/// optimisation.
const DEPTH_MAX: usize = 48;
const RESERVED: [&str; 16] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
];
const MACROS: [(&str, usize, usize); 17] = [
    ("all", 1, 1),
    ("exists", 1, 1),
    ("exists_one", 1, 1),
    ("map", 1, 1),
    ("map", 1, 2),
    ("filter", 1, 1),
    ("all", 2, 1),
    ("exists", 2, 1),
    ("exists_one", 2, 1),
    ("existsOne", 2, 1),
    ("transformList", 2, 1),
    ("transformList", 2, 2),
    ("transformMap", 2, 1),
    ("transformMap", 2, 2),
    ("transformMapEntry", 2, 1),
    ("transformMapEntry", 2, 2),
    ("sortBy", 1, 1),
];

/// Whose expressions these are: a few functions and types are not there for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Upstream's base environment.
    Common,
    /// Mutations of admission policies: `Object{…}`, `JSONPatch{…}` and `jsonpatch.escapeKey()`.
    Patches,
    /// Selectors of devices: `cel.bind()`.
    Devices,
}

/// Parses a whole expression.
///
/// Errors: it is no CEL.
pub fn parse(text: &str, dialect: Dialect) -> Result<Expr, Issue> {
    let size = text.chars().count();
    if size > TEXT_CHARS_MAX {
        return Err(Issue {
            at: 0,
            text: format!("expression code point size exceeds limit: size: {size}, limit {TEXT_CHARS_MAX}"),
        });
    }
    let tokens = lex(text)?;
    let mut parser = Parser { tokens, next: 0, depth: 0, dialect };
    let expr = parser.expr()?;
    match parser.peek() {
        Token::End if is_deep(&expr) => {
            Err(Issue { at: 0, text: format!("expression recursion limit exceeded: {NODES_DEEP_MAX}") })
        }
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("<EOF>")),
    }
}

/// Whether the tree is too deep to be walked by functions that call themselves.
fn is_deep(expr: &Expr) -> bool {
    let mut open = vec![(expr, 1)];
    while let Some((expr, depth)) = open.pop() {
        if depth > NODES_DEEP_MAX {
            return true;
        }
        open.extend(children(expr).into_iter().map(|child| (child, depth + 1)));
    }
    false
}

fn children(expr: &Expr) -> Vec<&Expr> {
    match &expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => Vec::new(),
        Kind::Select { of, .. } => vec![of],
        Kind::Call { target, args, .. } => target.iter().map(AsRef::as_ref).chain(args).collect(),
        Kind::Chain(first, rest) => std::iter::once(first.as_ref()).chain(rest.iter().map(|(.., e)| e)).collect(),
        Kind::List(items) => items.iter().map(|(e, _)| e).collect(),
        Kind::Map(entries) => entries.iter().flat_map(|(k, v, _)| [k, v]).collect(),
        Kind::Struct { fields, .. } => fields.iter().map(|(_, _, e, _)| e).collect(),
        Kind::Macro(m) => std::iter::once(&m.range).chain(&m.body).collect(),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    dialect: Dialect,
}

fn call(at: usize, name: &str, args: Vec<Expr>) -> Expr {
    Expr { at, kind: Kind::Call { name: name.to_owned(), target: None, args } }
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)].1
    }

    fn at(&self) -> usize {
        self.tokens[self.next.min(self.tokens.len() - 1)].0
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn is(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(o) if *o == op)
    }

    fn eat(&mut self, op: &str) -> bool {
        let yes = self.is(op);
        self.next += usize::from(yes);
        yes
    }

    fn expect(&mut self, op: &str) -> Result<(), Issue> {
        if self.eat(op) { Ok(()) } else { Err(self.unexpected(&format!("'{op}'"))) }
    }

    fn unexpected(&self, wanted: &str) -> Issue {
        let found = match self.peek() {
            Token::Ident(name) => name.clone(),
            Token::Op(op) => (*op).to_owned(),
            Token::Literal(LiteralToken::Text(text)) => format!("\"{text}\""),
            Token::Literal(LiteralToken::Int(text)) => text.clone(),
            Token::Literal(other) => format!("{other:?}"),
            Token::End => "<EOF>".to_owned(),
        };
        Issue { at: self.at(), text: format!("Syntax error: mismatched input '{found}' expecting {wanted}") }
    }

    fn expr(&mut self) -> Result<Expr, Issue> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Issue { at: self.at(), text: format!("expression recursion limit exceeded: {DEPTH_MAX}") });
        }
        let condition = self.binary(0)?;
        let at = self.at();
        let expr = if self.eat("?") {
            let yes = self.binary(0)?;
            self.expect(":")?;
            let no = self.expr()?;
            call(at, "_?_:_", vec![condition, yes, no])
        } else {
            condition
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn binary(&mut self, level: usize) -> Result<Expr, Issue> {
        const LEVELS: [&[&str]; 5] =
            [&["||"], &["&&"], &["==", "!=", "<", "<=", ">", ">=", "in"], &["+", "-"], &["*", "/", "%"]];
        if level == LEVELS.len() {
            return self.unary();
        }
        let left = self.binary(level + 1)?;
        let mut rest = Vec::new();
        loop {
            let op = LEVELS[level].iter().find(|op| {
                if **op == "in" { matches!(self.peek(), Token::Ident(n) if n == "in") } else { self.is(op) }
            });
            let Some(op) = op else { break };
            let at = self.at();
            self.next += 1;
            let right = self.binary(level + 1)?;
            let name = if *op == "in" { "@in".to_owned() } else { format!("_{op}_") };
            rest.push((at, name, right));
        }
        if rest.len() > 1 {
            return Ok(Expr { at: rest[0].0, kind: Kind::Chain(Box::new(left), rest) });
        }
        Ok(match rest.pop() {
            Some((at, name, right)) => call(at, &name, vec![left, right]),
            None => left,
        })
    }

    fn unary(&mut self) -> Result<Expr, Issue> {
        let at = self.at();
        for (op, name) in [("!", "!_"), ("-", "-_")] {
            if self.eat(op) {
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Err(Issue { at, text: format!("expression recursion limit exceeded: {DEPTH_MAX}") });
                }
                // The smallest integer has no positive twin.
                if op == "-"
                    && let Token::Literal(LiteralToken::Int(text)) = self.peek().clone()
                {
                    self.next += 1;
                    let value =
                        format!("-{text}").parse().map_err(|_| Issue { at, text: "invalid int literal".into() })?;
                    self.depth -= 1;
                    return self.members(Expr { at, kind: Kind::Literal(Val::Int(value)) });
                }
                let of = self.unary()?;
                self.depth -= 1;
                return Ok(call(at, name, vec![of]));
            }
        }
        let primary = self.primary()?;
        self.members(primary)
    }

    fn members(&mut self, mut expr: Expr) -> Result<Expr, Issue> {
        for _ in 0..MEMBERS_MAX {
            let at = self.at();
            if self.eat(".?") || (self.is(".") && matches!(self.tokens.get(self.next + 1), Some((_, Token::Op("?"))))) {
                if self.is(".") {
                    self.next += 2;
                }
                let field = self.field_name()?;
                expr = Expr { at, kind: Kind::Select { of: Box::new(expr), field, how: Access::Optional } };
            } else if self.eat(".") {
                let field = self.field_name()?;
                // A call stands where its parenthesis is.
                let open = self.at();
                if self.eat("(") {
                    let args = self.arguments(")")?;
                    expr = self.member_call(open, expr, field, args)?;
                } else {
                    expr = Expr { at, kind: Kind::Select { of: Box::new(expr), field, how: Access::Plain } };
                }
            } else if self.eat("[?") {
                let index = self.expr()?;
                self.expect("]")?;
                expr = call(at, "_[?_]", vec![expr, index]);
            } else if self.eat("[") {
                let index = self.expr()?;
                self.expect("]")?;
                expr = call(at, "_[_]", vec![expr, index]);
            } else if (self.is("{") || self.is("{?"))
                && let Some(name) = expr.dotted()
            {
                expr = self.structure(self.at(), name)?;
            } else {
                return Ok(expr);
            }
        }
        Err(Issue { at: self.at(), text: format!("expression recursion limit exceeded: {MEMBERS_MAX}") })
    }

    fn field_name(&mut self) -> Result<String, Issue> {
        match self.take() {
            Token::Ident(name) => Ok(name),
            _ => {
                self.next -= 1;
                Err(self.unexpected("IDENTIFIER"))
            }
        }
    }

    fn arguments(&mut self, end: &str) -> Result<Vec<Expr>, Issue> {
        let mut all = Vec::new();
        while !self.eat(end) {
            all.push(self.expr()?);
            if !self.eat(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(all)
    }

    fn structure(&mut self, at: usize, name: String) -> Result<Expr, Issue> {
        let mut optional = self.eat("{?");
        if !optional {
            self.expect("{")?;
        }
        let mut fields = Vec::new();
        while !self.eat("}") {
            optional |= self.eat("?");
            let field = self.field_name()?;
            let colon = self.at();
            self.expect(":")?;
            fields.push((colon, field, self.expr()?, std::mem::take(&mut optional)));
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr { at, kind: Kind::Struct { name, fields } })
    }

    fn primary(&mut self) -> Result<Expr, Issue> {
        let at = self.at();
        let kind = match self.take() {
            Token::Literal(literal) => Kind::Literal(match literal {
                LiteralToken::Int(text) => {
                    Val::Int(text.parse().map_err(|_| Issue { at, text: "invalid int literal".into() })?)
                }
                LiteralToken::Uint(n) => Val::Uint(n),
                LiteralToken::Double(n) => Val::Double(n),
                LiteralToken::Text(text) => Val::text(&text),
                LiteralToken::Bytes(bytes) => Val::Bytes(Arc::from(bytes)),
            }),
            Token::Ident(name) => return self.named(at, name),
            Token::Op("(") => {
                let inner = self.expr()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Op("[") => Kind::List(self.list(false)?),
            Token::Op("[?") => Kind::List(self.list(true)?),
            Token::Op("{") => Kind::Map(self.map(false)?),
            Token::Op("{?") => Kind::Map(self.map(true)?),
            // `.name` is a name of the outermost container, which is the only one here.
            Token::Op(".") => {
                let name = self.field_name()?;
                return self.named(at, name);
            }
            _ => {
                self.next -= 1;
                return Err(self.unexpected(
                    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                    BYTES, IDENTIFIER}",
                ));
            }
        };
        Ok(Expr { at, kind })
    }

    fn list(&mut self, mut optional: bool) -> Result<Vec<(Expr, bool)>, Issue> {
        let mut all = Vec::new();
        while !self.eat("]") {
            optional |= self.eat("?");
            all.push((self.expr()?, std::mem::take(&mut optional)));
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(all)
    }

    fn map(&mut self, mut optional: bool) -> Result<Vec<(Expr, Expr, bool)>, Issue> {
        let mut all = Vec::new();
        while !self.eat("}") {
            optional |= self.eat("?");
            let key = self.expr()?;
            self.expect(":")?;
            all.push((key, self.expr()?, std::mem::take(&mut optional)));
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(all)
    }

    fn named(&mut self, at: usize, name: String) -> Result<Expr, Issue> {
        let kind = match name.as_str() {
            "true" => Kind::Literal(Val::Bool(true)),
            "false" => Kind::Literal(Val::Bool(false)),
            "null" => Kind::Literal(Val::Null),
            "in" => {
                self.next -= 1;
                return Err(self.unexpected("IDENTIFIER"));
            }
            reserved if RESERVED.contains(&reserved) => {
                return Err(Issue { at, text: format!("reserved identifier: {reserved}") });
            }
            _ if self.is("(") => {
                let at = self.at();
                self.next += 1;
                let mut args = self.arguments(")")?;
                if name == "has" && args.len() == 1 {
                    let arg = args.remove(0);
                    return match arg.kind {
                        Kind::Select { of, field, how: Access::Plain } => {
                            Ok(Expr { at, kind: Kind::Select { of, field, how: Access::Test } })
                        }
                        _ => Err(Issue { at: arg.at, text: "invalid argument to has() macro".into() }),
                    };
                }
                return Ok(Expr { at, kind: Kind::Call { name, target: None, args } });
            }
            _ => Kind::Ident(name),
        };
        Ok(Expr { at, kind })
    }

    /// A method, a macro, or a function of a library like `optional.of`.
    fn member_call(&mut self, at: usize, target: Expr, name: String, mut args: Vec<Expr>) -> Result<Expr, Issue> {
        let ident = |e: &Expr| if let Kind::Ident(name) = &e.kind { Some(name.clone()) } else { None };
        if let Some(library) = ident(&target) {
            if self.dialect == Dialect::Devices && library == "cel" && name == "bind" && args.len() == 3 {
                let Some(var) = ident(&args[0]) else {
                    return Err(Issue {
                        at: args[0].at,
                        text: "cel.bind() variable names must be simple identifiers".into(),
                    });
                };
                let body = args.split_off(2);
                let range = args.remove(1);
                return Ok(Expr {
                    at,
                    kind: Kind::Macro(Box::new(Macro { name: "bind", range, vars: vec![var], body })),
                });
            }
            let whole = format!("{library}.{name}");
            if super::signatures::is_function(&whole) && (self.dialect == Dialect::Patches || library != "jsonpatch") {
                return Ok(Expr { at, kind: Kind::Call { name: whole, target: None, args } });
            }
        }
        if matches!(name.as_str(), "optMap" | "optFlatMap") && args.len() == 2 {
            let Some(var) = ident(&args[0]) else {
                return Err(Issue {
                    at: args[0].at,
                    text: format!("{name}() variable name must be a simple identifier"),
                });
            };
            let body = args.split_off(1);
            let name = if name == "optMap" { "optMap" } else { "optFlatMap" };
            return Ok(Expr { at, kind: Kind::Macro(Box::new(Macro { name, range: target, vars: vec![var], body })) });
        }
        if name == "sortBy"
            && args.len() == 2
            && matches!(target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Struct { .. })
        {
            let text = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Issue { at: target.at, text: text.into() });
        }
        let found = MACROS.iter().find(|(m, vars, bodies)| {
            *m == name && vars + bodies == args.len() && args[..*vars].iter().all(|a| ident(a).is_some())
        });
        if let Some((macro_name, vars, _)) = found {
            let body = args.split_off(*vars);
            let vars: Vec<String> = args.iter().filter_map(ident).collect();
            if let [first, second] = vars.as_slice()
                && first == second
            {
                return Err(Issue { at: args[1].at, text: format!("duplicate variable name: {first}") });
            }
            return Ok(Expr { at, kind: Kind::Macro(Box::new(Macro { name: macro_name, range: target, vars, body })) });
        }
        if let Some((_, n_vars, _)) = MACROS.iter().find(|(m, vars, bodies)| *m == name && vars + bodies == args.len())
        {
            let no_name = args[..*n_vars].iter().find(|arg| ident(arg).is_none()).unwrap_or(&args[0]);
            let is_list = matches!(name.as_str(), "map" | "filter" | "sortBy");
            let text = if is_list { "argument is not an identifier" } else { "argument must be a simple name" };
            return Err(Issue { at: no_name.at, text: text.into() });
        }
        Ok(Expr { at, kind: Kind::Call { name, target: Some(Box::new(target)), args } })
    }
}

/// Whether a word may be no name.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}
