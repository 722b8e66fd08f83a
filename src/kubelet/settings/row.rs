//! A row of the table of settings: one flag, one field of KubeletConfiguration, or both names of the same thing.

use serde_json::Value;

use super::Settings;
use super::form::Form;
use super::value::ValueError;

/// One setting of upstream's kubelet.
pub(super) struct Row {
    /// Its path in KubeletConfiguration; empty where it is a flag alone.
    pub(super) field: &'static str,
    /// Its flag without dashes; empty where it is a field alone.
    pub(super) flag: &'static str,
    pub(super) form: Form,
    /// As a flag would say it; empty where there is none.
    pub(super) default: &'static str,
    pub(super) stand: Stand,
    /// A zero in a file is a value. Elsewhere it says nothing, as in Go's structs.
    keeps_zero: bool,
}

/// Field and flag; empty where there is none.
pub(super) type Names = (&'static str, &'static str);

type Set = fn(&mut Settings, &Value) -> Result<(), ValueError>;

/// The fate of a setting.
pub(super) enum Stand {
    /// It is done.
    Done(Set),
    /// Only what is so in any case can be asked for: the default, and these.
    Fixed { also: &'static [&'static str], because: &'static str },
    /// Any value is taken: it changes nothing.
    Any {
        #[cfg_attr(not(test), expect(dead_code, reason = "the page of the documentation reads it"))]
        because: &'static str,
    },
    /// It is not there.
    Refused { because: &'static str },
}

/// A setting that is done.
pub(super) const fn done(names: Names, default: &'static str, form: Form, set: Set) -> Row {
    Row { field: names.0, flag: names.1, form, default, stand: Stand::Done(set), keeps_zero: false }
}

/// A setting that has one value here.
pub(super) const fn fixed(names: Names, default: &'static str, form: Form, because: &'static str) -> Row {
    let stand = Stand::Fixed { also: &[], because };
    Row { field: names.0, flag: names.1, form, default, stand, keeps_zero: false }
}

/// A setting of which every value is met.
pub(super) const fn any(names: Names, default: &'static str, form: Form, because: &'static str) -> Row {
    Row { field: names.0, flag: names.1, form, default, stand: Stand::Any { because }, keeps_zero: false }
}

/// A setting that is not there.
pub(super) const fn refused(names: Names, form: Form, because: &'static str) -> Row {
    Row { field: names.0, flag: names.1, form, default: "", stand: Stand::Refused { because }, keeps_zero: false }
}

impl Row {
    /// A zero in a file is a value of its own.
    pub(super) const fn keeps_zero(self) -> Row {
        Row { keeps_zero: true, ..self }
    }

    /// Further values that are so in any case.
    pub(super) const fn also(self, also: &'static [&'static str]) -> Row {
        let because = match self.stand {
            Stand::Fixed { because, .. } => because,
            _ => "",
        };
        Row { stand: Stand::Fixed { also, because }, ..self }
    }

    /// Whether a file that has this value says nothing by it.
    pub(super) fn is_unset(&self, value: &Value) -> bool {
        !self.keeps_zero && self.form.is_zero(value)
    }

    /// The default as JSON.
    pub(super) fn default(&self) -> Option<Value> {
        if self.default.is_empty() { None } else { self.form.read(self.default).ok() }
    }

    /// Takes a value of the right form.
    pub(super) fn apply(&self, settings: &mut Settings, value: &Value) -> Result<(), ValueError> {
        let is = |text: &&'static str| self.form.read(text).is_ok_and(|fixed| self.form.same(&fixed, value));
        match &self.stand {
            Stand::Done(set) => set(settings, value),
            Stand::Any { .. } => Ok(()),
            Stand::Fixed { also, .. } if [self.default].iter().chain(*also).any(is) => Ok(()),
            Stand::Fixed { also, because } => {
                let values: Vec<&str> = [self.default].into_iter().chain(also.iter().copied()).collect();
                Err(ValueError::Fixed { wanted: values.join(" or "), because })
            }
            Stand::Refused { .. } if self.form.is_zero(value) => Ok(()),
            Stand::Refused { because } => Err(ValueError::Refused { because }),
        }
    }
}
