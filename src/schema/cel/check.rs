//! Type checking: what can be known to be wrong before an expression runs, in cel-go's words.

use std::collections::BTreeMap;

use super::signatures;
use super::syntax::{Access, Expr, Issue, Kind, Macro};
use super::types::{BOOL, INT, TEXT, Ty};
use super::value::Val;

/// Checks an expression; its type, or the first thing that is wrong.
///
/// Errors: undeclared names, undefined fields, functions that do not fit.
pub fn check(expr: &Expr, names: &[(String, Ty)]) -> Result<Ty, Issue> {
    let mut scope: Vec<(String, Ty)> = names.to_vec();
    Checker { scope: &mut scope }.of(expr)
}

struct Checker<'a> {
    scope: &'a mut Vec<(String, Ty)>,
}

fn joined(a: Ty, b: Ty) -> Ty {
    if a == b { a } else { Ty::Dyn }
}

impl Checker<'_> {
    fn of(&mut self, expr: &Expr) -> Result<Ty, Issue> {
        match &expr.kind {
            Kind::Literal(value) => Ok(literal(value)),
            Kind::Ident(name) => self.ident(expr.at, name),
            Kind::Select { of, field, how } => self.select(expr.at, of, field, *how),
            Kind::Call { name, target, args } => self.call(expr.at, name, target.as_deref(), args),
            Kind::Chain(first, rest) => {
                let mut ty = self.of(first)?;
                for (at, name, right) in rest {
                    let right = self.of(right)?;
                    ty = overload(*at, name, None, &[ty, right])?;
                }
                Ok(ty)
            }
            Kind::List(items) => {
                let mut item = None;
                for (e, optional) in items {
                    let ty = self.of(e)?;
                    let ty = if *optional { unwrapped(ty) } else { ty };
                    item = Some(item.map_or(ty.clone(), |before| joined(before, ty)));
                }
                Ok(Ty::List(Box::new(item.unwrap_or(Ty::Dyn))))
            }
            Kind::Map(entries) => {
                let (mut key, mut value) = (None, None);
                for (k, v, optional) in entries {
                    let (k, v) = (self.of(k)?, self.of(v)?);
                    let v = if *optional { unwrapped(v) } else { v };
                    key = Some(key.map_or(k.clone(), |before| joined(before, k)));
                    value = Some(value.map_or(v.clone(), |before| joined(before, v)));
                }
                Ok(Ty::Map(Box::new(key.unwrap_or(Ty::Dyn)), Box::new(value.unwrap_or(Ty::Dyn))))
            }
            Kind::Struct { name, fields } => {
                if name != "JSONPatch" && name != "Object" && !name.starts_with("Object.") {
                    return Err(Issue { at: expr.at, text: format!("undeclared reference to '{name}' (in container '')") });
                }
                for (field, value, _) in fields {
                    let ty = self.of(value)?;
                    if name == "JSONPatch" {
                        patch_field(expr.at, field, &ty)?;
                    }
                }
                Ok(Ty::Made(name.as_str().into()))
            }
            Kind::Macro(m) => self.expand(expr.at, m),
        }
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
        let (inner, wrapped) = match of {
            Ty::Optional(inner) => (*inner, true),
            other => (other, how == Access::Optional),
        };
        let ty = match &inner {
            Ty::Object(object) => {
                object.fields.get(field).cloned().ok_or_else(|| Issue { at, text: format!("undefined field '{field}'") })?
            }
            Ty::Map(_, value) => (**value).clone(),
            Ty::Dyn | Ty::Made(_) => Ty::Dyn,
            other => return Err(Issue { at, text: format!("type '{other}' does not support field selection") }),
        };
        Ok(match how {
            Access::Test => BOOL,
            _ if wrapped => Ty::Optional(Box::new(ty)),
            _ => ty,
        })
    }

    fn call(&mut self, at: usize, name: &str, target: Option<&Expr>, args: &[Expr]) -> Result<Ty, Issue> {
        let target = target.map(|t| self.of(t)).transpose()?;
        let args = args.iter().map(|a| self.of(a)).collect::<Result<Vec<_>, _>>()?;
        overload(at, name, target.as_ref(), &args)
    }

    fn expand(&mut self, at: usize, m: &Macro) -> Result<Ty, Issue> {
        let range = self.of(&m.range)?;
        let depth = self.scope.len();
        let (first, second) = match &range {
            _ if m.name == "bind" => (range.clone(), Ty::Dyn),
            Ty::Optional(inner) if m.name.starts_with("opt") => ((**inner).clone(), Ty::Dyn),
            Ty::Dyn | Ty::Made(_) => (Ty::Dyn, Ty::Dyn),
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
        };
        for (var, ty) in m.vars.iter().zip([first.clone(), second.clone()]) {
            self.scope.push((var.clone(), ty));
        }
        let bodies = m.body.iter().map(|b| self.of(b)).collect::<Result<Vec<_>, _>>();
        self.scope.truncate(depth);
        let bodies = bodies?;
        let predicate = |ty: &Ty, body: &Expr| {
            if *ty == BOOL || *ty == Ty::Dyn {
                Ok(())
            } else {
                Err(Issue { at: body.at, text: format!("expected type 'bool' but found '{ty}'") })
            }
        };
        let last = bodies.last().cloned().unwrap_or(Ty::Dyn);
        Ok(match m.name {
            "all" | "exists" | "exists_one" | "existsOne" => {
                predicate(&bodies[0], &m.body[0])?;
                BOOL
            }
            "filter" => {
                predicate(&bodies[0], &m.body[0])?;
                match range {
                    Ty::List(item) => Ty::List(item),
                    Ty::Map(key, _) => Ty::List(key),
                    _ => Ty::List(Box::new(Ty::Dyn)),
                }
            }
            "map" | "transformList" => Ty::List(Box::new(last)),
            "transformMap" => Ty::Map(Box::new(first), Box::new(last)),
            "transformMapEntry" => last,
            "sortBy" => range,
            "optMap" => Ty::Optional(Box::new(last)),
            _ => last,
        })
    }
}

/// What a function makes of arguments of these types.
fn overload(at: usize, name: &str, target: Option<&Ty>, args: &[Ty]) -> Result<Ty, Issue> {
    let overloads = signatures::of(name);
    if overloads.is_empty() {
        return Err(Issue { at, text: format!("undeclared reference to '{name}' (in container '')") });
    }
    let mut results = Vec::new();
    for s in overloads.iter().filter(|s| s.target.is_some() == target.is_some() && s.args.len() == args.len()) {
        let mut bound = BTreeMap::new();
        let fits = match (&s.target, target) {
            (Some(wanted), Some(given)) => wanted.takes(given, &mut bound),
            _ => true,
        };
        if fits && s.args.iter().zip(args).all(|(wanted, given)| wanted.takes(given, &mut bound)) {
            results.push(s.result.filled(&bound));
        }
    }
    match results.into_iter().reduce(joined) {
        Some(result) => Ok(result),
        None => {
            let shown = args.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let applied = target.map_or_else(|| format!("({shown})"), |t| format!("{t}.({shown})"));
            Err(Issue { at, text: format!("found no matching overload for '{name}' applied to '{applied}'") })
        }
    }
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

fn unwrapped(ty: Ty) -> Ty {
    if let Ty::Optional(inner) = ty { *inner } else { ty }
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
