//! Reinvocation: when a webhook or policy changes an object late, those that were asked earlier may want to see it again.
//!
//! As upstream: there are at most two rounds. A change by a webhook starts the second one, in which built-in plugins run again and
//! those webhooks and policies with `reinvocationPolicy: IfNeeded` that were asked before the last change by somebody else.

use std::collections::BTreeSet;

use serde_json::Value;

/// What one review knows about its rounds.
#[derive(Debug, Default)]
pub struct Again {
    second: bool,
    wanted: bool,
    /// Asked, and not since something changed.
    called: BTreeSet<String>,
    /// To be asked again.
    repeat: BTreeSet<String>,
    /// The object as the webhooks left it in the first round.
    left: Option<Value>,
}

impl Again {
    /// Whether this is the second round.
    pub fn is_second(&self) -> bool {
        self.second
    }

    /// Whether a second round is to be run.
    pub fn wanted(&self) -> bool {
        self.wanted && !self.second
    }

    /// The second round begins.
    pub fn begin_second(&mut self) {
        self.second = true;
    }

    /// `id` changed the object: everybody asked before wants to see it, but for `id` itself.
    pub fn changed_by(&mut self, id: &str) {
        self.wanted = true;
        let mut asked = std::mem::take(&mut self.called);
        asked.remove(id);
        self.repeat.append(&mut asked);
    }

    /// `id` was asked and would like to be again if something changes after it.
    pub fn called(&mut self, id: String) {
        self.called.insert(id);
    }

    /// Whether `id` is to be asked in the second round.
    pub fn repeats(&self, id: &str) -> bool {
        self.repeat.contains(id)
    }

    /// Called before webhooks run: a built-in plugin that changed the object in the second round counts as a change.
    pub fn before_webhooks(&mut self, object: &Value) {
        if self.second && self.left.as_ref().is_some_and(|left| left != object) {
            self.repeat.append(&mut self.called);
        }
    }

    /// Called when they have run.
    pub fn after_webhooks(&mut self, object: &Value) {
        self.left = Some(object.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_asked_before_a_change_are_asked_again() {
        let mut again = Again::default();
        again.called("a".into());
        again.changed_by("b");
        again.called("b".into());
        assert!(again.wanted() && again.repeats("a") && !again.repeats("b"));
        again.begin_second();
        assert!(again.is_second() && !again.wanted());
    }

    #[test]
    fn a_change_by_a_plugin_between_the_rounds_counts() {
        let mut again = Again::default();
        again.called("a".into());
        again.after_webhooks(&Value::from(1));
        again.begin_second();
        again.before_webhooks(&Value::from(2));
        assert!(again.repeats("a"));
    }
}
