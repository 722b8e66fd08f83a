//! containerd's own list of images: when each was last written, and which are pinned, which the CRI of older versions
//! does not tell.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{Image, ListImagesRequest, UpdateImageRequest};
use prost_types::FieldMask;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};

use super::cri::channel;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The label that keeps an image from being collected, and its value.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// An image as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    /// Seconds and nanoseconds of its last change.
    pub(crate) written: (i64, i32),
    pub(crate) pinned: bool,
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static("k8s.io"));
    request.set_timeout(TIMEOUT);
    request
}

/// All images by name.
pub(crate) async fn list(socket: &Path) -> Result<BTreeMap<String, Known>, Status> {
    let mut client = ImagesClient::new(channel(socket)).max_decoding_message_size(64 << 20);
    let answer = client.list(request(ListImagesRequest { filters: Vec::new() })).await?.into_inner();
    let known = |image: Image| {
        let written = image.updated_at.map_or((0, 0), |at| (at.seconds, at.nanos));
        let pinned = image.labels.get(PINNED.0).is_some_and(|value| value == PINNED.1);
        (image.name, Known { written, pinned })
    };
    Ok(answer.images.into_iter().map(known).collect())
}

/// Keeps an image from being collected.
pub(crate) async fn pin(socket: &Path, name: &str) -> Result<(), Status> {
    let image = Image {
        name: name.to_owned(),
        labels: [(PINNED.0.to_owned(), PINNED.1.to_owned())].into(),
        ..Image::default()
    };
    let mask = FieldMask { paths: vec![format!("labels.{}", PINNED.0)] };
    let update = UpdateImageRequest { image: Some(image), update_mask: Some(mask), ..UpdateImageRequest::default() };
    ImagesClient::new(channel(socket)).update(request(update)).await.map(drop)
}
