//! The functions and methods of CEL's and Kubernetes's libraries.

use std::sync::Arc;

use model::quantity::Quantity;

use super::authz::{Authz, Host};
use super::moment::{self, Moment, Zone};
use super::operators::weight;
use super::run::{Fault, Outcome, Run, error};
use super::semver::Semver;
use super::url::Url;
use super::value::Val;
use super::{lists, network, strings, time};

/// `name(args)`.
pub(super) fn global(run: &Run<'_>, name: &str, args: &[Val]) -> Outcome {
    run.pay(args.iter().map(weight).sum())?;
    match (name, args) {
        ("size", [of]) => size(of),
        ("type", [of]) => Ok(Val::Type(of.type_name().into())),
        ("dyn", [of]) => Ok(of.clone()),
        ("int" | "uint" | "double" | "string" | "bytes" | "bool" | "timestamp" | "duration", [of]) => convert(name, of),
        ("matches", [Val::Text(text), Val::Text(pattern)]) => strings::matches(run, text, pattern),
        ("quantity", [Val::Text(text)]) => {
            text.parse::<Quantity>().map(|q| Val::Quantity(q.into())).or_else(|err| error(err.to_string()))
        }
        ("isQuantity", [Val::Text(text)]) => Ok(Val::Bool(text.parse::<Quantity>().is_ok())),
        ("ip", [Val::Text(text)]) => network::read_ip(text).map(Val::Ip).ok_or_else(|| network::no_ip(text)),
        ("isIP", [Val::Text(text)]) => Ok(Val::Bool(network::read_ip(text).is_some())),
        ("ip.isCanonical", [Val::Text(text)]) => match network::read_ip(text) {
            Some(ip) => Ok(Val::Bool(ip.to_string() == text.as_ref())),
            None => Err(network::no_ip(text)),
        },
        ("cidr", [Val::Text(text)]) => network::read_cidr(text).map(Val::Cidr).ok_or_else(|| network::no_cidr(text)),
        ("isCIDR", [Val::Text(text)]) => Ok(Val::Bool(network::read_cidr(text).is_some())),
        ("url", [Val::Text(text)]) => match Url::read(text) {
            Some(url) => Ok(Val::Url(url.into())),
            None => {
                error(format!("URL parse error during conversion from string: parse {text:?}: invalid URI for request"))
            }
        },
        ("isURL", [Val::Text(text)]) => Ok(Val::Bool(Url::read(text).is_some())),
        ("semver" | "isSemver", [Val::Text(text), rest @ ..]) => {
            let is_loose = matches!(rest, [Val::Bool(true)]);
            let read = if is_loose { Semver::read_loosely(text) } else { Semver::read(text) };
            match read {
                read if name == "isSemver" => Ok(Val::Bool(read.is_ok())),
                Ok(version) => Ok(Val::Semver(version.into())),
                Err(err) => error(err.to_string()),
            }
        }
        ("optional.of", [of]) => Ok(Val::Optional(Some(Arc::new(of.clone())))),
        ("optional.none", []) => Ok(Val::Optional(None)),
        ("optional.ofNonZeroValue", [of]) => Ok(Val::Optional((!is_zero(of)).then(|| Arc::new(of.clone())))),
        ("optional.unwrap", [Val::List(list)]) => lists::unwrap(list),
        ("jsonpatch.escapeKey", [Val::Text(text)]) => Ok(Val::text(&text.replace('~', "~0").replace('/', "~1"))),
        ("strings.quote", [Val::Text(text)]) => Ok(Val::text(&strings::quote(text))),
        ("lists.range", [Val::Int(n)]) => {
            let n = usize::try_from(*n).unwrap_or(0);
            run.pay(n)?;
            Ok(Val::list((0..n as i64).map(Val::Int).collect()))
        }
        ("format.named", [Val::Text(name)]) => {
            Ok(Val::Optional(strings::known_format(name).then(|| Arc::new(Val::Format(Arc::clone(name))))))
        }
        (name, []) if name.starts_with("format.") => Ok(Val::Format(name.trim_start_matches("format.").into())),
        (name, args) if name.starts_with("sets.") => lists::sets(run, name, args),
        ("sign", [Val::Quantity(q)]) => Ok(Val::Int(i64::from(q.sign()))),
        _ => error("no such overload"),
    }
}

/// `target.name(args)`.
pub(super) fn method(run: &Run<'_>, name: &str, target: &Val, args: &[Val]) -> Outcome {
    run.pay(weight(target) + args.iter().map(weight).sum::<usize>())?;
    match (target, name, args) {
        (_, "size", []) => size(target),
        (Val::Text(text), _, _) => strings::method(run, text, name, args),
        (Val::List(list), _, _) => lists::method(run, list, name, args),
        (Val::Optional(inner), "hasValue", []) => Ok(Val::Bool(inner.is_some())),
        (Val::Optional(inner), "value", []) => {
            inner.as_ref().map(|v| (**v).clone()).ok_or_else(|| Fault::Error("optional.none() dereference".into()))
        }
        (Val::Time(at), _, []) => field(*at, name, Zone("")),
        (Val::Time(at), _, [Val::Text(zone)]) => field(*at, name, Zone(zone)),
        (Val::Duration(nanos), _, []) => match name {
            "getHours" => Ok(Val::Int(nanos / 3_600_000_000_000)),
            "getMinutes" => Ok(Val::Int(nanos / 60_000_000_000)),
            "getSeconds" => Ok(Val::Int(nanos / 1_000_000_000)),
            // All of them, unlike those of a timestamp.
            "getMilliseconds" => Ok(Val::Int(nanos / 1_000_000)),
            _ => error("no such overload"),
        },
        (Val::Quantity(q), _, _) => quantity(q, name, args),
        (Val::Ip(ip), _, []) => network::ip(*ip, name),
        (Val::Cidr(net), _, _) => network::cidr(*net, name, args),
        (Val::Url(url), _, []) => {
            let text = match name {
                "getScheme" => &url.scheme,
                "getHost" => &url.host,
                "getHostname" => url.hostname(),
                "getPort" => url.port(),
                "getEscapedPath" => &url.path,
                "getQuery" => {
                    return Ok(Val::object(
                        url.queries()
                            .into_iter()
                            .map(|(k, v)| (k, Val::list(v.iter().map(|t| Val::text(t)).collect()))),
                    ));
                }
                _ => return error("no such overload"),
            };
            Ok(Val::text(text))
        }
        (Val::Semver(a), "isLessThan", [Val::Semver(b)]) => Ok(Val::Bool(a < b)),
        (Val::Semver(a), "isGreaterThan", [Val::Semver(b)]) => Ok(Val::Bool(a > b)),
        (Val::Semver(a), "compareTo", [Val::Semver(b)]) => Ok(Val::Int(a.cmp(b) as i64)),
        (Val::Semver(a), "major" | "minor" | "patch", []) => {
            let idx = match name {
                "major" => 0,
                "minor" => 1,
                _ => 2,
            };
            Ok(Val::Int(i64::try_from(a.numbers[idx]).unwrap_or(i64::MAX)))
        }
        (Val::Format(format), "validate", [Val::Text(text)]) => {
            let problems = strings::format_problems(format, text);
            Ok(Val::Optional(
                (!problems.is_empty()).then(|| Arc::new(Val::list(problems.iter().map(|p| Val::text(p)).collect()))),
            ))
        }
        (Val::Authz(authz), _, _) => authorizer(authz, run.host, name, args),
        _ => error("no such overload"),
    }
}

fn field(at: Moment, name: &str, zone: Zone<'_>) -> Outcome {
    match at.field(name, zone) {
        Ok(Some(number)) => Ok(Val::Int(number)),
        Ok(None) => error("no such overload"),
        Err(err) => error(err.to_string()),
    }
}

fn size(of: &Val) -> Outcome {
    Ok(Val::Int(match of {
        Val::Text(s) => s.chars().count() as i64,
        Val::Bytes(b) => b.len() as i64,
        Val::List(l) => l.len() as i64,
        Val::Map(m) => m.len() as i64,
        _ => return error("no such overload: size"),
    }))
}

fn is_zero(of: &Val) -> bool {
    match of {
        Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0) | Val::Duration(0) | Val::Optional(None) => true,
        Val::Double(n) => *n == 0.0,
        Val::Text(s) => s.is_empty(),
        Val::Bytes(b) => b.is_empty(),
        Val::List(l) => l.is_empty(),
        Val::Map(m) => m.is_empty(),
        Val::Time(at) => at.is_zero(),
        _ => false,
    }
}

fn convert(to: &str, of: &Val) -> Outcome {
    let range = || error(if to == "uint" { "unsigned integer overflow" } else { "integer overflow" });
    let no_text = || error(format!("type conversion error from 'string' to '{to}'"));
    match (to, of) {
        ("int", Val::Int(_))
        | ("uint", Val::Uint(_))
        | ("double", Val::Double(_))
        | ("string", Val::Text(_))
        | ("bytes", Val::Bytes(_)) => Ok(of.clone()),
        ("bool", Val::Bool(_)) | ("timestamp", Val::Time(_)) | ("duration", Val::Duration(_)) => Ok(of.clone()),
        ("int", Val::Uint(n)) => i64::try_from(*n).map(Val::Int).or_else(|_| range()),
        ("int", Val::Double(n)) => {
            if n.abs() < 9.2e18 {
                Ok(Val::Int(*n as i64))
            } else {
                range()
            }
        }
        ("int", Val::Text(s)) => s.parse().map(Val::Int).or_else(|_| no_text()),
        ("int", Val::Time(t)) => Ok(Val::Int(t.seconds())),
        ("int", Val::Duration(nanos)) => Ok(Val::Int(*nanos)),
        ("uint", Val::Int(n)) => u64::try_from(*n).map(Val::Uint).or_else(|_| range()),
        ("uint", Val::Double(n)) => {
            if (0.0..1.8e19).contains(n) {
                Ok(Val::Uint(*n as u64))
            } else {
                range()
            }
        }
        // A sign before what has none is no number there.
        ("uint", Val::Text(s)) => {
            s.parse().ok().filter(|_| !s.starts_with('+')).map_or_else(no_text, |n| Ok(Val::Uint(n)))
        }
        ("double", Val::Text(s)) => s.parse().map(Val::Double).or_else(|_| no_text()),
        ("string", Val::Bytes(bytes)) if std::str::from_utf8(bytes).is_err() => {
            error("invalid UTF-8 in bytes, cannot convert to string")
        }
        ("double", n) => n.double().map(Val::Double).ok_or_else(|| Fault::Error("no such overload".into())),
        ("string", of) => {
            strings::show(of).map(|t| Val::text(&t)).ok_or_else(|| Fault::Error("no such overload".into()))
        }
        ("bytes", Val::Text(s)) => Ok(Val::Bytes(s.as_bytes().into())),
        ("bool", Val::Text(s)) => match s.as_ref() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
            _ => no_text(),
        },
        ("timestamp", Val::Text(s)) => Moment::read(s).map(Val::Time).or_else(error),
        ("timestamp", Val::Int(n)) => {
            Moment::from_seconds(*n).map(Val::Time).ok_or_else(|| Fault::Error(moment::BEYOND.into()))
        }
        ("duration", Val::Text(s)) => {
            let why = "type conversion error from 'string' to 'google.protobuf.Duration'";
            time::read_duration(s).map(Val::Duration).ok_or_else(|| Fault::Error(why.into()))
        }
        ("duration", Val::Int(n)) => Ok(Val::Duration(*n)),
        _ => error("no such overload"),
    }
}

const NANOS: i128 = 1_000_000_000;

/// A quantity that is a whole number of 64 bits.
fn integer(q: &Quantity) -> Option<i64> {
    // One that was larger is held at the largest, and is no integer upstream.
    let whole = i64::try_from(q.nanos() / NANOS).ok().filter(|n| n.unsigned_abs() < i64::MAX.unsigned_abs());
    whole.filter(|_| q.is_whole())
}

fn quantity(q: &Arc<Quantity>, name: &str, args: &[Val]) -> Outcome {
    let other = match args {
        [] => None,
        [Val::Quantity(other)] => Some(**other),
        [Val::Int(n)] => Some(Quantity::from_units(*n, q.notation())),
        _ => return error("no such overload"),
    };
    match (name, other) {
        ("isInteger", None) => Ok(Val::Bool(integer(q).is_some())),
        ("asInteger", None) => match integer(q) {
            Some(n) => Ok(Val::Int(n)),
            None => error("cannot convert value to integer"),
        },
        ("asApproximateFloat", None) => Ok(Val::Double(q.nanos() as f64 / NANOS as f64)),
        ("add", Some(other)) => Ok(Val::Quantity((**q).add(other).into())),
        ("sub", Some(other)) => Ok(Val::Quantity((**q).sub(other).into())),
        ("isLessThan", Some(other)) => Ok(Val::Bool(**q < other)),
        ("isGreaterThan", Some(other)) => Ok(Val::Bool(**q > other)),
        ("compareTo", Some(other)) => Ok(Val::Int((**q).cmp(&other) as i64)),
        _ => error("no such overload"),
    }
}

/// A method of a question to the authorizer, or of its answer.
fn authorizer(asked: &Authz, host: Option<&dyn Host>, name: &str, args: &[Val]) -> Outcome {
    let texts: Option<Vec<&str>> =
        args.iter().map(|a| if let Val::Text(t) = a { Some(t.as_ref()) } else { None }).collect();
    let Some(texts) = texts else { return error("no such overload") };
    let mut next = asked.clone();
    match (name, texts.as_slice(), &asked.answer) {
        ("path", [text], None) => next.path = Some((*text).to_owned()),
        ("group", [text], None) => next.group = (*text).to_owned(),
        ("resource", [text], None) => next.resource = (*text).to_owned(),
        ("subresource", [text], None) => next.subresource = (*text).to_owned(),
        ("namespace", [text], None) => next.namespace = (*text).to_owned(),
        ("name", [text], None) => next.name = (*text).to_owned(),
        ("fieldSelector", [text], None) => next.field_selector = (*text).to_owned(),
        ("labelSelector", [text], None) => next.label_selector = (*text).to_owned(),
        ("serviceAccount", [namespace, name], None) => {
            next.service_account = Some(((*namespace).to_owned(), (*name).to_owned()))
        }
        ("check", [verb], None) => match host {
            Some(host) => next.answer = Some(host.authorize(asked, verb)),
            None => return error("no authorizer"),
        },
        ("allowed", [], Some((yes, _))) => return Ok(Val::Bool(*yes)),
        ("reason", [], Some((_, why))) => return Ok(Val::text(why)),
        ("errored", [], Some(_)) => return Ok(Val::Bool(false)),
        ("error", [], Some(_)) => return Ok(Val::text("")),
        _ => return error(format!("no such overload: {}.{name}", asked.type_name())),
    }
    Ok(Val::Authz(next.into()))
}
