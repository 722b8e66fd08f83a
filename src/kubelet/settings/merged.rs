//! Settings that must agree with each other.

use super::Settings;
use super::value::SIGNALS;

/// Two settings that cannot be together. Each says which.
#[derive(Debug, thiserror::Error)]
pub(super) enum Clash {
    #[error("image-credential-provider-config and image-credential-provider-bin-dir are given together")]
    HalfOfProviders,
    #[error(
        "image-gc-low-threshold (imageGCLowThresholdPercent) {low} must be less than image-gc-high-threshold \
         (imageGCHighThresholdPercent) {high}"
    )]
    Thresholds { low: u64, high: u64 },
    #[error("imageMaximumGCAge must be longer than imageMinimumGCAge (minimum-image-ttl-duration)")]
    ImageAges,
    #[error(
        "maxParallelImagePulls {n} cannot be larger than 1 unless serializeImagePulls (serialize-image-pulls) is false"
    )]
    SerialPulls { n: usize },
    #[error(
        "eviction-soft: grace period must be specified for the soft eviction threshold {signal}: set \
         evictionSoftGracePeriod (eviction-soft-grace-period)"
    )]
    NoGrace { signal: String },
    #[error("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and 300s")]
    RestartPause,
    #[error("nodeStatusUpdateFrequency (node-status-update-frequency) must be at least 1s")]
    StatusPeriod,
}

/// Checks what no value alone tells. Upstream's `ValidateKubeletConfiguration`.
pub(super) fn check(settings: &Settings) -> Result<(), Clash> {
    let s = settings;
    if s.provider_config.is_some() != s.provider_bin_dir.is_some() {
        return Err(Clash::HalfOfProviders);
    }
    if s.image_gc_low_percent >= s.image_gc_high_percent {
        return Err(Clash::Thresholds { low: s.image_gc_low_percent, high: s.image_gc_high_percent });
    }
    if !s.image_age_max.is_zero() && s.image_age_max <= s.image_age_min {
        return Err(Clash::ImageAges);
    }
    if let (Some(true), Some(n @ 2..)) = (s.serial_pulls, s.pulls_max) {
        return Err(Clash::SerialPulls { n });
    }
    let bare = |signal: &&&str| s.eviction_soft.contains_key(**signal) && s.soft_grace(signal).is_none();
    if let Some(signal) = SIGNALS.iter().find(bare) {
        return Err(Clash::NoGrace { signal: (*signal).to_owned() });
    }
    if !(1..=300).contains(&s.restart_pause_max.as_secs()) {
        return Err(Clash::RestartPause);
    }
    if s.status_period.as_secs() == 0 {
        return Err(Clash::StatusPeriod);
    }
    Ok(())
}
