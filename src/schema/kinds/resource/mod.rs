//! The kinds of resource.k8s.io.

use crate::behaviour::Object;
use crate::defaults::{at, each, has, put_zero, text};

pub(crate) mod device_class;
pub(crate) mod device_taint_rule;
pub(crate) mod resource_claim;
pub(crate) mod resource_claim_template;
pub(crate) mod resource_pool_status_request;
pub(crate) mod resource_slice;

pub(super) fn device_request(request: &mut Object) {
    put_zero(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        put_zero(request, "count", 1);
    }
}

pub(super) fn device_requests(spec: &mut Object) {
    let Some(devices) = at(spec, "devices") else { return };
    for request in each(devices, "requests") {
        // v1 and v1beta2 nest the request; v1beta1 has its fields right here.
        if has(request, "deviceClassName") {
            device_request(request);
        }
        if let Some(exactly) = at(request, "exactly") {
            device_request(exactly);
        }
        each(request, "firstAvailable").for_each(device_request);
    }
}
