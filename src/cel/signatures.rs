//! The functions that Kubernetes's CEL has, with their types: what the checker knows, and the names that the evaluator
//! answers to.
//!
//! Spec: `apiserver/pkg/cel/environment/base.go` of upstream v1.36.2, for new expressions. It has no `math`, `base64`
//! and `cel.bind`; its `strings` are of version 2 (lists can be reversed, texts cannot), and `sign` of a quantity is a
//! function and no method.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::types::Ty;

/// One overload.
#[derive(Debug)]
pub struct Signature {
    /// The type of what stands before the dot.
    pub target: Option<Ty>,
    /// Of the arguments.
    pub args: Vec<Ty>,
    /// Of the result.
    pub result: Ty,
}

// `name: target.(args)->result` for methods, `name: (args)->result` for functions; A and B stand for any one type.
const TABLE: &str = "
_==_: (A,A)->bool
_!=_: (A,A)->bool
@in: (A,list<A>)->bool; (A,map<A,B>)->bool
!_: (bool)->bool
-_: (int)->int; (double)->double
_&&_: (bool,bool)->bool
_||_: (bool,bool)->bool
_?_:_: (bool,A,A)->A
_[_]: (list<A>,int)->A; (map<A,B>,A)->B; (optional<list<A>>,int)->optional<A>; (optional<map<A,B>>,A)->optional<B>
_[?_]: (list<A>,int)->optional<A>; (map<A,B>,A)->optional<B>; (optional<list<A>>,int)->optional<A>; \
    (optional<map<A,B>>,A)->optional<B>
_+_: (int,int)->int; (uint,uint)->uint; (double,double)->double; (string,string)->string; (bytes,bytes)->bytes; \
    (list<A>,list<A>)->list<A>; (time,duration)->time; (duration,time)->time; (duration,duration)->duration
_-_: (int,int)->int; (uint,uint)->uint; (double,double)->double; (time,time)->duration; (time,duration)->time; \
    (duration,duration)->duration
_*_: (int,int)->int; (uint,uint)->uint; (double,double)->double
_/_: (int,int)->int; (uint,uint)->uint; (double,double)->double
_%_: (int,int)->int; (uint,uint)->uint
size: (string)->int; (bytes)->int; (list<A>)->int; (map<A,B>)->int; string.()->int; bytes.()->int; list<A>.()->int; \
    map<A,B>.()->int
type: (A)->type
dyn: (A)->dyn
int: (int)->int; (uint)->int; (double)->int; (string)->int; (time)->int; (duration)->int
uint: (uint)->uint; (int)->uint; (double)->uint; (string)->uint
double: (double)->double; (int)->double; (uint)->double; (string)->double
string: (string)->string; (bool)->string; (int)->string; (uint)->string; (double)->string; (bytes)->string; \
    (time)->string; (duration)->string; (ip)->string; (cidr)->string
bytes: (bytes)->bytes; (string)->bytes
bool: (bool)->bool; (string)->bool
timestamp: (time)->time; (string)->time; (int)->time
duration: (duration)->duration; (string)->duration; (int)->duration
contains: string.(string)->bool
startsWith: string.(string)->bool
endsWith: string.(string)->bool
matches: string.(string)->bool; (string,string)->bool
charAt: string.(int)->string
indexOf: string.(string)->int; string.(string,int)->int; list<A>.(A)->int
lastIndexOf: string.(string)->int; string.(string,int)->int; list<A>.(A)->int
lowerAscii: string.()->string
upperAscii: string.()->string
replace: string.(string,string)->string; string.(string,string,int)->string
split: string.(string)->list<string>; string.(string,int)->list<string>
substring: string.(int)->string; string.(int,int)->string
trim: string.()->string
reverse: list<A>.()->list<A>
join: list<string>.()->string; list<string>.(string)->string
format: string.(list<dyn>)->string
strings.quote: (string)->string
find: string.(string)->string
findAll: string.(string)->list<string>; string.(string,int)->list<string>
sum: list<int>.()->int; list<uint>.()->uint; list<double>.()->double; list<duration>.()->duration
slice: list<A>.(int,int)->list<A>
flatten: list<list<A>>.()->list<A>; list<dyn>.(int)->list<dyn>
distinct: list<A>.()->list<A>
first: list<A>.()->optional<A>
last: list<A>.()->optional<A>
lists.range: (int)->list<int>
sets.contains: (list<A>,list<A>)->bool
sets.equivalent: (list<A>,list<A>)->bool
sets.intersects: (list<A>,list<A>)->bool
optional.of: (A)->optional<A>
optional.ofNonZeroValue: (A)->optional<A>
optional.none: ()->optional<A>
optional.unwrap: (list<optional<A>>)->list<A>
unwrapOpt: list<optional<A>>.()->list<A>
hasValue: optional<A>.()->bool
value: optional<A>.()->A
or: optional<A>.(optional<A>)->optional<A>
orValue: optional<A>.(A)->A
getFullYear: time.()->int; time.(string)->int
getMonth: time.()->int; time.(string)->int
getDate: time.()->int; time.(string)->int
getDayOfMonth: time.()->int; time.(string)->int
getDayOfWeek: time.()->int; time.(string)->int
getDayOfYear: time.()->int; time.(string)->int
getHours: time.()->int; time.(string)->int; duration.()->int
getMinutes: time.()->int; time.(string)->int; duration.()->int
getSeconds: time.()->int; time.(string)->int; duration.()->int
getMilliseconds: time.()->int; time.(string)->int; duration.()->int
quantity: (string)->quantity
isQuantity: (string)->bool
sign: (quantity)->int
isInteger: quantity.()->bool
asInteger: quantity.()->int
asApproximateFloat: quantity.()->double
add: quantity.(quantity)->quantity; quantity.(int)->quantity
sub: quantity.(quantity)->quantity; quantity.(int)->quantity
isLessThan: quantity.(quantity)->bool; semver.(semver)->bool
isGreaterThan: quantity.(quantity)->bool; semver.(semver)->bool
compareTo: quantity.(quantity)->int; semver.(semver)->int
ip: (string)->ip; cidr.()->ip
isIP: (string)->bool
ip.isCanonical: (string)->bool
family: ip.()->int
isUnspecified: ip.()->bool
isLoopback: ip.()->bool
isLinkLocalMulticast: ip.()->bool
isLinkLocalUnicast: ip.()->bool
isGlobalUnicast: ip.()->bool
cidr: (string)->cidr
isCIDR: (string)->bool
containsIP: cidr.(ip)->bool; cidr.(string)->bool
containsCIDR: cidr.(cidr)->bool; cidr.(string)->bool
masked: cidr.()->cidr
prefixLength: cidr.()->int
url: (string)->url
isURL: (string)->bool
getScheme: url.()->string
getHost: url.()->string
getHostname: url.()->string
getPort: url.()->string
getEscapedPath: url.()->string
getQuery: url.()->map<string,list<string>>
semver: (string)->semver; (string,bool)->semver
isSemver: (string)->bool; (string,bool)->bool
major: semver.()->int
minor: semver.()->int
patch: semver.()->int
format.named: (string)->optional<format>
validate: format.(string)->optional<list<string>>
cel.@mapInsert: (map<A,B>,map<A,B>)->map<A,B>
path: authorizer.(string)->pathcheck
group: authorizer.(string)->groupcheck
serviceAccount: authorizer.(string,string)->authorizer
resource: groupcheck.(string)->resourcecheck
subresource: resourcecheck.(string)->resourcecheck
namespace: resourcecheck.(string)->resourcecheck
name: resourcecheck.(string)->resourcecheck
fieldSelector: resourcecheck.(string)->resourcecheck
labelSelector: resourcecheck.(string)->resourcecheck
check: pathcheck.(string)->decision; resourcecheck.(string)->decision
allowed: decision.()->bool
reason: decision.()->string
errored: decision.()->bool
error: decision.()->string
jsonpatch.escapeKey: (string)->string
";

/// Types that lists can be sorted by.
const COMPARABLE: [&str; 8] = ["int", "uint", "double", "bool", "duration", "time", "string", "bytes"];
/// The function that the macro `sortBy` stands for.
pub const SORT_BY: &str = "@sortByAssociatedKeys";
/// The function that the macro `transformMapEntry` stands for.
pub const MAP_INSERT: &str = "cel.@mapInsert";

/// The formats of `format.NAME()`.
pub const FORMATS: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

fn table() -> &'static BTreeMap<String, Vec<Signature>> {
    static TABLE_READ: OnceLock<BTreeMap<String, Vec<Signature>>> = OnceLock::new();
    TABLE_READ.get_or_init(|| {
        let mut all = BTreeMap::new();
        for line in TABLE.lines().filter(|l| !l.is_empty()) {
            let Some((name, overloads)) = line.split_once(": ") else { continue };
            all.insert(name.to_owned(), overloads.split("; ").filter_map(read).collect());
        }
        let numbers = ["int", "uint", "double"];
        for op in ["_<_", "_<=_", "_>_", "_>=_"] {
            let mut overloads: Vec<Signature> = ["bool", "string", "bytes", "time", "duration"]
                .iter()
                .filter_map(|t| read(&format!("({t},{t})->bool")))
                .collect();
            overloads.extend(
                numbers.iter().flat_map(|a| numbers.iter().filter_map(move |b| read(&format!("({a},{b})->bool")))),
            );
            all.insert(op.to_owned(), overloads);
        }
        let of_each = |like: &str| COMPARABLE.iter().filter_map(|ty| read(&like.replace('T', ty))).collect::<Vec<_>>();
        for (name, like) in [
            ("isSorted", "list<T>.()->bool"),
            ("min", "list<T>.()->T"),
            ("max", "list<T>.()->T"),
            ("sort", "list<T>.()->list<T>"),
        ] {
            all.insert(name.to_owned(), of_each(like));
        }
        all.insert(SORT_BY.to_owned(), of_each("list<A>.(list<T>)->list<A>"));
        for format in FORMATS {
            all.insert(format!("format.{format}"), read("()->format").into_iter().collect());
        }
        all
    })
}

fn read(text: &str) -> Option<Signature> {
    let (before, result) = text.rsplit_once("->")?;
    let (target, args) = before.split_once('(')?;
    let target = target.strip_suffix('.').map(|t| Ty::read(t.trim()));
    let args = args.strip_suffix(')')?;
    // Commas inside `map<A,B>` part no arguments.
    let (mut parts, mut depth, mut part) = (Vec::new(), 0, String::new());
    for c in args.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    Some(Signature { target, args: parts.iter().map(|p| Ty::read(p)).collect(), result: Ty::read(result) })
}

/// The overloads of a function or method.
pub fn of(name: &str) -> &'static [Signature] {
    table().get(name).map_or(&[], Vec::as_slice)
}

/// Whether there is a function of this name.
pub fn is_function(name: &str) -> bool {
    table().contains_key(name)
}

/// Types that an expression may name, as in `type(x) == net.IP`.
pub fn is_type(name: &str) -> bool {
    const PLAIN: [&str; 11] =
        ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "optional_type"];
    const OF_LIBRARIES: [&str; 4] = ["google.protobuf.Duration", "google.protobuf.Timestamp", "net.CIDR", "net.IP"];
    PLAIN.contains(&name) || OF_LIBRARIES.contains(&name)
}
