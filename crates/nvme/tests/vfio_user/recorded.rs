//! What a virtual machine said once, said again.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use forebay_io::eventfd::EventFd;
use forebay_mem::Region;
use forebay_proto::vfio_user::{Access, Command, HEADER_BYTES, Header, Kind, REGION_BAR0, Request};

use crate::raw::Raw;
use crate::support::World;

/// What QEMU 11.1 and its guest's driver said to our device, and what that answered, up to the first doorbell: `>` or `<`, how many files
/// came beside, the message.
const HANDSHAKE: &str = include_str!("../../../proto/src/vfio_user/golden/qemu_handshake.txt");

fn bytes(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

/// A register that tells how far something is, not what was asked.
fn depends_on_time(request: &Request<'_>) -> bool {
    const CSTS: u64 = 0x1c;
    matches!(
        request,
        Request::RegionRead(Access {
            region: REGION_BAR0,
            offset: CSTS,
            ..
        })
    )
}

#[tokio::test]
async fn a_virtual_machine_is_answered_as_it_was() {
    let world = World::new().await;
    let (stream, _served) = world.connect();
    let mut raw = Raw::new(stream);
    let mut answers = VecDeque::new();
    let mut recorded = VecDeque::new();
    for line in HANDSHAKE.lines() {
        let [way, files, text] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let message = bytes(text);
        let (head, payload) = message.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = Header::parse(head).unwrap();
        if way == "<" {
            recorded.push_back((header, payload.to_vec()));
            continue;
        }
        let request = Request::parse(header.command().unwrap(), payload).unwrap();
        let files: Vec<OwnedFd> = (0..files.parse().unwrap())
            .map(|_| file_for(&request))
            .collect();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        raw.send(&message, &borrowed).await;
        if header.kind == (Kind::Command { no_reply: false }) {
            let answer = raw.receive().await.unwrap();
            answers.push_back((answer, depends_on_time(&request)));
        }
    }
    // Answers may have overtaken one another.
    assert_eq!(answers.len(), recorded.len());
    for ((header, payload), free) in answers {
        let at = recorded
            .iter()
            .position(|(then, _)| then.id == header.id)
            .unwrap();
        let (then, said) = recorded.remove(at).unwrap();
        assert_eq!(header.kind, then.kind);
        assert!(
            free || payload == said,
            "{:?}: {payload:02x?} was {said:02x?}",
            header.command()
        );
    }
}

/// What lies in the file does not matter before the first doorbell.
fn file_for(request: &Request<'_>) -> OwnedFd {
    match request {
        Request::DmaMap(map) => {
            let region = Region::memfd((map.offset + map.size) as usize).unwrap();
            region.backing().unwrap().file.try_clone_to_owned().unwrap()
        }
        other => {
            assert_eq!(other.command(), Command::DeviceSetIrqs);
            EventFd::new()
                .unwrap()
                .as_fd()
                .try_clone_to_owned()
                .unwrap()
        }
    }
}
