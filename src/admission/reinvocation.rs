//! Reinvocation: when a webhook or policy changes an object late, those that were asked earlier may want to see it
//! again.
//!
//! As upstream: there are at most two rounds. A change by a webhook or a policy starts the second one, in which
//! built-in plugins run again and those webhooks and policies with `reinvocationPolicy: IfNeeded` that were asked
//! before the last change by somebody else.

use std::collections::BTreeSet;

use serde_json::Value;

/// Memory of one review about its rounds.
#[derive(Debug, Default)]
pub struct Reinvocation {
    second: bool,
    wanted: bool,
    /// Of mutating webhooks.
    pub webhooks: Asked,
    /// Of mutating policies.
    pub policies: Asked,
}

/// The webhooks, or the policies, that were asked.
#[derive(Debug, Default)]
pub struct Asked {
    /// Asked, and not since something changed.
    called: BTreeSet<String>,
    /// To be asked again.
    repeat: BTreeSet<String>,
    /// The object as the first round left it.
    left: Option<Value>,
}

impl Reinvocation {
    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.second
    }

    /// Whether a second round is to be run.
    pub fn wanted(&self) -> bool {
        self.wanted && !self.second
    }

    /// Something changed that the others should see.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The second round begins.
    pub fn begin_second(&mut self) {
        self.second = true;
    }
}

impl Asked {
    /// The object changed: everybody asked before wants to see it. Who changed it is told by [`Asked::called`]
    /// afterwards.
    pub fn changed(&mut self) {
        self.repeat.append(&mut self.called);
    }

    /// `id` was asked and would like to be again if something changes after it.
    pub fn called(&mut self, id: String) {
        self.called.insert(id);
    }

    /// Whether `id` is to be asked in the second round.
    pub fn repeats(&self, id: &str) -> bool {
        self.repeat.contains(id)
    }

    /// Called before they run in the second round: what others changed since the first counts as a change.
    pub fn before_second(&mut self, object: &Value) {
        if self.left.as_ref().is_some_and(|left| left != object) {
            self.changed();
        }
    }

    /// Called when they have run.
    pub fn after(&mut self, object: &Value) {
        self.left = Some(object.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_asked_before_a_change_are_asked_again() {
        let mut reinvocation = Reinvocation::default();
        reinvocation.webhooks.called("a".into());
        reinvocation.webhooks.changed();
        reinvocation.webhooks.called("b".into());
        reinvocation.want();
        assert!(reinvocation.wanted() && reinvocation.webhooks.repeats("a") && !reinvocation.webhooks.repeats("b"));
        reinvocation.begin_second();
        assert!(reinvocation.is_second() && !reinvocation.wanted());
    }

    #[test]
    fn a_change_by_a_plugin_between_the_rounds_counts() {
        let mut asked = Asked::default();
        asked.called("a".into());
        asked.after(&Value::from(1));
        asked.before_second(&Value::from(2));
        assert!(asked.repeats("a"));
    }
}
