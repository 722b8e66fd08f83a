//! Rows about images, and about the logs of containers.

use super::super::form::Form::{Bool, Duration, Int, Text, Texts};
use super::super::form::{I32, Take as _, put};
use super::super::row::{Row, done, fixed, refused};
use super::super::value;

pub(in super::super) const ROWS: &[Row] = &[
    done(("registryPullQPS", "registry-qps"), "5", Int(0, I32), |s, v| put(&mut s.pull_qps, v)).keeps_zero(),
    done(("registryBurst", "registry-burst"), "10", Int(0, I32), |s, v| put(&mut s.pull_burst, v)),
    done(("serializeImagePulls", "serialize-image-pulls"), "", Bool, |s, v| {
        s.serial_pulls = Some(bool::take(v)?);
        Ok(())
    }),
    done(("maxParallelImagePulls", ""), "", Int(1, I32), |s, v| {
        s.pulls_max = Some(usize::take(v)?);
        Ok(())
    })
    .keeps_zero(),
    fixed(
        ("imagePullCredentialsVerificationPolicy", ""),
        "NeverVerifyPreloadedImages",
        Text,
        "an image that was pulled with credentials is for those who have them",
    ),
    refused(
        ("preloadedImagesVerificationAllowlist", ""),
        Texts,
        "it belongs to the policy NeverVerifyAllowlistedImages, which is not there",
    ),
    done(("imageMinimumGCAge", "minimum-image-ttl-duration"), "2m", Duration, |s, v| put(&mut s.image_age_min, v)),
    done(("imageMaximumGCAge", ""), "0s", Duration, |s, v| put(&mut s.image_age_max, v)),
    done(("imageGCHighThresholdPercent", "image-gc-high-threshold"), "85", Int(0, 100), |s, v| {
        put(&mut s.image_gc_high_percent, v)
    })
    .keeps_zero(),
    done(("imageGCLowThresholdPercent", "image-gc-low-threshold"), "80", Int(0, 100), |s, v| {
        put(&mut s.image_gc_low_percent, v)
    })
    .keeps_zero(),
    done(("containerLogMaxSize", "container-log-max-size"), "10Mi", Text, |s, v| {
        s.log_bytes_max = value::bytes(&String::take(v)?)?;
        Ok(())
    }),
    done(("containerLogMaxFiles", "container-log-max-files"), "5", Int(2, I32), |s, v| put(&mut s.log_files_max, v))
        .keeps_zero(),
    done(("containerLogMaxWorkers", ""), "1", Int(1, I32), |s, v| put(&mut s.log_workers, v)).keeps_zero(),
    done(("containerLogMonitorInterval", ""), "10s", Duration, |s, v| {
        s.log_period = value::at_least_secs(v, 3)?;
        Ok(())
    })
    .keeps_zero(),
];
