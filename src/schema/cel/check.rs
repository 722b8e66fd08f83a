//! Type checking: what can be known to be wrong before an expression runs, in cel-go's words.

use std::collections::BTreeMap;

use super::signatures;
use super::syntax::{Access, Expr, Issue, Kind, Macro};
use super::types::{BOOL, INT, TEXT, Ty};
use super::unify::{Vars, more_general};
use super::value::Val;

/// Checks an expression; its type, or the first thing that is wrong.
///
/// Errors: undeclared names, undefined fields, functions that do not fit, lists and maps of several types.
pub fn check(expr: &Expr, names: &[(String, Ty)]) -> Result<Ty, Issue> {
    let mut checker = Checker { scope: names.to_vec(), vars: Vars::default(), n_formats: 0, literals: Vec::new() };
    let ty = checker.of(expr)?;
    checker.alike()?;
    Ok(checker.vars.closed(&ty))
}

/// A part of the expression: where it is, and its type.
type Typed = (usize, Ty);

struct Checker {
    scope: Vec<(String, Ty)>,
    vars: Vars,
    /// Calls of `format` that are around: what they are given may be of several types.
    n_formats: usize,
    /// What has to be of one type: items of a list, keys of a map, values of a map.
    literals: Vec<Vec<Typed>>,
}

impl Checker {
    fn of(&mut self, expr: &Expr) -> Result<Ty, Issue> {
        match &expr.kind {
            Kind::Literal(value) => Ok(literal(value)),
            Kind::Ident(name) => self.ident(expr.at, name),
            Kind::Select { of, field, how } => self.select(expr.at, of, field, *how),
            Kind::Call { name, target, args } => self.call(expr.at, name, target.as_deref(), args),
            Kind::Chain(first, rest) => {
                let mut left = (first.at, self.of(first)?);
                for (at, name, right) in rest {
                    let right = (right.at, self.of(right)?);
                    left = (*at, self.overload(*at, name, None, &[left, right])?);
                }
                Ok(left.1)
            }
            Kind::List(items) => {
                let mut types = Vec::with_capacity(items.len());
                for (item, is_optional) in items {
                    types.push((item.at, self.entry(item, *is_optional)?));
                }
                let item = self.joined(types);
                Ok(self.vars.open(&Ty::List(Box::new(item))))
            }
            Kind::Map(entries) => {
                let (mut keys, mut values) = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
                for (key, value, is_optional) in entries {
                    keys.push((key.at, self.of(key)?));
                    values.push((value.at, self.entry(value, *is_optional)?));
                }
                let (key, value) = (self.joined(keys), self.joined(values));
                Ok(self.vars.open(&Ty::Map(Box::new(key), Box::new(value))))
            }
            Kind::Struct { name, fields } => {
                if name != "JSONPatch" && name != "Object" && !name.starts_with("Object.") {
                    return Err(Issue { at: expr.at, text: format!("undeclared reference to '{name}' (in container '')") });
                }
                for (field, value, _) in fields {
                    let ty = self.of(value)?;
                    if name == "JSONPatch" {
                        patch_field(expr.at, field, &self.vars.closed(&ty))?;
                    }
                }
                Ok(Ty::Made(name.as_str().into()))
            }
            Kind::Macro(m) => self.expand(expr.at, m),
        }
    }

    /// The type of an item or value; of an optional one what may be in it.
    fn entry(&mut self, expr: &Expr, is_optional: bool) -> Result<Ty, Issue> {
        let ty = self.of(expr)?;
        if !is_optional {
            return Ok(ty);
        }
        match self.vars.open(&ty) {
            Ty::Optional(inner) => Ok(*inner),
            Ty::Dyn | Ty::Var(_) => Ok(Ty::Dyn),
            other => Err(Issue { at: expr.at, text: format!("expected type 'optional_type({other})' but found '{other}'") }),
        }
    }

    /// The type of what stands together in a list or map.
    fn joined(&mut self, types: Vec<Typed>) -> Ty {
        let mut all: Option<Ty> = None;
        for (_, ty) in &types {
            all = Some(match all {
                None => ty.clone(),
                Some(before) if self.fits(&before, ty) => more_general(before, ty.clone()),
                Some(_) => Ty::Dyn,
            });
        }
        if self.n_formats == 0 && types.len() > 1 {
            self.literals.push(types);
        }
        all.unwrap_or_else(|| self.vars.fresh())
    }

    /// Whether the items of each list, and the keys and values of each map, are of one type, now that all is known of them.
    ///
    /// Spec: `ValidateHomogeneousAggregateLiterals`, which upstream v1.36.2 turns on in `apiserver/pkg/cel/environment/base.go`.
    fn alike(&self) -> Result<(), Issue> {
        let mut found: Option<Issue> = None;
        for types in &self.literals {
            let mut types = types.iter().map(|(at, ty)| (*at, self.vars.closed(ty)));
            let Some((_, first)) = types.next() else { continue };
            if let Some((at, other)) = types.find(|(_, ty)| *ty != first)
                && found.as_ref().is_none_or(|issue| at < issue.at)
            {
                found = Some(Issue { at, text: format!("expected type '{first}' but found '{other}'") });
            }
        }
        found.map_or(Ok(()), Err)
    }

    fn fits(&mut self, given: &Ty, wanted: &Ty) -> bool {
        self.vars.fit(std::iter::once((given, wanted)))
    }

    fn ident(&self, at: usize, name: &str) -> Result<Ty, Issue> {
        if let Some((_, ty)) = self.scope.iter().rev().find(|(n, _)| n == name) {
            return Ok(ty.clone());
        }
        match name {
            "bool" | "int" | "uint" | "double" | "string" | "bytes" | "list" | "map" | "null_type" | "type" | "optional_type" => {
                Ok(Ty::Named("type"))
            }
            _ => Err(Issue { at, text: format!("undeclared reference to '{name}' (in container '')") }),
        }
    }

    fn select(&mut self, at: usize, of: &Expr, field: &str, how: Access) -> Result<Ty, Issue> {
        // `authorizer.requestResource` is a name of its own.
        if let Kind::Ident(name) = &of.kind
            && let Some((_, ty)) = self.scope.iter().rev().find(|(n, _)| n.split_once('.') == Some((name.as_str(), field)))
        {
            return Ok(ty.clone());
        }
        let of = self.of(of)?;
        let (inner, wrapped) = match self.vars.open(&of) {
            Ty::Optional(inner) => (*inner, true),
            other => (other, how == Access::Optional),
        };
        let ty = match &inner {
            Ty::Object(object) => {
                object.fields.get(field).cloned().ok_or_else(|| Issue { at, text: format!("undefined field '{field}'") })?
            }
            Ty::Map(_, value) => (**value).clone(),
            Ty::Dyn | Ty::Made(_) => Ty::Dyn,
            Ty::Var(_) => {
                self.fits(&Ty::Dyn, &inner);
                Ty::Dyn
            }
            other => return Err(Issue { at, text: format!("type '{other}' does not support field selection") }),
        };
        Ok(match how {
            Access::Test => BOOL,
            _ if wrapped => Ty::Optional(Box::new(ty)),
            _ => ty,
        })
    }

    fn call(&mut self, at: usize, name: &str, target: Option<&Expr>, args: &[Expr]) -> Result<Ty, Issue> {
        let n_formats = self.n_formats;
        self.n_formats += usize::from(name == "format");
        let target = match target {
            Some(target) => Some(self.of(target)?),
            None => None,
        };
        let mut types = Vec::with_capacity(args.len());
        for arg in args {
            types.push((arg.at, self.of(arg)?));
        }
        self.n_formats = n_formats;
        readable(name, args)?;
        self.overload(at, name, target.as_ref(), &types)
    }

    fn expand(&mut self, at: usize, m: &Macro) -> Result<Ty, Issue> {
        let range = self.of(&m.range)?;
        let range = self.vars.open(&range);
        let (first, second) = self.walked(at, m, &range)?;
        let depth = self.scope.len();
        for (var, ty) in m.vars.iter().zip([first.clone(), second]) {
            self.scope.push((var.clone(), ty));
        }
        let bodies = m.body.iter().map(|b| self.of(b)).collect::<Result<Vec<_>, _>>();
        self.scope.truncate(depth);
        let bodies = bodies?;
        let last = bodies.last().cloned().unwrap_or(Ty::Dyn);
        let list = |ty: Ty| Ty::List(Box::new(ty));
        let made = match m.name {
            "all" | "exists" => {
                self.is_bool(m.body[0].at, &bodies[0])?;
                return Ok(BOOL);
            }
            "exists_one" | "existsOne" => {
                self.chooses(at, &bodies[0], &INT)?;
                return Ok(BOOL);
            }
            "filter" => {
                self.chooses(at, &bodies[0], &list(first.clone()))?;
                return Ok(list(first));
            }
            "map" | "transformList" => list(last),
            "transformMap" => Ty::Map(Box::new(first), Box::new(last)),
            "sortBy" => return Ok(range),
            "optMap" => return Ok(self.vars.open(&Ty::Optional(Box::new(last)))),
            "optFlatMap" => return self.flat(at, last),
            _ => return Ok(last),
        };
        let made = self.vars.open(&made);
        if let [predicate, _] = bodies.as_slice() {
            self.chooses(at, predicate, &made)?;
        }
        Ok(made)
    }

    /// The types of a macro's variables.
    fn walked(&mut self, at: usize, m: &Macro, range: &Ty) -> Result<(Ty, Ty), Issue> {
        Ok(match range {
            _ if m.name == "bind" => (range.clone(), Ty::Dyn),
            Ty::Optional(inner) if m.name.starts_with("opt") => ((**inner).clone(), Ty::Dyn),
            Ty::Dyn | Ty::Made(_) => (Ty::Dyn, Ty::Dyn),
            Ty::Var(_) => {
                self.fits(&Ty::Dyn, range);
                (Ty::Dyn, Ty::Dyn)
            }
            _ if m.name.starts_with("opt") => {
                return Err(Issue { at, text: format!("found no matching overload for 'hasValue' applied to '{range}.()'") });
            }
            Ty::List(item) if m.vars.len() == 2 => (INT, (**item).clone()),
            Ty::List(item) => ((**item).clone(), Ty::Dyn),
            Ty::Map(key, value) => ((**key).clone(), (**value).clone()),
            Ty::Object(_) => (TEXT, Ty::Dyn),
            other => {
                return Err(Issue {
                    at: m.range.at,
                    text: format!("expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"),
                });
            }
        })
    }

    fn is_bool(&mut self, at: usize, ty: &Ty) -> Result<(), Issue> {
        if self.fits(ty, &BOOL) {
            return Ok(());
        }
        Err(Issue { at, text: format!("expected type 'bool' but found '{}'", self.vars.closed(ty)) })
    }

    /// Whether the predicate of a macro can choose between taking an item in and leaving it.
    fn chooses(&mut self, at: usize, predicate: &Ty, made: &Ty) -> Result<(), Issue> {
        let of = |ty: &Ty| (at, ty.clone());
        self.overload(at, "_?_:_", None, &[of(predicate), of(made), of(made)]).map(drop)
    }

    /// What `optFlatMap` makes.
    fn flat(&mut self, at: usize, last: Ty) -> Result<Ty, Issue> {
        let none = Ty::Optional(Box::new(self.vars.fresh()));
        self.overload(at, "_?_:_", None, &[(at, BOOL), (at, last), (at, none)])
    }

    /// What a function makes of arguments of these types.
    fn overload(&mut self, at: usize, name: &str, target: Option<&Ty>, args: &[Typed]) -> Result<Ty, Issue> {
        if matches!(name, "_&&_" | "_||_") {
            for (at, arg) in args {
                self.is_bool(*at, arg)?;
            }
            return Ok(BOOL);
        }
        let overloads = signatures::of(name);
        if overloads.is_empty() {
            return Err(Issue { at, text: format!("undeclared reference to '{name}' (in container '')") });
        }
        let mut result: Option<Ty> = None;
        for s in overloads.iter().filter(|s| s.target.is_some() == target.is_some() && s.args.len() == args.len()) {
            let mut named = BTreeMap::new();
            let given = target.into_iter().chain(args.iter().map(|(_, ty)| ty));
            let wanted: Vec<Ty> = s.target.iter().chain(&s.args).map(|ty| self.vars.instance(ty, &mut named)).collect();
            let made = self.vars.instance(&s.result, &mut named);
            if !self.vars.fit(given.zip(&wanted)) {
                continue;
            }
            let made = self.vars.open(&made);
            result = Some(match result {
                Some(before) if before != made => Ty::Dyn,
                _ => made,
            });
        }
        result.ok_or_else(|| {
            let shown = args.iter().map(|(_, ty)| self.vars.closed(ty).to_string()).collect::<Vec<_>>().join(", ");
            let applied = target.map_or_else(|| format!("({shown})"), |t| format!("{}.({shown})", self.vars.closed(t)));
            Issue { at, text: format!("found no matching overload for '{name}' applied to '{applied}'") }
        })
    }
}

/// Texts that stand in the expression itself are read when it is checked.
fn readable(name: &str, args: &[Expr]) -> Result<(), Issue> {
    let Some(Expr { at, kind: Kind::Literal(Val::Text(text)) }) = args.first() else { return Ok(()) };
    let is_readable = match name {
        "duration" => super::time::read_duration(text).is_some(),
        "timestamp" => text.parse::<jiff::Timestamp>().is_ok(),
        "matches" => super::strings::is_pattern(text),
        _ => true,
    };
    if is_readable { Ok(()) } else { Err(Issue { at: *at, text: format!("invalid {name} argument") }) }
}

/// The fields of a JSONPatch.
fn patch_field(at: usize, field: &str, ty: &Ty) -> Result<(), Issue> {
    match field {
        "value" => Ok(()),
        "op" | "path" | "from" if *ty == TEXT || *ty == Ty::Dyn => Ok(()),
        "op" | "path" | "from" => {
            Err(Issue { at, text: format!("expected type of field '{field}' is 'string' but provided type is '{ty}'") })
        }
        _ => Err(Issue { at, text: format!("undefined field '{field}'") }),
    }
}

fn literal(value: &Val) -> Ty {
    match value {
        Val::Null => Ty::Null,
        Val::Bool(_) => BOOL,
        Val::Int(_) => INT,
        Val::Uint(_) => Ty::Named("uint"),
        Val::Double(_) => Ty::Named("double"),
        Val::Text(_) => TEXT,
        Val::Bytes(_) => Ty::Named("bytes"),
        _ => Ty::Dyn,
    }
}
