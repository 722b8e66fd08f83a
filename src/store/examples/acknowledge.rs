//! Writes without end and prints each acknowledged revision, to be killed and compared with the file: `acknowledge
//! DIR`.

use std::io::Write as _;

use base::rng::Rng;
use base::task::Group;
use bytes::Bytes;
use store::store::Store;
use store::{Config, Op, Storage as _, Txn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: acknowledge DIR")?;
    let (group, _reports) = Group::root("acknowledge");
    let store = Store::open(
        Config {
            dir: dir.into(),
            bootstrap: store::member::Bootstrap::First,
            network: None,
            rng: Rng::from_os(),
            bounds: store::bounds::Bounds::SHIPPED,
        },
        &group,
    )
    .await?;
    let mut out = std::io::stdout();
    loop {
        let put = Op::Put { key: Bytes::from_static(b"k"), value: vec![7; 3000].into(), lease: 0, prev_kv: false };
        let reply = store.txn(Txn { success: vec![put], ..Txn::default() }).await?;
        writeln!(out, "{}", reply.revision.0)?;
    }
}
