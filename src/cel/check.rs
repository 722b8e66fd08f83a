//! Type checking: what can be known to be wrong before an expression runs, in cel-go's words.

use std::collections::BTreeMap;

use super::issue::Issue;
use super::signatures::{self, MAP_INSERT, SORT_BY};
use super::syntax::{Access, Dialect, Expr, Kind, Macro};
use super::templates;
use super::types::{BOOL, INT, TEXT, Ty};
use super::unify::{Vars, more_general};
use super::value::Val;

/// Checks an expression; its type, or all that is wrong.
///
/// Errors: undeclared names, undefined fields, functions that do not fit; if there is nothing of that, lists and maps
/// of several types and constants that cannot be read.
pub fn check(expr: &Expr, names: &[(String, Ty)], dialect: Dialect) -> Result<Ty, Vec<Issue>> {
    let mut checker = Checker {
        scope: names.to_vec(),
        vars: Vars::default(),
        dialect,
        n_formats: 0,
        literals: Vec::new(),
        templates: Vec::new(),
        issues: Vec::new(),
        late: Vec::new(),
    };
    let ty = checker.of(expr);
    if checker.issues.is_empty() {
        checker.alike();
        checker.filled();
        checker.issues.append(&mut checker.late);
    }
    if checker.issues.is_empty() { Ok(checker.vars.closed(&ty)) } else { Err(checker.issues) }
}

/// A part of the expression: where it is, and its type.
type Typed = (usize, Ty);

/// A constant template, and what is filled in.
struct Template {
    at: usize,
    text: std::sync::Arc<str>,
    values: Vec<Typed>,
}

struct Checker {
    scope: Vec<(String, Ty)>,
    vars: Vars,
    dialect: Dialect,
    /// Calls of `format` that are around: what they are given may be of several types.
    n_formats: usize,
    /// Expressions that have to be of one type: items of a list, keys of a map, values of a map.
    literals: Vec<Vec<Typed>>,
    templates: Vec<Template>,
    issues: Vec<Issue>,
    /// Mistakes that matter only if types are right.
    late: Vec<Issue>,
}

impl Checker {
    /// Notes what is wrong; the check goes on.
    fn wrong(&mut self, at: usize, text: String) -> Ty {
        self.issues.push(Issue { at, text });
        Ty::Wrong
    }

    fn undeclared(&mut self, at: usize, name: &str) -> Ty {
        self.wrong(at, format!("undeclared reference to '{name}' (in container '')"))
    }

    fn of(&mut self, expr: &Expr) -> Ty {
        match &expr.kind {
            Kind::Literal(value) => literal(value),
            Kind::Ident(name) => self.ident(expr.at, name),
            Kind::Select { of, field, how } => self.select(expr.at, of, field, *how),
            Kind::Call { name, target, args } => self.call(expr.at, name, target.as_deref(), args),
            Kind::Chain(first, rest) => {
                let mut left = (first.at, self.of(first));
                for (at, name, right) in rest {
                    let right = (right.at, self.of(right));
                    left = (*at, self.overload(*at, name, None, &[left, right]));
                }
                left.1
            }
            Kind::List(items) => {
                let types = items.iter().map(|(item, is_optional)| (item.at, self.entry(item, *is_optional))).collect();
                let item = self.joined(types);
                self.vars.open(&Ty::List(Box::new(item)))
            }
            Kind::Map(entries) => {
                let (mut keys, mut values) = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
                for (key, value, is_optional) in entries {
                    keys.push((key.at, self.of(key)));
                    values.push((value.at, self.entry(value, *is_optional)));
                }
                let (key, value) = (self.joined(keys), self.joined(values));
                self.vars.open(&Ty::Map(Box::new(key), Box::new(value)))
            }
            Kind::Struct { name, fields } => self.made(expr.at, name, fields),
            Kind::Macro(m) => self.expand(expr.at, m),
        }
    }

    fn made(&mut self, at: usize, name: &str, fields: &[(usize, String, Expr, bool)]) -> Ty {
        let is_declared = self.dialect == Dialect::Patches
            && (name == "JSONPatch" || name == "Object" || name.starts_with("Object."));
        if !is_declared {
            return self.not_made(at, name, fields);
        }
        for (colon, field, value, _) in fields {
            let ty = self.of(value);
            if name == "JSONPatch"
                && let Some(text) = patch_field_issue(field, &self.vars.closed(&ty))
            {
                self.wrong(*colon, text);
            }
        }
        Ty::Made(name.into())
    }

    /// A name that is no message: none at all, that of a value, or that of a plain type.
    fn not_made(&mut self, at: usize, name: &str, fields: &[(usize, String, Expr, bool)]) -> Ty {
        let found = self.scope.iter().rev().find(|(n, _)| n == name).map(|(_, ty)| ty.clone());
        let text = match found {
            Some(ty) => {
                let shown = self.vars.closed(&ty).to_string();
                let shown = match shown.split('(').next().unwrap_or_default() {
                    "timestamp" => "google.protobuf.Timestamp",
                    "duration" => "google.protobuf.Duration",
                    other => other,
                };
                format!("'{shown}' is not a type")
            }
            None if signatures::is_type(name) && !name.starts_with("google.") => {
                format!("'{name}' is not a message type")
            }
            None => return self.undeclared(at, name),
        };
        for (colon, _, value, is_optional) in fields {
            self.entry(value, *is_optional);
            self.wrong(*colon, format!("unexpected failed resolution of '{name}'"));
        }
        self.wrong(at, text)
    }

    /// The type of an item or value; of an optional one what may be in it.
    fn entry(&mut self, expr: &Expr, is_optional: bool) -> Ty {
        let ty = self.of(expr);
        if !is_optional {
            return ty;
        }
        match self.vars.open(&ty) {
            Ty::Optional(inner) => *inner,
            Ty::Dyn | Ty::Wrong | Ty::Var(_) => Ty::Dyn,
            other => self.wrong(expr.at, format!("expected type 'optional_type({other})' but found '{other}'")),
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

    /// Whether the items of each list, and the keys and values of each map, are of one type, now that all is known of
    /// them.
    ///
    /// Spec: `ValidateHomogeneousAggregateLiterals`, which upstream v1.36.2 turns on in
    /// `apiserver/pkg/cel/environment/base.go`.
    fn alike(&mut self) {
        for types in &self.literals {
            let mut types = types.iter().map(|(at, ty)| (*at, self.vars.closed(ty)));
            let Some((_, first)) = types.next() else { continue };
            if let Some((at, other)) = types.find(|(_, ty)| *ty != first) {
                self.late.push(Issue { at, text: format!("expected type '{first}' but found '{other}'") });
            }
        }
    }

    /// Whether each constant template fits what is filled in.
    ///
    /// Spec: `stringFormatValidator` of cel-go's `ext/formatting.go`.
    fn filled(&mut self) {
        for template in &self.templates {
            let values: Vec<Typed> = template.values.iter().map(|(at, ty)| (*at, self.vars.closed(ty))).collect();
            if let Err(err) = templates::check(&template.text, &values) {
                self.late.push(Issue { at: err.place().unwrap_or(template.at), text: err.to_string() });
            }
        }
    }

    fn fits(&mut self, given: &Ty, wanted: &Ty) -> bool {
        self.vars.fit(std::iter::once((given, wanted)))
    }

    fn ident(&mut self, at: usize, name: &str) -> Ty {
        if let Some((_, ty)) = self.scope.iter().rev().find(|(n, _)| n == name) {
            return ty.clone();
        }
        if signatures::is_type(name) { Ty::Named("type") } else { self.undeclared(at, name) }
    }

    fn select(&mut self, at: usize, of: &Expr, field: &str, how: Access) -> Ty {
        // `authorizer.requestResource` is a name of its own, and so is `net.IP`.
        if let Kind::Ident(name) = &of.kind
            && let Some((_, ty)) =
                self.scope.iter().rev().find(|(n, _)| n.split_once('.') == Some((name.as_str(), field)))
        {
            return ty.clone();
        }
        if how == Access::Plain
            && let Some(name) = of.dotted().map(|of| format!("{of}.{field}"))
            && signatures::is_type(&name)
        {
            return Ty::Named("type");
        }
        let of = self.of(of);
        let (inner, wrapped) = match self.vars.open(&of) {
            Ty::Optional(inner) => (*inner, true),
            other => (other, how == Access::Optional),
        };
        let ty = match &inner {
            Ty::Object(object) => match object.fields.get(field) {
                Some(ty) => ty.clone(),
                None => self.wrong(at, format!("undefined field '{field}'")),
            },
            Ty::Map(_, value) => (**value).clone(),
            Ty::Dyn | Ty::Wrong | Ty::Made(_) => Ty::Dyn,
            Ty::Var(_) => {
                self.fits(&Ty::Dyn, &inner);
                Ty::Dyn
            }
            other => {
                self.wrong(at, format!("type '{other}' does not support field selection"));
                Ty::Dyn
            }
        };
        match how {
            Access::Test => BOOL,
            _ if wrapped => Ty::Optional(Box::new(ty)),
            _ => ty,
        }
    }

    fn call(&mut self, at: usize, name: &str, target: Option<&Expr>, args: &[Expr]) -> Ty {
        let n_formats = self.n_formats;
        self.n_formats += usize::from(name == "format");
        let types: Vec<Typed> = match (target, args) {
            (
                Some(Expr { kind: Kind::Literal(Val::Text(text)), .. }),
                [Expr { at: place, kind: Kind::List(items) }],
            ) if name == "format" => {
                let values: Vec<Typed> =
                    items.iter().map(|(item, is_optional)| (item.at, self.entry(item, *is_optional))).collect();
                self.templates.push(Template { at, text: text.clone(), values: values.clone() });
                let item = self.joined(values);
                vec![(*place, Ty::List(Box::new(item)))]
            }
            _ => args.iter().map(|arg| (arg.at, self.of(arg))).collect(),
        };
        let target = target.map(|target| self.of(target));
        self.n_formats = n_formats;
        if let Some(issue) = unreadable(name, args) {
            self.late.push(issue);
        }
        self.overload(at, name, target.as_ref(), &types)
    }

    fn expand(&mut self, at: usize, m: &Macro) -> Ty {
        let range = self.of(&m.range);
        let range = self.vars.open(&range);
        let (first, second) = self.walked(at, m, &range);
        let depth = self.scope.len();
        for (var, ty) in m.vars.iter().zip([first.clone(), second]) {
            self.scope.push((var.clone(), ty));
        }
        let bodies: Vec<Ty> = m.body.iter().map(|b| self.of(b)).collect();
        self.scope.truncate(depth);
        let last = bodies.last().cloned().unwrap_or(Ty::Dyn);
        let list = |ty: Ty| Ty::List(Box::new(ty));
        let made = match m.name {
            "all" | "exists" => {
                self.is_bool(m.body[0].at, &bodies[0]);
                return BOOL;
            }
            "exists_one" | "existsOne" => {
                self.chooses(at, &bodies[0], &INT);
                return BOOL;
            }
            "filter" => {
                self.chooses(at, &bodies[0], &list(first.clone()));
                return list(first);
            }
            "map" | "transformList" => list(last),
            "transformMap" => Ty::Map(Box::new(first), Box::new(last)),
            "transformMapEntry" => {
                let before = Ty::Map(Box::new(self.vars.fresh()), Box::new(self.vars.fresh()));
                self.overload(at, MAP_INSERT, None, &[(at, before), (at, last)])
            }
            "sortBy" => return self.overload(at, SORT_BY, Some(&range), &[(at, list(last))]),
            "optMap" => return self.vars.open(&Ty::Optional(Box::new(last))),
            "optFlatMap" => return self.flat(at, last),
            _ => return last,
        };
        let made = self.vars.open(&made);
        if let [predicate, _] = bodies.as_slice() {
            self.chooses(at, predicate, &made);
        }
        made
    }

    /// The types of a macro's variables.
    fn walked(&mut self, at: usize, m: &Macro, range: &Ty) -> (Ty, Ty) {
        match range {
            _ if m.name == "bind" => (range.clone(), Ty::Dyn),
            Ty::Optional(inner) if m.name.starts_with("opt") => ((**inner).clone(), Ty::Dyn),
            Ty::Dyn | Ty::Wrong | Ty::Made(_) => (Ty::Dyn, Ty::Dyn),
            Ty::Var(_) => {
                self.fits(&Ty::Dyn, range);
                (Ty::Dyn, Ty::Dyn)
            }
            _ if m.name.starts_with("opt") => {
                (self.wrong(at, format!("found no matching overload for 'hasValue' applied to '{range}.()'")), Ty::Dyn)
            }
            Ty::List(item) if m.vars.len() == 2 => (INT, (**item).clone()),
            Ty::List(item) => ((**item).clone(), Ty::Dyn),
            Ty::Map(key, value) => ((**key).clone(), (**value).clone()),
            Ty::Object(_) => (TEXT, Ty::Dyn),
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                (self.wrong(m.range.at, text), Ty::Wrong)
            }
        }
    }

    fn is_bool(&mut self, at: usize, ty: &Ty) -> bool {
        let fits = self.fits(ty, &BOOL);
        if !fits {
            let text = format!("expected type 'bool' but found '{}'", self.vars.closed(ty));
            self.wrong(at, text);
        }
        fits
    }

    /// Whether the predicate of a macro can choose between taking an item in and leaving it.
    fn chooses(&mut self, at: usize, predicate: &Ty, made: &Ty) {
        let of = |ty: &Ty| (at, ty.clone());
        self.overload(at, "_?_:_", None, &[of(predicate), of(made), of(made)]);
    }

    /// The type that `optFlatMap` makes.
    fn flat(&mut self, at: usize, last: Ty) -> Ty {
        let none = Ty::Optional(Box::new(self.vars.fresh()));
        self.overload(at, "_?_:_", None, &[(at, BOOL), (at, last), (at, none)])
    }

    /// The result of a function for arguments of these types.
    fn overload(&mut self, at: usize, name: &str, target: Option<&Ty>, args: &[Typed]) -> Ty {
        if matches!(name, "_&&_" | "_||_") {
            let are_fit = args.iter().fold(true, |fit, (at, arg)| self.is_bool(*at, arg) && fit);
            return if are_fit { BOOL } else { Ty::Wrong };
        }
        let overloads = signatures::of(name);
        if overloads.is_empty() {
            return self.undeclared(at, name);
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
        result.unwrap_or_else(|| {
            let shown = args.iter().map(|(_, ty)| self.vars.closed(ty).to_string()).collect::<Vec<_>>().join(", ");
            let applied = target.map_or_else(|| format!("({shown})"), |t| format!("{}.({shown})", self.vars.closed(t)));
            self.wrong(at, format!("found no matching overload for '{name}' applied to '{applied}'"))
        })
    }
}

/// Texts that stand in the expression itself are read when it is checked.
fn unreadable(name: &str, args: &[Expr]) -> Option<Issue> {
    let Some(Expr { at, kind: Kind::Literal(value) }) = args.first() else { return None };
    let is_readable = match (name, value) {
        ("duration", Val::Text(text)) => super::time::read_duration(text).is_some(),
        // Upstream reads every constant here as a text.
        ("duration", _) => false,
        ("timestamp", Val::Text(text)) => super::moment::Moment::read(text).is_ok(),
        ("timestamp", Val::Int(seconds)) => super::moment::Moment::from_seconds(*seconds).is_some(),
        ("matches", Val::Text(text)) => super::patterns::is_pattern(text),
        _ => true,
    };
    (!is_readable).then(|| Issue { at: *at, text: format!("invalid {name} argument") })
}

/// The text about a field that a JSONPatch does not have, or not of this type.
fn patch_field_issue(field: &str, ty: &Ty) -> Option<String> {
    match field {
        "value" => None,
        "op" | "path" | "from" if *ty == TEXT || *ty == Ty::Dyn => None,
        "op" | "path" | "from" => {
            Some(format!("expected type of field '{field}' is 'string' but provided type is '{ty}'"))
        }
        _ => Some(format!("undefined field '{field}'")),
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
