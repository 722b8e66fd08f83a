//! RFC 1035's master files: entries with their line, `$ORIGIN` and `$TTL`, owners that the line before names. The data
//! of a record is hickory's to read.

use hickory_proto::rr::{DNSClass, Name, Record};
use hickory_proto::serialize::txt::Parser;

/// Records of one file. Each takes some 200 bytes.
const RECORDS_MAX: usize = 100_000;
/// Bytes of one entry, which may stand in several lines.
const ENTRY_BYTES_MAX: usize = 70_000;

/// Why a file is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct MasterError {
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// All records of the text in their order; `origin` is where relative names begin.
pub(crate) fn records(text: &str, origin: &Name) -> Result<Vec<Record>, MasterError> {
    let mut reader =
        Reader { origin: origin.clone(), ttl_secs: None, last_ttl_secs: None, owner: None, records: Vec::new() };
    let (mut entry, mut begun, mut state) = (String::new(), 1, State::default());
    for (number, line) in text.lines().enumerate() {
        if entry.is_empty() {
            begun = number + 1;
        }
        state.take(line, &mut entry).map_err(|what| MasterError { line: number + 1, what: what.to_owned() })?;
        if entry.len() > ENTRY_BYTES_MAX {
            return Err(MasterError { line: begun, what: format!("an entry of more than {ENTRY_BYTES_MAX} bytes") });
        }
        if state.depth == 0 {
            reader.entry(&entry).map_err(|err| MasterError { line: begun, what: err.0 })?;
            entry.clear();
        } else {
            entry.push(' ');
        }
    }
    if state.depth > 0 {
        return Err(MasterError { line: begun, what: "a parenthesis is never closed".to_owned() });
    }
    Ok(reader.records)
}

/// One record, as a template makes it: absolute names, an hour to live unless it says otherwise.
pub(crate) fn record(text: &str) -> Result<Record, MasterError> {
    const TTL_SECS: u32 = 3600;
    let with_ttl = format!("$TTL {TTL_SECS}\n{}", text.trim());
    let mut records = records(&with_ttl, &Name::root())?;
    match (records.pop(), records.is_empty()) {
        (Some(record), true) => Ok(record),
        _ => Err(MasterError { line: 1, what: format!("not one record: {text:?}") }),
    }
}

/// Takes comments and parentheses out of lines.
#[derive(Default)]
struct State {
    depth: usize,
}

impl State {
    fn take(&mut self, line: &str, entry: &mut String) -> Result<(), &'static str> {
        let (mut quoted, mut chars) = (false, line.chars());
        while let Some(c) = chars.next() {
            match c {
                '\\' => {
                    entry.push(c);
                    entry.extend(chars.next());
                }
                '"' => {
                    quoted = !quoted;
                    entry.push(c);
                }
                _ if quoted => entry.push(c),
                ';' => break,
                '(' => {
                    self.depth += 1;
                    entry.push(' ');
                }
                ')' => {
                    self.depth = self.depth.checked_sub(1).ok_or("a parenthesis that nothing opens")?;
                    entry.push(' ');
                }
                c => entry.push(c),
            }
        }
        if quoted { Err("a quote is never closed") } else { Ok(()) }
    }
}

/// An entry that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct EntryError(String);

impl From<String> for EntryError {
    fn from(why: String) -> EntryError {
        EntryError(why)
    }
}

impl From<&str> for EntryError {
    fn from(why: &str) -> EntryError {
        EntryError(why.to_owned())
    }
}

struct Reader {
    origin: Name,
    ttl_secs: Option<u32>,
    last_ttl_secs: Option<u32>,
    owner: Option<Name>,
    records: Vec<Record>,
}

impl Reader {
    fn entry(&mut self, entry: &str) -> Result<(), EntryError> {
        let same_owner = entry.starts_with([' ', '\t']);
        let mut rest = entry.trim();
        if rest.is_empty() {
            return Ok(());
        }
        if rest.starts_with('$') {
            return self.control(rest);
        }
        if !same_owner {
            let (word, after) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
            self.owner = Some(self.name(word)?);
            rest = after.trim_start();
        }
        let Some(owner) = self.owner.clone() else {
            return Err("the first record has no owner".into());
        };
        let mut ttl = None;
        loop {
            let (word, after) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
            match word.to_ascii_uppercase().as_str() {
                "" => return Err("a record without a type".into()),
                "IN" => {}
                "CH" | "HS" | "CS" => return Err(format!("records of the class {word} are not served").into()),
                _ => match seconds(word) {
                    Some(secs) if ttl.is_none() => ttl = Some(secs),
                    _ => break,
                },
            }
            rest = after.trim_start();
        }
        let ttl = ttl.or(self.ttl_secs).or(self.last_ttl_secs);
        let (kind, data) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        let record = self.record(owner, ttl, [kind, data.trim()])?;
        self.last_ttl_secs = Some(record.ttl);
        if self.records.len() >= RECORDS_MAX {
            return Err(format!("more than {RECORDS_MAX} records: split the zone").into());
        }
        self.records.push(record);
        Ok(())
    }

    fn record(&self, owner: Name, ttl: Option<u32>, [kind, data]: [&str; 2]) -> Result<Record, EntryError> {
        // Without a time to live of its own, a SOA record's is its MINIMUM, as in BIND and miekg/dns.
        let (told, kind) = (ttl.unwrap_or(0), kind.to_ascii_uppercase());
        let data = if kind == "TXT" { data.to_owned() } else { self.with_origin(data) };
        let line = format!("@ {told} IN {kind} {data}\n");
        let (_, sets) = Parser::new(line, None, Some(self.origin.clone()))
            .parse()
            .map_err(|err| EntryError(format!("not a record: {kind} {data}: {err}")))?;
        let mut records = sets.values().flat_map(|set| set.records_without_rrsigs().cloned());
        let mut record = records.next().ok_or_else(|| format!("not a record: {kind} {data}"))?;
        record.name = owner;
        record.dns_class = DNSClass::IN;
        record.ttl = match (ttl, &record.data) {
            (Some(secs), _) => secs,
            (None, hickory_proto::rr::RData::SOA(soa)) => soa.minimum,
            (None, _) => return Err("a record without a time to live: begin with $TTL".into()),
        };
        Ok(record)
    }

    /// The data with the origin's name for each `@`, which hickory knows as an owner only.
    fn with_origin(&self, data: &str) -> String {
        let words =
            data.split_whitespace().map(|word| if word == "@" { self.origin.to_ascii() } else { word.to_owned() });
        if data.split_whitespace().any(|word| word == "@") {
            words.collect::<Vec<_>>().join(" ")
        } else {
            data.to_owned()
        }
    }

    fn control(&mut self, line: &str) -> Result<(), EntryError> {
        let mut words = line.split_whitespace();
        match (words.next().unwrap_or_default().to_ascii_uppercase().as_str(), words.next(), words.next()) {
            ("$ORIGIN", Some(name), None) => self.origin = self.name(name)?,
            ("$TTL", Some(text), None) => {
                self.ttl_secs = Some(seconds(text).ok_or_else(|| format!("not a time to live: {text}"))?);
            }
            ("$INCLUDE", ..) => {
                return Err("$INCLUDE is not in Kedge's DNS: write the records into this file".into());
            }
            ("$GENERATE", ..) => {
                return Err("$GENERATE is not in Kedge's DNS: write the records, or use the plugin template".into());
            }
            _ => return Err(format!("not an entry: {line}").into()),
        }
        Ok(())
    }

    fn name(&self, text: &str) -> Result<Name, EntryError> {
        if text == "@" {
            return Ok(self.origin.clone());
        }
        let bad = |err| EntryError(format!("not a name: {text}: {err}"));
        let mut name = Name::parse(text, Some(&self.origin)).map_err(bad)?;
        name.set_fqdn(true);
        Ok(name)
    }
}

/// `300`, `1h30m`, `2w`.
fn seconds(text: &str) -> Option<u32> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (mut total, mut number) = (0u64, 0u64);
    for c in text.chars() {
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            c => {
                number = number.checked_mul(10)?.checked_add(u64::from(c.to_digit(10)?))?;
                continue;
            }
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        number = 0;
    }
    u32::try_from(total.checked_add(number)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let origin = Name::from_ascii("example.org.").unwrap();
        records(text, &origin).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn entries_have_owners_times_and_origins_of_the_lines_before() {
        let text = "$TTL 1h\n@ IN SOA ns hostmaster (\n 1 ; serial\n 2h 3 4\n 60 )\n  NS ns ; a comment\n\
                    ns 300 A 192.0.2.1\n$ORIGIN sub.example.org.\nwww IN 1m CNAME @\n\
                    txt TXT \"a ; b\" \"(c\"\nabs.example.net. AAAA ::1\n*.w MX 10 mail\n";
        assert_eq!(
            lines(text),
            [
                "example.org. 3600 IN SOA ns.example.org. hostmaster.example.org. 1 7200 3 4 60",
                "example.org. 3600 IN NS ns.example.org.",
                "ns.example.org. 300 IN A 192.0.2.1",
                "www.sub.example.org. 60 IN CNAME sub.example.org.",
                "txt.sub.example.org. 3600 IN TXT a ; b(c",
                "abs.example.net. 3600 IN AAAA ::1",
                "*.w.sub.example.org. 3600 IN MX 10 mail.sub.example.org.",
            ]
        );
    }

    #[test]
    fn what_is_no_master_file_is_refused_with_its_line() {
        let origin = Name::from_ascii("example.org.").unwrap();
        let long = format!("{}.", "a".repeat(63)).repeat(5);
        for (text, line, wanted) in [
            ("a 1 A 192.0.2.300\n", 1, "not a record: A 192.0.2.300: "),
            ("\n\na A 192.0.2.3\n", 3, "a record without a time to live"),
            ("a 1 TXT \"b\n", 1, "a quote is never closed"),
            ("a 1 TXT (b\nc\n", 1, "a parenthesis is never closed"),
            ("a 1 TXT b)\n", 1, "a parenthesis that nothing opens"),
            ("  1 A 192.0.2.3\n", 1, "the first record has no owner"),
            ("$INCLUDE /etc/passwd\n", 1, "$INCLUDE is not in Kedge's DNS"),
            ("$GENERATE 1-4000000000 a$ A 1.1.1.1\n", 1, "$GENERATE is not in Kedge's DNS"),
            ("$TTL soon\n", 1, "not a time to live: soon"),
            ("a 1 CH TXT b\n", 1, "records of the class CH are not served"),
            (&format!("{long} 1 A 192.0.2.1\n"), 1, "not a name: "),
        ] {
            let err = records(text, &origin).unwrap_err();
            assert!(err.line == line && err.what.starts_with(wanted), "{text}: {err}");
        }
        let many = "a 1 A 192.0.2.1\n".repeat(RECORDS_MAX + 1);
        assert_eq!(records(&many, &origin).unwrap_err().line, RECORDS_MAX + 1);
        assert!(record("a. 60 IN A 1.2.3.4").is_ok() && record("a. A 1.2.3.4\nb. A 1.2.3.4").is_err());
    }
}
