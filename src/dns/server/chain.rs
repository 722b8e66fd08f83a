//! The chain of plugins, in CoreDNS's order: local, any, loadbalance, rewrite, autopath, acl, cache, header, minimal,
//! template, hosts, kubernetes, file, loop, forward, whoami.

use std::pin::Pin;
use std::sync::Arc;

use base::exposition::Labels;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::time::Instant;

use crate::cache::{Cache, Hit};
use crate::config::StaleMode;
use crate::plugin::acl::Action;
use crate::plugin::autopath;
use crate::plugin::local;
use crate::plugin::rewrite;
use crate::plugin::zone_file::Told;
use crate::question::{Answer, Question};
use crate::server::{Server, Site};

/// Aliases that are followed from plugin to plugin.
const ALIASES_MAX: usize = 8;

/// An answer to come. It is boxed, as the chain begins anew for the name that an alias leads to.
type Coming = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Server {
    /// Walks the chain. `depth` counts aliases that led here.
    pub(super) async fn resolve(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        if let Some(local) = site.block.local
            && let Some(answer) = local.answer(question)
        {
            if local.counts(&question.text()) {
                self.shared.metrics.count("coredns_local_localhost_requests_total", Labels::default());
            }
            return answer;
        }
        if site.block.any
            && let Some(answer) = local::any(question)
        {
            return answer;
        }
        let mut answer = match site.block.rewrite.is_empty() {
            true => self.searched(site, question, depth).await,
            false => self.rewritten(site, question, depth).await,
        };
        self.balance(site, &mut answer);
        answer
    }

    async fn rewritten(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        let mut changed = question.clone();
        let reverts = match site.block.rewrite.apply(&mut changed) {
            Ok(reverts) => reverts,
            Err(err) => return Answer::failed("rewrite", err.to_string()),
        };
        let mut answer = self.searched(site, &changed, depth).await;
        rewrite::revert(&mut answer, &reverts);
        answer
    }

    /// Walks a search path in the client's place. An alias is a whole name, and has none.
    async fn searched(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        let Some(autopath) = site.block.autopath.as_ref().filter(|_| depth == 0) else {
            return self.admitted(site, question, depth).await;
        };
        let candidates =
            autopath.candidates(question, || site.kubernetes.as_ref().and_then(|plugin| plugin.search(question)));
        let mut first = None;
        for name in candidates {
            let mut answer = self.admitted(site, &question.about(name), depth).await;
            if answer.code == ResponseCode::NoError {
                autopath::add_alias(&mut answer, &question.name);
                let labels = Labels::of(&[("server", &self.label)]);
                self.shared.metrics.count("coredns_autopath_success_total", labels);
                return answer;
            }
            first.get_or_insert(answer);
        }
        match first {
            Some(answer) => answer,
            None => self.admitted(site, question, depth).await,
        }
    }

    async fn admitted(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        if !site.block.acl.is_empty() {
            let action = site.block.acl.iter().find_map(|acl| acl.judge(question)).unwrap_or(Action::Allow);
            let labels = Labels::of(&[("server", &self.label), ("view", "")]);
            self.shared.metrics.count(action.metric(), labels);
            if let Some(answer) = action.answer() {
                return answer;
            }
        }
        self.cached(site, question, depth).await
    }

    async fn cached(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        let is_kept = |cache: &&Cache| question.class == DNSClass::IN && cache.wants(question);
        let Some(cache) = site.cache.as_ref().filter(is_kept) else {
            return self.behind_cache(site, question, depth).await;
        };
        self.count_cache("coredns_cache_requests_total", None);
        if let Some(hit) = cache.get(question) {
            self.count_cache("coredns_cache_hits_total", Some(hit.shelf));
            return self.kept(site, question, depth, hit).await;
        }
        self.count_cache("coredns_cache_misses_total", None);
        let mut answer = self.behind_cache(site, question, depth).await;
        cache.put(question, &mut answer);
        answer
    }

    fn count_cache(&self, name: &'static str, shelf: Option<&'static str>) {
        self.shared.metrics.count_cache(name, &self.label, shelf);
    }

    /// A kept answer, which may have to be fetched again, or first.
    async fn kept(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize, hit: Hit) -> Answer {
        if !hit.refresh {
            if hit.stale {
                self.count_cache("coredns_cache_served_stale_total", None);
            }
            return hit.answer;
        }
        let mode = site.block.cache.as_ref().and_then(|cache| cache.stale).map(|stale| stale.mode);
        let fresh = self.refresh(site, question, depth);
        if let (true, Some(StaleMode::Verify(limit))) = (hit.stale, mode) {
            let verified = match limit {
                None => fresh.await,
                Some(limit) => tokio::time::timeout(limit, fresh).await.ok().flatten(),
            };
            if let Some(answer) = verified {
                return answer;
            }
        } else {
            self.count_cache("coredns_cache_prefetch_total", None);
        }
        if hit.stale {
            self.count_cache("coredns_cache_served_stale_total", None);
        }
        hit.answer
    }

    /// Fetches an answer again, behind the client's back unless the result is waited for; `None`: it cannot be had.
    fn refresh(
        self: &Arc<Server>,
        site: &Arc<Site>,
        question: &Question,
        depth: usize,
    ) -> impl Future<Output = Option<Answer>> + Send + use<> {
        let (tell, told) = tokio::sync::oneshot::channel();
        match Arc::clone(&self.refreshes).try_acquire_owned() {
            Err(_) => {
                if let Some(cache) = &site.cache {
                    cache.refreshed(question);
                }
            }
            Ok(place) => {
                let (site, question) = (Arc::clone(site), question.clone());
                let coming = self.behind_cache(&site, &question, depth);
                self.shared.group.spawn_short("refresh", async move {
                    let mut answer = coming.await;
                    let good = Cache::replaces_stale(&answer);
                    if let Some(cache) = &site.cache {
                        if good {
                            cache.put(&question, &mut answer);
                        }
                        cache.refreshed(&question);
                    }
                    if good {
                        // Mostly nobody waits for it.
                        let _unheard = tell.send(answer);
                    }
                    drop(place);
                });
            }
        }
        async move { told.await.ok() }
    }

    fn behind_cache(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Coming {
        let (server, site, mut question) = (Arc::clone(self), Arc::clone(site), question.clone());
        Box::pin(async move {
            let block = &site.block;
            if let Some(header) = &block.header {
                header.change_question(&mut question);
            }
            let mut answer = server.ask_plugins(&site, &question, depth).await;
            if block.minimal && answer.code == ResponseCode::NoError && !answer.answers.is_empty() {
                answer.authorities.clear();
                answer.additionals.clear();
            }
            if let Some(header) = &block.header {
                header.change_answer(&mut answer);
            }
            answer
        })
    }

    async fn ask_plugins(self: &Arc<Server>, site: &Arc<Site>, question: &Question, depth: usize) -> Answer {
        if let Some(answer) = site.block.templates.iter().find_map(|template| template.answer(question)) {
            self.count_template(question);
            return self.follow_only_alias(question, answer, depth).await;
        }
        if question.class != DNSClass::IN {
            return Answer::new(ResponseCode::Refused, "");
        }
        if let Some(answer) = site.hosts.as_ref().and_then(|hosts| hosts.answer(question)) {
            return answer;
        }
        if let Some(answer) = site.kubernetes.as_ref().and_then(|kubernetes| kubernetes.answer(question)) {
            return self.follow_only_alias(question, answer, depth).await;
        }
        match site.files.iter().find_map(|zones| zones.answer(question)) {
            Some(Told::Whole(answer)) => return answer,
            Some(Told::Alias(alias)) => {
                let more = self.look_up(question, alias.target.clone(), depth).await;
                return match more {
                    Some(more) => alias.with(more),
                    None => alias.answer,
                };
            }
            None => {}
        }
        if site.loop_probe.as_ref().is_some_and(|probe| probe.circles(question, Instant::now())) {
            self.report_loop(site);
            return Answer::new(ResponseCode::ServFail, "loop");
        }
        self.forward(site, question).await
    }

    async fn forward(&self, site: &Site, question: &Question) -> Answer {
        let mut last = None;
        for forwarder in site.forwarders.iter().filter(|forwarder| forwarder.wants(question)) {
            let Some(_permit) = self.permit_to_forward(question.client.ip().to_canonical()) else {
                return Answer::new(ResponseCode::Refused, "forward");
            };
            let answer = forwarder.answer(question).await;
            if !forwarder.passes_on(&answer) {
                return answer;
            }
            last = Some(answer);
        }
        match last {
            Some(answer) => answer,
            None if site.block.whoami => local::whoami(question),
            // A server of zones alone, asked for another one.
            None if !site.files.is_empty() && site.forwarders.is_empty() => Answer::new(ResponseCode::Refused, "file"),
            None => Answer::failed("", "no next plugin found"),
        }
    }

    fn report_loop(&self, site: &Site) {
        let zone = site.block.zones.first().map(|zone| zone.name.to_ascii()).unwrap_or_default();
        let text = format!(
            "Loop ({}) detected for zone {zone:?}: a resolver of `forward` sends questions back here; give it other \
             resolvers",
            self.label
        );
        // One report ends the process; a second has nothing to add.
        let _ending_already = self.shared.fatal.try_send(text);
    }

    fn count_template(&self, question: &Question) {
        let labels = Labels::of(&[
            ("server", &self.label),
            ("zone", ""),
            ("view", ""),
            ("class", &question.class.to_string()),
            ("type", crate::metrics::kind_name(question.kind)),
        ]);
        self.shared.metrics.count("coredns_template_matches_total", labels);
    }

    /// An alias that stands alone is the name of something elsewhere; a client that asked for addresses gets them too.
    async fn follow_only_alias(self: &Arc<Server>, question: &Question, answer: Answer, depth: usize) -> Answer {
        let target = match answer.answers.as_slice() {
            [only] => match &only.data {
                RData::CNAME(target) => target.0.clone(),
                _ => return answer,
            },
            _ => return answer,
        };
        if !matches!(question.kind, RecordType::A | RecordType::AAAA) {
            return answer;
        }
        let mut answer = answer;
        if let Some(more) = self.look_up(question, target, depth).await {
            answer.answers.extend(more.answers);
        }
        answer
    }

    /// The answer to the same question about another name, from the chain's begin; `None` where aliases lead in
    /// circles, or to names of no server block.
    async fn look_up(self: &Arc<Server>, question: &Question, target: Name, depth: usize) -> Option<Answer> {
        if depth >= ALIASES_MAX {
            return None;
        }
        let next = question.about(target);
        let (site, _) = self.site(&next.lower)?;
        Some(Box::pin(self.resolve(site, &next, depth + 1)).await)
    }

    /// Shuffles address and mail exchange records, which stand behind any CNAME.
    fn balance(&self, site: &Site, answer: &mut Answer) {
        if !site.block.loadbalance || answer.answers.len() < 2 {
            return;
        }
        let moves = |data: &RData| matches!(data, RData::A(_) | RData::AAAA(_) | RData::MX(_));
        let (mut moving, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut answer.answers).into_iter().partition(|record| moves(&record.data));
        for at in (1..moving.len()).rev() {
            let other = usize::try_from(self.shared.rng.below(at as u64 + 1)).unwrap_or(0);
            moving.swap(at, other);
        }
        answer.answers = others;
        answer.answers.extend(moving);
    }
}
