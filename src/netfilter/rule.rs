//! From the words of a rule to the expressions that the kernel runs, with the anonymous sets that it needs.
//!
//! Expressions are in the order of nft's own, and so are the checks that a rule implies (`tcp dport` is of TCP alone):
//! nft leaves these out when it lists a rule, by their form.

use crate::elements::{self, Element, Interval, verdict};
use crate::error::Misread;
use crate::expression::{Compare, Expression, FIRST_REGISTER, Found, Layer, Meta, NAT_FULLY_RANDOM, SetName, register};
use crate::kinds::{Kind, Kinds};
use crate::selector::{Packet, Selector};
use crate::wire::{IP, IP6};
use crate::words::{Misplaced, Words, hex_or_decimal};

/// Codes of ICMP and ICMPv6: port unreachable.
const UNREACHABLE: [u8; 2] = [3, 4];

/// A set that only this rule has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anonymous {
    pub(crate) id: u32,
    pub(crate) key: Kinds,
    pub(crate) of: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Set(Vec<Element>),
    Intervals(Vec<Interval>),
    Verdicts(Vec<Element>),
    Values(Vec<Element>, Kinds),
}

impl Anonymous {
    /// Its name until the kernel gives it one.
    pub(crate) fn name(&self) -> &'static str {
        match self.of {
            Content::Set(_) | Content::Intervals(_) => "__set%d",
            Content::Verdicts(_) | Content::Values(..) => "__map%d",
        }
    }
}

/// A rule that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) expressions: Vec<Expression>,
    pub(crate) sets: Vec<Anonymous>,
}

/// Reads a rule of a table of this family. `set_id` is the last number that was given to a set in the batch.
pub(crate) fn read(words: &mut Words<'_>, family: u8, set_id: &mut u32) -> Result<Rule, Misread> {
    let mut reader = Reader { packet: Packet::of_family(family), family, sets: Vec::new(), set_id };
    while let Some(word) = words.peek() {
        reader.statement(word, words)?;
    }
    Ok(Rule { expressions: reader.packet.expressions, sets: reader.sets })
}

struct Reader<'a> {
    family: u8,
    packet: Packet,
    sets: Vec<Anonymous>,
    set_id: &'a mut u32,
}

impl Reader<'_> {
    fn put(&mut self, expression: Expression) {
        self.packet.put(expression);
    }

    fn statement(&mut self, word: &str, words: &mut Words<'_>) -> Result<(), Misread> {
        if let Some(verdict) = verdict(words)? {
            self.put(Expression::Verdict(verdict));
            return Ok(());
        }
        match word {
            "reject" => {
                words.next();
                let code = UNREACHABLE[usize::from(self.family == IP6)];
                if !matches!(self.family, IP | IP6) {
                    return Err("reject".in_place_of("a statement for both families"));
                }
                self.put(Expression::Reject { code });
            }
            "masquerade" => {
                words.next();
                let flags = if words.take("fully-random") { NAT_FULLY_RANDOM } else { 0 };
                self.put(Expression::Masquerade { flags });
            }
            "dnat" => self.dnat(words)?,
            "update" => self.update(words)?,
            "limit" => self.limit(words)?,
            _ => self.matched(words)?,
        }
        Ok(())
    }

    /// `limit rate over N bytes/second burst M bytes`
    fn limit(&mut self, words: &mut Words<'_>) -> Result<(), Misread> {
        for word in ["limit", "rate", "over"] {
            words.expect(word)?;
        }
        let bytes_per_second = words.number("bytes a second")?;
        words.expect("bytes/second")?;
        words.expect("burst")?;
        let burst_bytes = words.number("bytes")?;
        words.expect("bytes")?;
        self.put(Expression::LimitOver { bytes_per_second, burst_bytes });
        Ok(())
    }

    /// `update @SET { SELECTOR }`
    fn update(&mut self, words: &mut Words<'_>) -> Result<(), Misread> {
        words.expect("update")?;
        let set = set_name(words)?;
        words.expect("{")?;
        let selector = self.packet.selector(words)?;
        words.expect("}")?;
        self.put(selector.load(FIRST_REGISTER)?);
        self.put(Expression::Update { set });
        Ok(())
    }

    /// `dnat [ip] to ADDRESS:PORT`, or `dnat [ip] to SELECTORS map …`
    fn dnat(&mut self, words: &mut Words<'_>) -> Result<(), Misread> {
        words.expect("dnat")?;
        let (word, kind) = match self.family {
            IP => ("ip", Kind::V4),
            IP6 => ("ip6", Kind::V6),
            _ => return Err("dnat".in_place_of("a statement for both families")),
        };
        words.take(word);
        words.expect("to")?;
        let (family, port) = (self.family, register(kind.padded()));
        let target = words.peek().and_then(|word| word.parse::<std::net::SocketAddr>().ok());
        let Some(target) = target else {
            let selectors = self.packet.selectors(words)?;
            self.packet.load(&selectors)?;
            words.expect("map")?;
            let set = self.map(words, &selectors)?;
            self.put(Expression::Lookup { set, found: Found::Value });
            self.put(Expression::Dnat { family, port, is_fixed: false });
            return Ok(());
        };
        words.next();
        let address = kind.parse(&target.ip().to_string())?;
        // Two values that were put, not a key of two: each has a register of sixteen bytes.
        let port = FIRST_REGISTER + 1;
        self.put(Expression::Put { register: FIRST_REGISTER, value: address });
        self.put(Expression::Put { register: port, value: target.port().to_be_bytes().to_vec() });
        self.put(Expression::Dnat { family, port, is_fixed: true });
        Ok(())
    }

    /// `@MAP`, or `{ KEY : VALUE, … }`
    fn map(&mut self, words: &mut Words<'_>, selectors: &[Selector]) -> Result<SetName, Misread> {
        if words.peek() != Some("{") {
            return Ok(SetName::Named(set_name(words)?));
        }
        let key = Kinds(selectors.iter().map(Selector::kind).collect());
        let elements = elements::list(words, Some(&key))?;
        let address = if self.family == IP6 { Kind::V6 } else { Kind::V4 };
        let of = match elements.first().and_then(|element| element.data.as_ref()) {
            Some(elements::Data::Verdict(_)) => Content::Verdicts(elements),
            Some(elements::Data::Value(_)) => Content::Values(elements, Kinds(vec![address, Kind::Service])),
            None => return Err(Misread::Ends { wanted: "a value for each key" }),
        };
        Ok(self.anonymous(key, of))
    }

    fn anonymous(&mut self, key: Kinds, of: Content) -> SetName {
        *self.set_id += 1;
        let set = Anonymous { id: *self.set_id, key, of };
        let name = SetName::Anonymous { name: set.name(), id: set.id };
        self.sets.push(set);
        name
    }

    /// A selector, or several with dots between them, and what they are compared with.
    fn matched(&mut self, words: &mut Words<'_>) -> Result<(), Misread> {
        let selectors = self.packet.selectors(words)?;
        if words.take("vmap") {
            self.packet.load(&selectors)?;
            let set = self.map(words, &selectors)?;
            self.put(Expression::Lookup { set, found: Found::Verdict });
            return Ok(());
        }
        match selectors.as_slice() {
            [Selector::Meta { key: Meta::Mark, .. }] if words.take("set") => return self.set_mark(words),
            [mark @ Selector::Meta { key: Meta::Mark, .. }] if words.take("and") => {
                let mask = hex_or_decimal(words.need("a mask")?)?;
                words.expect("==")?;
                let with = hex_or_decimal(words.need("a mark")?)?.to_ne_bytes().to_vec();
                self.put(mark.load(FIRST_REGISTER)?);
                self.put(Expression::Bitwise { mask: mask.to_ne_bytes().to_vec(), flip: vec![0; 4] });
                self.put(Expression::Compare { how: Compare::Equal, with });
                return Ok(());
            }
            _ => {}
        }
        let how = if words.take("!=") { Compare::Unequal } else { Compare::Equal };
        words.take("==");
        match words.peek() {
            Some(word) if word.starts_with('@') => {
                self.packet.load(&selectors)?;
                let set = SetName::Named(set_name(words)?);
                self.put(Expression::Lookup { set, found: found(how) });
                Ok(())
            }
            Some("{") => self.one_of(words, &selectors, how),
            Some(word) => match selectors.as_slice() {
                [one] => {
                    words.next();
                    self.compare(*one, how, word)
                }
                _ => Err(word.in_place_of("a set")),
            },
            None => Err(Misread::Ends { wanted: "a value" }),
        }
    }

    /// `meta mark set meta mark or X`
    fn set_mark(&mut self, words: &mut Words<'_>) -> Result<(), Misread> {
        words.expect("meta")?;
        words.expect("mark")?;
        let word = words.need("and, or or xor")?;
        let bits = hex_or_decimal(words.need("bits")?)?;
        let (mask, flip) = match word {
            "and" => (bits, 0),
            "or" => (!bits, bits),
            "xor" => (u32::MAX, bits),
            other => return Err(other.in_place_of("and, or or xor")),
        };
        self.put(Expression::Meta { key: Meta::Mark, register: FIRST_REGISTER });
        self.put(Expression::Bitwise { mask: mask.to_ne_bytes().to_vec(), flip: flip.to_ne_bytes().to_vec() });
        self.put(Expression::SetMark);
        Ok(())
    }

    /// A set in braces. Of one value it is a comparison, as nft makes it.
    fn one_of(&mut self, words: &mut Words<'_>, selectors: &[Selector], how: Compare) -> Result<(), Misread> {
        let mut ahead = *words;
        ahead.next();
        if let ([one], Some(word)) = (selectors, ahead.next())
            && ahead.take("}")
        {
            *words = ahead;
            return self.compare(*one, how, word);
        }
        let key = Kinds(selectors.iter().map(Selector::kind).collect());
        let elements = elements::list(words, Some(&key))?;
        if elements.is_empty() {
            return Err("{ }".in_place_of("a set with elements"));
        }
        self.packet.load(selectors)?;
        let of = if elements.iter().any(|element| element.last.is_some()) {
            Content::Intervals(elements::joined(&elements))
        } else {
            Content::Set(elements)
        };
        let set = self.anonymous(key, of);
        self.put(Expression::Lookup { set, found: found(how) });
        Ok(())
    }

    fn compare(&mut self, selector: Selector, how: Compare, word: &str) -> Result<(), Misread> {
        let kind = selector.kind();
        if let Selector::Ct { .. } = selector {
            let mask = kind.parse(word)?;
            if how != Compare::Equal {
                return Err("!=".in_place_of("the state itself"));
            }
            self.put(selector.load(FIRST_REGISTER)?);
            self.put(Expression::Bitwise { mask, flip: vec![0; 4] });
            self.put(Expression::Compare { how: Compare::Unequal, with: vec![0; 4] });
            return Ok(());
        }
        let Interval { first, last } = elements::interval(kind, word)?;
        if let (Kind::V4 | Kind::V6, Some((_, len)), Selector::Payload { layer, offset, .. }) =
            (kind, word.split_once('/'), selector)
        {
            let len: usize = len.parse().map_err(|_| word.in_place_of("a network"))?;
            self.network_compare(Payload { layer, offset }, how, &first, len);
            return Ok(());
        }
        self.put(selector.load(FIRST_REGISTER)?);
        if first == last {
            self.packet.learn(selector, how, &first);
            self.put(Expression::Compare { how, with: first });
        } else if how == Compare::Equal {
            self.put(Expression::Compare { how: Compare::AtLeast, with: first });
            self.put(Expression::Compare { how: Compare::AtMost, with: last });
        } else {
            return Err(word.in_place_of("one value"));
        }
        Ok(())
    }

    /// A network of whole bytes needs only these, any other a mask.
    fn network_compare(&mut self, Payload { layer, offset }: Payload, how: Compare, first: &[u8], len: usize) {
        let whole = first.len();
        let bytes = if len > 0 && len.is_multiple_of(8) { len / 8 } else { whole };
        let load = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.put(Expression::Payload { layer, offset, len: load, register: FIRST_REGISTER });
        if bytes == whole && len < whole * 8 {
            let mask = (0..whole).map(|at| u8::try_from(0xff00_u32 >> len.saturating_sub(at * 8).min(8) & 0xff));
            let mask: Vec<u8> = mask.map(|byte| byte.unwrap_or(0)).collect();
            self.put(Expression::Bitwise { flip: vec![0; whole], mask });
        }
        self.put(Expression::Compare { how, with: first.get(..bytes).unwrap_or(first).to_vec() });
    }
}

/// Place in a packet.
struct Payload {
    layer: Layer,
    offset: u32,
}

fn found(how: Compare) -> Found {
    if how == Compare::Unequal { Found::Stranger } else { Found::Member }
}

/// `@NAME` without its sign.
fn set_name(words: &mut Words<'_>) -> Result<String, Misread> {
    let word = words.need("a set")?;
    word.strip_prefix('@').map(str::to_owned).ok_or_else(|| word.in_place_of("a set"))
}
