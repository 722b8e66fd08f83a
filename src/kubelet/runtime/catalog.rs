//! containerd's own list of images: when each was last written, and which are pinned, which the CRI of older versions
//! does not tell.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::{GetImageRequest, Image, ListImagesRequest, UpdateImageRequest};
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
    let mut client = ImagesClient::new(channel(socket));
    let known = client.get(request(GetImageRequest { name: name.to_owned() })).await?.into_inner();
    // The mask leaves the target as it is, but containerd 2 ends with a panic where the message has none.
    let target = known.image.and_then(|image| image.target);
    let target = Some(target.ok_or_else(|| Status::not_found(format!("the image {name} has no target")))?);
    let labels = [(PINNED.0.to_owned(), PINNED.1.to_owned())].into();
    let image = Image { name: name.to_owned(), labels, target, ..Image::default() };
    let mask = FieldMask { paths: vec![format!("labels.{}", PINNED.0)] };
    let update = UpdateImageRequest { image: Some(image), update_mask: Some(mask), ..UpdateImageRequest::default() };
    client.update(request(update)).await.map(drop)
}
