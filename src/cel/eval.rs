//! Running an expression. Every step is paid from a budget, so that nothing runs for long.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::run::{Fault, Outcome, Run, error};
use super::syntax::{Access, Expr, Kind, Macro};
use super::value::{Key, Val};
use super::{functions, lists, operators, signatures};

impl Run<'_> {
    /// The value of an expression.
    ///
    /// Errors: see [`Fault`].
    pub fn eval(&mut self, expr: &Expr) -> Outcome {
        match &expr.kind {
            Kind::Literal(value) => Ok(value.clone()),
            Kind::Ident(name) => {
                self.pay(1)?;
                match self.scope.iter().rev().find(|(n, _)| n == name) {
                    Some((_, value)) => Ok(value.clone()),
                    None if signatures::is_type(name) => Ok(Val::Type(name.as_str().into())),
                    None => error(format!("no such attribute(s): {name}")),
                }
            }
            Kind::Select { of, field, how } => self.select(of, field, *how),
            Kind::Call { name, target, args } => self.call(name, target.as_deref(), args),
            Kind::Chain(first, rest) => self.chain(first, rest),
            Kind::List(items) => {
                self.pay(1)?;
                let mut out = Vec::with_capacity(items.len());
                for (item, optional) in items {
                    match (self.eval(item)?, optional) {
                        (Val::Optional(inner), true) => out.extend(inner.map(|v| (*v).clone())),
                        (value, _) => out.push(value),
                    }
                }
                Ok(Val::list(out))
            }
            Kind::Map(entries) => {
                self.pay(1)?;
                let mut out = BTreeMap::new();
                for (key, value, optional) in entries {
                    let key = self.eval(key)?.key().ok_or_else(|| Fault::Error("unsupported key type".into()))?;
                    match (self.eval(value)?, optional) {
                        (Val::Optional(None), true) => {}
                        (Val::Optional(Some(value)), true) => drop(out.insert(key, (*value).clone())),
                        (value, _) => {
                            out.insert(key, value);
                        }
                    }
                }
                Ok(Val::Map(Arc::new(out)))
            }
            Kind::Struct { name, fields } => {
                let mut out = BTreeMap::new();
                for (_, field, value, optional) in fields {
                    match (self.eval(value)?, optional) {
                        (Val::Optional(None), true) => {}
                        (Val::Optional(Some(value)), true) => drop(out.insert(field.clone(), (*value).clone())),
                        (value, _) => drop(out.insert(field.clone(), value)),
                    }
                }
                Ok(Val::Struct(Arc::new((name.clone(), out))))
            }
            Kind::Macro(m) => self.expand(m),
        }
    }

    fn select(&mut self, of: &Expr, field: &str, how: Access) -> Outcome {
        self.pay(1)?;
        if let (Some(lazy), Kind::Ident(name)) = (self.lazy, &of.kind)
            && name == "variables"
        {
            return match (lazy(field), how) {
                (Some(_), Access::Test) => Ok(Val::Bool(true)),
                (None, Access::Test) => Ok(Val::Bool(false)),
                (Some(value), _) => value,
                (None, _) => error(format!("no such key: {field}")),
            };
        }
        if let Kind::Ident(name) = &of.kind
            && let Some((_, value)) =
                self.scope.iter().rev().find(|(n, _)| n.split_once('.') == Some((name.as_str(), field)))
        {
            return Ok(value.clone());
        }
        if how == Access::Plain
            && let Some(name) = of.dotted().map(|of| format!("{of}.{field}"))
            && signatures::is_type(&name)
        {
            return Ok(Val::Type(name.as_str().into()));
        }
        let of = self.eval(of)?;
        let (inner, wrapped) = match &of {
            Val::Optional(None) if how == Access::Test => return Ok(Val::Bool(false)),
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(inner)) => ((**inner).clone(), true),
            other => (other.clone(), how == Access::Optional),
        };
        let found = match &inner {
            Val::Map(map) => map.get(&Key::Text(field.into())).cloned(),
            Val::Struct(fields) => fields.1.get(field).cloned(),
            Val::List(_) => return error("unsupported index type 'string' in list"),
            _ => None,
        };
        match (found, how) {
            (found, Access::Test) => Ok(Val::Bool(found.is_some())),
            (found, _) if wrapped => Ok(Val::Optional(found.map(Arc::new))),
            (Some(value), _) => Ok(value),
            (None, _) => error(format!("no such key: {field}")),
        }
    }

    fn call(&mut self, name: &str, target: Option<&Expr>, args: &[Expr]) -> Outcome {
        self.pay(1)?;
        match (name, args) {
            ("_&&_", [a, b]) => return self.both(a, b, false),
            ("_||_", [a, b]) => return self.both(a, b, true),
            ("_?_:_", [condition, yes, no]) => {
                return match self.eval(condition)? {
                    Val::Bool(true) => self.eval(yes),
                    Val::Bool(false) => self.eval(no),
                    _ => error("no such overload"),
                };
            }
            ("or" | "orValue", [other]) if let Some(target) = target => {
                return match (self.eval(target)?, name) {
                    (Val::Optional(Some(value)), "orValue") => Ok((*value).clone()),
                    (Val::Optional(None), _) => self.eval(other),
                    (some @ Val::Optional(Some(_)), _) => Ok(some),
                    _ => error("no such overload"),
                };
            }
            _ => {}
        }
        let target = target.map(|t| self.eval(t)).transpose()?;
        let args = args.iter().map(|a| self.eval(a)).collect::<Result<Vec<_>, _>>()?;
        match &target {
            None => match operators::apply(self, name, &args) {
                Some(result) => result,
                None => functions::global(self, name, &args),
            },
            Some(target) => functions::method(self, name, target, &args),
        }
    }

    fn chain(&mut self, first: &Expr, rest: &[(usize, String, Expr)]) -> Outcome {
        // All operators of a chain are of one level, and `&&` and `||` are alone on theirs.
        if let Some(decides) = rest.first().and_then(|(_, name, _)| match name.as_str() {
            "_&&_" => Some(false),
            "_||_" => Some(true),
            _ => None,
        }) {
            let mut fault = None;
            for term in std::iter::once(first).chain(rest.iter().map(|(.., e)| e)) {
                self.pay(1)?;
                match self.eval(term) {
                    Ok(Val::Bool(b)) if b == decides => return Ok(Val::Bool(decides)),
                    Ok(Val::Bool(_)) => {}
                    Err(Fault::Budget) => return Err(Fault::Budget),
                    Err(other) => fault = fault.or(Some(other)),
                    Ok(_) => fault = fault.or(Some(Fault::Error("no such overload".into()))),
                }
            }
            return fault.map_or(Ok(Val::Bool(!decides)), Err);
        }
        let mut value = self.eval(first)?;
        for (_, name, right) in rest {
            self.pay(1)?;
            let right = self.eval(right)?;
            value = operators::apply(self, name, &[value, right]).unwrap_or_else(|| error("no such overload"))?;
        }
        Ok(value)
    }

    /// `&&` and `||`: an error on one side does not matter if the other side decides.
    fn both(&mut self, a: &Expr, b: &Expr, decides: bool) -> Outcome {
        let left = self.eval(a);
        if matches!(&left, Ok(Val::Bool(x)) if *x == decides) || left == Err(Fault::Budget) {
            return left;
        }
        let right = self.eval(b);
        match (left, right) {
            (_, Ok(Val::Bool(x))) if x == decides => Ok(Val::Bool(decides)),
            (_, Err(Fault::Budget)) => Err(Fault::Budget),
            (Ok(Val::Bool(_)), Ok(Val::Bool(x))) => Ok(Val::Bool(x)),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
            _ => error("no such overload"),
        }
    }

    fn expand(&mut self, m: &Macro) -> Outcome {
        let range = self.eval(&m.range)?;
        if m.name == "bind" {
            return self.within(&m.vars, &[range], &m.body[0]);
        }
        if m.name.starts_with("opt") {
            return match range {
                Val::Optional(None) => Ok(Val::Optional(None)),
                Val::Optional(Some(value)) => {
                    let mapped = self.within(&m.vars, &[(*value).clone()], &m.body[0])?;
                    Ok(if m.name == "optMap" { Val::Optional(Some(Arc::new(mapped))) } else { mapped })
                }
                _ => error("no such overload"),
            };
        }
        let entries: Vec<[Val; 2]> = match &range {
            Val::List(items) if m.vars.len() == 2 => {
                items.iter().enumerate().map(|(i, v)| [Val::Int(i as i64), v.clone()]).collect()
            }
            Val::List(items) => items.iter().map(|v| [v.clone(), Val::Null]).collect(),
            Val::Map(map) => map.iter().map(|(k, v)| [k.to_val(), v.clone()]).collect(),
            Val::Struct(fields) => fields.1.iter().map(|(k, v)| [Val::text(k), v.clone()]).collect(),
            other => return error(format!("got '{}', expected iterable type", other.go_name())),
        };
        match m.name {
            "all" => self.quantify(m, &entries, false),
            "exists" => self.quantify(m, &entries, true),
            "exists_one" | "existsOne" => {
                let mut n = 0;
                for entry in &entries {
                    n += usize::from(self.holds(m, entry, 0)?);
                }
                Ok(Val::Bool(n == 1))
            }
            _ => self.gather(m, &entries),
        }
    }

    fn within(&mut self, vars: &[String], values: &[Val], body: &Expr) -> Outcome {
        self.pay(1)?;
        let depth = self.scope.len();
        self.scope.extend(vars.iter().cloned().zip(values.iter().cloned()));
        let result = self.eval(body);
        self.scope.truncate(depth);
        result
    }

    fn holds(&mut self, m: &Macro, entry: &[Val; 2], body: usize) -> Result<bool, Fault> {
        match self.within(&m.vars, entry, &m.body[body])? {
            Val::Bool(b) => Ok(b),
            _ => error("no such overload"),
        }
    }

    fn quantify(&mut self, m: &Macro, entries: &[[Val; 2]], decides: bool) -> Outcome {
        let mut fault = None;
        for entry in entries {
            match self.holds(m, entry, 0) {
                Ok(b) if b == decides => return Ok(Val::Bool(decides)),
                Ok(_) => {}
                Err(Fault::Budget) => return Err(Fault::Budget),
                Err(other) => fault = fault.or(Some(other)),
            }
        }
        fault.map_or(Ok(Val::Bool(!decides)), Err)
    }

    fn gather(&mut self, m: &Macro, entries: &[[Val; 2]]) -> Outcome {
        let (mut list, mut map) = (Vec::new(), BTreeMap::new());
        let last = m.body.len() - 1;
        for entry in entries {
            if m.name == "filter" {
                if self.holds(m, entry, 0)? {
                    list.push(entry[0].clone());
                }
                continue;
            }
            if last > 0 && !self.holds(m, entry, 0)? {
                continue;
            }
            let value = self.within(&m.vars, entry, &m.body[last])?;
            match m.name {
                "transformMap" => {
                    let key = entry[0].key().ok_or_else(|| Fault::Error("unsupported key type".into()))?;
                    map.insert(key, value);
                }
                "transformMapEntry" => {
                    let Val::Map(one) = value else { return error("no such overload") };
                    for (key, value) in one.iter() {
                        if map.insert(key.clone(), value.clone()).is_some() {
                            return error(format!("insert failed: key {key} already exists"));
                        }
                    }
                }
                _ => list.push(value),
            }
        }
        match m.name {
            "transformMap" | "transformMapEntry" => Ok(Val::Map(Arc::new(map))),
            "sortBy" => {
                self.pay(list.len().saturating_mul(4))?;
                lists::sorted(list.into_iter().zip(entries.iter().map(|e| e[0].clone())).collect())
            }
            _ => Ok(Val::list(list)),
        }
    }
}
