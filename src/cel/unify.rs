//! Type variables: what stands for one type that is not known yet, and what is found out about it while an expression
//! is checked.
//!
//! Spec: `checker/types.go` and `checker/mapping.go` of cel-go v0.26, as upstream v1.36.2 has it: of two types that
//! fit, the more general one is kept, and a variable that nothing is known of in the end is `dyn`.

use std::collections::BTreeMap;

use super::types::Ty;

/// The parts of a type behind so many are `dyn`. (A map whose keys and values are the map before doubles with every
/// step.)
const PARTS_MAX: usize = 256;
/// Whether types fit is asked for no longer than this.
const LOOKS_MAX: usize = 10_000;

/// The types that the variables of one expression stand for.
#[derive(Default)]
pub(super) struct Vars {
    known: BTreeMap<u32, Ty>,
    /// The state before each change, so that a try that fails leaves nothing behind.
    undo: Vec<(u32, Option<Ty>)>,
    n_vars: u32,
    /// Looks that the present question may still take: types share their parts, and who wrote the expression chose how.
    left: usize,
}

impl Vars {
    /// A new variable.
    pub(super) fn fresh(&mut self) -> Ty {
        self.n_vars += 1;
        Ty::Var(self.n_vars)
    }

    /// A signature's types with new variables for its parameters.
    pub(super) fn instance(&mut self, of: &Ty, named: &mut BTreeMap<char, Ty>) -> Ty {
        match of {
            Ty::Param(name) => named.entry(*name).or_insert_with(|| self.fresh()).clone(),
            Ty::List(a) => Ty::List(Box::new(self.instance(a, named))),
            Ty::Optional(a) => Ty::Optional(Box::new(self.instance(a, named))),
            Ty::Map(a, b) => Ty::Map(Box::new(self.instance(a, named)), Box::new(self.instance(b, named))),
            other => other.clone(),
        }
    }

    /// Whether all of these fit there, one by one; what that says of variables is noted only if all do.
    pub(super) fn fit<'t>(&mut self, mut pairs: impl Iterator<Item = (&'t Ty, &'t Ty)>) -> bool {
        self.undo.clear();
        self.left = LOOKS_MAX;
        let fits = pairs.all(|(given, wanted)| self.assignable(given, wanted));
        while !fits && let Some((var, before)) = self.undo.pop() {
            match before {
                Some(ty) => self.known.insert(var, ty),
                None => self.known.remove(&var),
            };
        }
        fits
    }

    /// With what is known of its variables; the others are `dyn`.
    pub(super) fn closed(&self, ty: &Ty) -> Ty {
        let mut left = PARTS_MAX;
        self.replaced(ty, true, &mut left)
    }

    /// With what is known of its variables.
    pub(super) fn open(&self, ty: &Ty) -> Ty {
        let mut left = PARTS_MAX;
        self.replaced(ty, false, &mut left)
    }

    fn replaced(&self, ty: &Ty, is_last: bool, left: &mut usize) -> Ty {
        let Some(rest) = left.checked_sub(1) else { return Ty::Dyn };
        *left = rest;
        let mut part = |ty: &Ty| Box::new(self.replaced(ty, is_last, left));
        match ty {
            Ty::Var(var) => match self.known.get(var) {
                Some(ty) => *part(ty),
                None if is_last => Ty::Dyn,
                None => ty.clone(),
            },
            Ty::List(a) => Ty::List(part(a)),
            Ty::Optional(a) => Ty::Optional(part(a)),
            Ty::Map(a, b) => Ty::Map(part(a), part(b)),
            other => other.clone(),
        }
    }

    fn may_look(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }

    fn note(&mut self, var: u32, ty: Ty) {
        let before = self.known.insert(var, ty);
        self.undo.push((var, before));
    }

    fn assignable(&mut self, given: &Ty, wanted: &Ty) -> bool {
        if !self.may_look() {
            return false;
        }
        if let Ty::Var(var) = wanted {
            match self.substitutes(given, *var) {
                (true, _) => return true,
                (false, true) => return false,
                (false, false) => {}
            }
        }
        if let Ty::Var(var) = given {
            return self.substitutes(wanted, *var).0;
        }
        match (given, wanted) {
            (Ty::Dyn | Ty::Wrong, _) | (_, Ty::Dyn | Ty::Wrong) | (Ty::Null, Ty::Null) => true,
            (Ty::Null, other) | (other, Ty::Null) => is_nullable(other),
            (Ty::List(a), Ty::List(b)) | (Ty::Optional(a), Ty::Optional(b)) => self.assignable(a, b),
            (Ty::Map(ka, va), Ty::Map(kb, vb)) => self.assignable(ka, kb) && self.assignable(va, vb),
            (a, b) => a == b,
        }
    }

    /// Whether a variable may stand for `ty`, and whether it stood for something before.
    fn substitutes(&mut self, ty: &Ty, var: u32) -> (bool, bool) {
        if *ty == Ty::Var(var) {
            return (true, true);
        }
        if let Some(known) = self.known.get(&var).cloned() {
            if known == *ty {
                return (true, true);
            }
            if !self.assignable(ty, &known) {
                return (false, true);
            }
            let general = if is_as_general(ty, &known) { ty.clone() } else { known };
            if !self.mentions(&general, var) {
                self.note(var, general);
            }
            return (true, true);
        }
        if self.mentions(ty, var) {
            return (false, false);
        }
        self.note(var, ty.clone());
        (true, false)
    }

    /// Whether the variable is part of the type: it cannot stand for what it is in.
    fn mentions(&mut self, ty: &Ty, var: u32) -> bool {
        if !self.may_look() {
            return true;
        }
        match ty {
            Ty::Var(other) => *other == var || self.known.get(other).cloned().is_some_and(|ty| self.mentions(&ty, var)),
            Ty::List(a) | Ty::Optional(a) => self.mentions(a, var),
            Ty::Map(a, b) => self.mentions(a, var) || self.mentions(b, var),
            _ => false,
        }
    }
}

/// Of two types that fit each other, the more general one.
pub(super) fn more_general(a: Ty, b: Ty) -> Ty {
    if is_as_general(&a, &b) { a } else { b }
}

fn is_as_general(a: &Ty, b: &Ty) -> bool {
    match (a, b) {
        (Ty::Dyn | Ty::Wrong | Ty::Var(_), _) => true,
        (_, Ty::Dyn | Ty::Wrong | Ty::Var(_)) => false,
        (Ty::List(a), Ty::List(b)) | (Ty::Optional(a), Ty::Optional(b)) => is_as_general(a, b),
        (Ty::Map(ka, va), Ty::Map(kb, vb)) => is_as_general(ka, kb) && is_as_general(va, vb),
        (a, b) => a == b,
    }
}

/// Whether a type has null: all but scalars, lists and maps.
fn is_nullable(ty: &Ty) -> bool {
    match ty {
        Ty::Object(_) | Ty::Optional(_) | Ty::Made(_) => true,
        Ty::Named(name) => !matches!(*name, "bool" | "int" | "uint" | "double" | "string" | "bytes" | "type"),
        _ => false,
    }
}
