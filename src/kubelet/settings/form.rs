//! Forms of settings: how a flag's text and a file's value become the same JSON, and how that is taken.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::value::{self, ValueError};

/// The largest number of upstream's `int32`.
pub(super) const I32: i64 = i32::MAX as i64;

/// The form of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Bool,
    /// A whole number from the first to the second.
    Int(i64, i64),
    /// A number with a fraction.
    Ratio,
    /// Go's duration, not negative.
    Duration,
    /// A number or a text, as some fields of logging are.
    Scalar,
    Text,
    Texts,
    /// Texts by name: `a=b,c=d` as a flag.
    Map,
    /// Thresholds by signal: `a<b,c<d` as a flag.
    Less,
    /// Switches by name: `a=true,c=false` as a flag.
    Bools,
    /// `key=value:effect` as a flag, objects in a file.
    Taints,
    /// An object or a list that is taken as a whole.
    Whole,
}

impl Form {
    /// A flag's text as JSON.
    pub(super) fn read(self, text: &str) -> Result<Value, ValueError> {
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let pairs = |sign: char| -> Result<Vec<(String, String)>, ValueError> {
            let bad = |part: &str| match sign {
                '<' => ValueError::NotAThreshold { text: part.to_owned() },
                _ => ValueError::NotAnAmount { text: part.to_owned() },
            };
            parts()
                .map(|part| {
                    let (name, value) = part.split_once(sign).ok_or_else(|| bad(part))?;
                    Ok((name.trim().to_owned(), value.trim().to_owned()))
                })
                .collect()
        };
        let map = |pairs: Vec<(String, String)>| Value::Object(pairs.into_iter().map(|(k, v)| (k, json!(v))).collect());
        let read = match self {
            Form::Bool => json!(value::boolean(text)?),
            Form::Int(..) => json!(value::number::<i64>(text)?),
            Form::Ratio => json!(value::number::<f64>(text)?),
            Form::Duration | Form::Scalar | Form::Text | Form::Whole => json!(text),
            Form::Texts => json!(parts().collect::<Vec<_>>()),
            Form::Map => map(pairs('=')?),
            Form::Less => map(pairs('<')?),
            Form::Bools => {
                let switch = |(name, on): (String, String)| Ok((name, json!(value::boolean(&on)?)));
                Value::Object(pairs('=')?.into_iter().map(switch).collect::<Result<Map<_, _>, ValueError>>()?)
            }
            Form::Taints => Value::Array(parts().map(value::taint).collect::<Result<_, _>>()?),
        };
        self.check(&read)?;
        Ok(read)
    }

    /// Whether a value of a file has this form.
    pub(super) fn check(self, value: &Value) -> Result<(), ValueError> {
        let want = |is: bool, wanted: &'static str| if is { Ok(()) } else { Err(ValueError::Form { wanted }) };
        match self {
            Form::Bool => want(value.is_boolean(), "true or false"),
            Form::Int(min, max) => {
                let number = value.as_i64().ok_or(ValueError::Form { wanted: "a whole number" })?;
                if (min..=max).contains(&number) { Ok(()) } else { Err(ValueError::OutOfRange { number, min, max }) }
            }
            Form::Ratio => want(value.is_number(), "a number"),
            Form::Duration => {
                let text = value.as_str().ok_or(ValueError::Form { wanted: "a duration such as 5m, as text" })?;
                value::duration(text).map(drop)
            }
            Form::Scalar => want(value.is_string() || value.is_number(), "a number or text"),
            Form::Text => want(value.is_string(), "text"),
            Form::Texts => {
                want(value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "a list of texts")
            }
            Form::Map | Form::Less => want(
                value.as_object().is_some_and(|map| map.values().all(|value| value.is_string() || value.is_null())),
                "names with texts",
            ),
            Form::Bools => want(
                value.as_object().is_some_and(|map| map.values().all(Value::is_boolean)),
                "names with true or false",
            ),
            Form::Taints => want(value.is_array(), "a list of taints"),
            Form::Whole => Ok(()),
        }
    }

    /// Whether two values of this form are the same: `5m` and `300s` are.
    pub(super) fn same(self, a: &Value, b: &Value) -> bool {
        let duration = |value: &Value| value.as_str().and_then(|text| value::duration(text).ok());
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match self {
            Form::Duration => duration(a) == duration(b),
            Form::Scalar => text(a) == text(b),
            Form::Ratio => a.as_f64() == b.as_f64(),
            _ => a == b,
        }
    }

    /// Whether a value is Go's zero of this form: a file that has it says nothing.
    pub(super) fn is_zero(self, value: &Value) -> bool {
        match (self, value) {
            (Form::Duration, Value::String(text)) => value::duration(text).is_ok_and(|d| d.is_zero()),
            (Form::Scalar, Value::String(text)) => text.is_empty() || text == "0",
            (Form::Text | Form::Whole, Value::String(text)) => text.is_empty(),
            (_, Value::Number(number)) => number.as_f64() == Some(0.0),
            (_, Value::Array(list)) => list.is_empty(),
            (_, Value::Object(map)) => map.is_empty(),
            _ => false,
        }
    }
}

/// A type that a checked value becomes.
pub(super) trait Take: Sized {
    fn take(value: &Value) -> Result<Self, ValueError>;
}

macro_rules! take_numbers {
    ($($number:ty),*) => {$(
        impl Take for $number {
            fn take(value: &Value) -> Result<Self, ValueError> {
                let number = value.as_i64().and_then(|number| <$number>::try_from(number).ok());
                number.ok_or_else(|| ValueError::NotANumber { text: value.to_string() })
            }
        }
    )*};
}

take_numbers!(i32, i64, u16, u32, u64, usize);

impl Take for bool {
    fn take(value: &Value) -> Result<Self, ValueError> {
        value.as_bool().ok_or(ValueError::NotABool)
    }
}

impl Take for String {
    fn take(value: &Value) -> Result<Self, ValueError> {
        Ok(value.as_str().unwrap_or_default().to_owned())
    }
}

impl Take for Duration {
    fn take(value: &Value) -> Result<Self, ValueError> {
        value::duration(value.as_str().unwrap_or_default())
    }
}

impl Take for Vec<String> {
    fn take(value: &Value) -> Result<Self, ValueError> {
        value.as_array().into_iter().flatten().map(String::take).collect()
    }
}

impl<T: Take> Take for BTreeMap<String, T> {
    fn take(value: &Value) -> Result<Self, ValueError> {
        // A null in a file takes a name back, and is none.
        let named = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        named.map(|(name, value)| Ok((name.clone(), T::take(value)?))).collect()
    }
}

/// Puts a checked value where it belongs.
pub(super) fn put<T: Take>(slot: &mut T, value: &Value) -> Result<(), ValueError> {
    *slot = T::take(value)?;
    Ok(())
}
