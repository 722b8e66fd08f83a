//! One level of a structural schema, compiled once from its JSON: what pruning, defaulting and validation walk.

use std::collections::BTreeMap;

use cel::patterns;
use regex::Regex;
use serde_json::Value;

use super::rules::Rule;

/// The largest program of a schema's pattern.
pub(super) const PATTERN_BYTES_MAX: usize = 10 << 20;

/// The JSON type that a schema asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `boolean`
    Boolean,
    /// `integer`
    Integer,
    /// `number`
    Number,
    /// `string`
    String,
    /// `array`
    Array,
    /// `object`
    Object,
}

impl Type {
    /// The word in a schema.
    pub fn word(self) -> &'static str {
        match self {
            Type::Boolean => "boolean",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::String => "string",
            Type::Array => "array",
            Type::Object => "object",
        }
    }

    fn parse(word: &str) -> Option<Type> {
        let all = [Type::Boolean, Type::Integer, Type::Number, Type::String, Type::Array, Type::Object];
        all.into_iter().find(|t| t.word() == word)
    }
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub enum Additional {
    /// Not said: unknown fields are pruned.
    #[default]
    Unsaid,
    /// Said yes: anything goes.
    Any,
    /// Each value has this schema.
    Each(Box<Node>),
}

/// How a list tells its items apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum List {
    /// As one value.
    #[default]
    Atomic,
    /// No item twice.
    Set,
    /// By these fields.
    Map(Vec<String>),
}

/// Bounds on single values.
#[derive(Debug, Default)]
pub struct Bounds {
    /// `maximum`, and whether it is excluded.
    pub maximum: Option<(f64, bool)>,
    /// `minimum`, and whether it is excluded.
    pub minimum: Option<(f64, bool)>,
    /// `multipleOf`
    pub multiple_of: Option<f64>,
    /// `minLength` and `maxLength`, in characters.
    pub length: (Option<u64>, Option<u64>),
    /// `minItems` and `maxItems`
    pub items: (Option<u64>, Option<u64>),
    /// `minProperties` and `maxProperties`
    pub properties: (Option<u64>, Option<u64>),
    /// `uniqueItems`
    pub unique: bool,
    /// `pattern`, as it was written and compiled.
    pub pattern: Option<(String, Option<Regex>)>,
    /// `format`
    pub format: Option<String>,
}

/// One level of a schema.
#[derive(Debug, Default)]
pub struct Node {
    /// Which type; `None` accepts every one.
    pub kind: Option<Type>,
    /// null is a value.
    pub nullable: bool,
    /// `x-kubernetes-int-or-string`
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`
    pub preserve: bool,
    /// `x-kubernetes-embedded-resource`
    pub embedded: bool,
    /// The value that an absent one becomes.
    pub default: Option<Value>,
    /// By name.
    pub properties: BTreeMap<String, Node>,
    /// All others.
    pub additional: Additional,
    /// Of an array.
    pub items: Option<Box<Node>>,
    /// `x-kubernetes-list-type`
    pub list: List,
    /// Names that must be there.
    pub required: Vec<String>,
    /// Allowed values; empty for any.
    pub enums: Vec<Value>,
    /// Bounds.
    pub bounds: Bounds,
    /// `not`
    pub not: Option<Box<Node>>,
    /// `allOf`
    pub all_of: Vec<Node>,
    /// `anyOf`
    pub any_of: Vec<Node>,
    /// `oneOf`
    pub one_of: Vec<Node>,
    /// `x-kubernetes-validations`
    pub rules: Vec<Rule>,
}

impl Node {
    /// Compiles a schema without its CEL rules. Whatever is odd in it was refused when the definition was written.
    pub fn compile(schema: &Value) -> Node {
        let flag = |key: &str| schema[key] == true;
        let nodes = |key: &str| schema[key].as_array().into_iter().flatten().map(Node::compile).collect();
        let texts = |key: &str| {
            schema[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let list = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => List::Set,
            Some("map") => List::Map(texts("x-kubernetes-list-map-keys")),
            _ => List::Atomic,
        };
        let additional = match &schema["additionalProperties"] {
            Value::Object(_) => Additional::Each(Box::new(Node::compile(&schema["additionalProperties"]))),
            Value::Bool(true) => Additional::Any,
            _ => Additional::Unsaid,
        };
        Node {
            kind: schema["type"].as_str().and_then(Type::parse),
            nullable: flag("nullable"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            default: schema.get("default").filter(|d| !d.is_null()).cloned(),
            properties: schema["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.clone(), Node::compile(v)))
                .collect(),
            additional,
            items: schema["items"].is_object().then(|| Box::new(Node::compile(&schema["items"]))),
            list,
            required: texts("required"),
            enums: schema["enum"].as_array().cloned().unwrap_or_default(),
            bounds: bounds(schema),
            not: schema["not"].is_object().then(|| Box::new(Node::compile(&schema["not"]))),
            all_of: nodes("allOf"),
            any_of: nodes("anyOf"),
            one_of: nodes("oneOf"),
            rules: Vec::new(),
        }
    }

    /// The node of an object's field.
    pub fn child(&self, key: &str) -> Option<&Node> {
        self.properties.get(key).or(match &self.additional {
            Additional::Each(node) => Some(node),
            _ => None,
        })
    }

    /// Whether any rule stands here or below.
    pub fn has_rules(&self) -> bool {
        let below =
            || self.properties.values().any(Node::has_rules) || self.items.as_ref().is_some_and(|n| n.has_rules());
        let each = || matches!(&self.additional, Additional::Each(n) if n.has_rules());
        !self.rules.is_empty() || below() || each()
    }
}

fn bounds(schema: &Value) -> Bounds {
    let count = |key: &str| schema[key].as_u64();
    let limit = |key: &str, exclusive: &str| schema[key].as_f64().map(|n| (n, schema[exclusive] == true));
    Bounds {
        maximum: limit("maximum", "exclusiveMaximum"),
        minimum: limit("minimum", "exclusiveMinimum"),
        multiple_of: schema["multipleOf"].as_f64(),
        length: (count("minLength"), count("maxLength")),
        items: (count("minItems"), count("maxItems")),
        properties: (count("minProperties"), count("maxProperties")),
        unique: schema["uniqueItems"] == true,
        pattern: schema["pattern"]
            .as_str()
            .filter(|p| !p.is_empty())
            .map(|p| (p.to_owned(), patterns::compile(p, PATTERN_BYTES_MAX).ok())),
        format: schema["format"].as_str().filter(|f| !f.is_empty()).map(str::to_owned),
    }
}
