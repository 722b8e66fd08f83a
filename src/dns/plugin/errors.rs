//! `errors { consolidate DURATION REGEXP [LEVEL] [show_first] }`: failures are logged, many of a kind as one line.

use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::task::Group;
use regex::Regex;
use tracing::{debug, error, info, warn};

use crate::args::{Parsed, absent, duration, none, pattern, unknown, wrong_count};
use crate::corefile::Directive;

#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    pattern: Regex,
    period: Duration,
    level: Level,
    show_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    Warning,
    Info,
    Debug,
}

impl Level {
    fn say(self, text: &str) {
        match self {
            Level::Error => error!("{text}"),
            Level::Warning => warn!("{text}"),
            Level::Info => info!("{text}"),
            Level::Debug => debug!("{text}"),
        }
    }
}

impl Errors {
    pub(crate) fn parse(directive: &Directive) -> Parsed<Errors> {
        if directive.args.as_slice() != ["stdout"] {
            none(directive)?;
        }
        let mut errors = Errors::default();
        for option in &directive.body {
            match option.name.as_str() {
                "consolidate" => errors.rules.push(Rule::parse(option)?),
                "stacktrace" => return Err(absent(directive, option)),
                _ => return Err(unknown(directive, option)),
            }
        }
        Ok(errors)
    }
}

impl Rule {
    fn parse(option: &Directive) -> Parsed<Rule> {
        let [period, text, rest @ ..] = option.args.as_slice() else { return Err(wrong_count(option)) };
        let mut rule = Rule {
            pattern: pattern(option, text)?,
            period: duration(option, period)?,
            level: Level::Error,
            show_first: false,
        };
        for word in rest {
            match word.as_str() {
                "error" => rule.level = Level::Error,
                "warning" => rule.level = Level::Warning,
                "info" => rule.level = Level::Info,
                "debug" => rule.level = Level::Debug,
                "show_first" => rule.show_first = true,
                other => return Err(option.error(format!("unknown log level {other} in consolidate"))),
            }
        }
        Ok(rule)
    }
}

/// The rules at work, with what they have counted.
pub(crate) struct Tally {
    rules: Vec<(Rule, Mutex<u64>)>,
}

impl Tally {
    pub(crate) fn new(errors: Errors) -> Arc<Tally> {
        Arc::new(Tally { rules: errors.rules.into_iter().map(|rule| (rule, Mutex::default())).collect() })
    }

    /// Logs a failure, or counts it.
    pub(crate) fn note(self: &Arc<Tally>, text: &str, group: &Group) {
        let Some(at) = self.rules.iter().position(|(rule, _)| rule.pattern.is_match(text)) else {
            return error!("{text}");
        };
        let (rule, count) = &self.rules[at];
        let first = {
            let mut count = count.lock();
            *count += 1;
            *count == 1
        };
        if !first {
            return;
        }
        if rule.show_first {
            rule.level.say(text);
        }
        let (tally, period) = (Arc::clone(self), rule.period);
        group.spawn_short("consolidate", async move {
            tokio::time::sleep(period).await;
            tally.sum_up(at);
        });
    }

    fn sum_up(&self, at: usize) {
        let (rule, count) = &self.rules[at];
        let n = std::mem::take(&mut *count.lock());
        if n > 1 || !rule.show_first {
            rule.level.say(&format!("{n} errors like '{}' occurred in last {:?}", rule.pattern, rule.period));
        }
    }
}
