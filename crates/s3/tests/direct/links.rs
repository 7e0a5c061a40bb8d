//! Links as others make them: V12 of section 8.

use std::sync::Arc;

use forebay_fabric::{Link, iwarp};

use crate::rig::*;
use crate::support::ALPHA;

/// As the kernel's iWARP and adapters make links: MPA sees to nothing, and who connects speaks first.
#[tokio::test]
async fn v12_a_link_whose_client_speaks_first() {
    let rig = Rig::open().await;
    let options = iwarp::Options {
        peer_to_peer: false,
        ..iwarp::Options::default()
    };
    let peer = rig.peer_far(ALPHA, options).await;
    // As a node serves every link.
    let store = Arc::new(rig.server.store.clone());
    let messages = forebay_direct::Door::new(store, forebay_direct::Config::default());
    let (session, link) = (&peer.accepted.session, &peer.accepted.link);
    let serving = messages.serve(session, link, std::future::pending());
    let client = async {
        peer.link.send(&[0; 8]).await.unwrap();
        peer.fill(0, b"payload");
        served(&rig.put(&peer, "/bucket/key", 0, 7).await, 200, 7);
        served(&rig.get(&peer, "/bucket/key", 100, 7).await, 200, 7);
        assert_eq!(peer.bytes(100, 7), b"payload");
    };
    tokio::select! {
        reason = serving => panic!("{reason:?}"),
        () = client => {}
    }
    drop(peer);
    rig.finish().await;
}
