use proptest::prelude::*;

use super::reply::Area;
use super::*;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let number = request.command() as u16;
    let kind = Kind::Command { no_reply: false };
    message(&mut out, 7, number, kind, |out| request.put(out));
    out
}

fn parsed(message: &[u8]) -> (Header, Result<Request<'_>, Malformed>) {
    let (head, payload) = message.split_first_chunk::<HEADER_BYTES>().unwrap();
    let header = Header::parse(head).unwrap();
    assert_eq!(header.payload_bytes(), payload.len());
    let command = header.command().unwrap();
    (header, Request::parse(command, payload))
}

/// A request laid out by hand, field by field.
#[test]
fn a_mapping_has_the_layout_of_the_specification() {
    let map = Request::DmaMap(DmaMap {
        readable: true,
        writable: true,
        offset: 0x1000,
        address: 0xfee0_0000,
        size: 0x20_0000,
    });
    let expected = [
        "0700020030000000", // id 7, command 2, 48 bytes
        "0000000000000000", // a command, no error
        "2000000003000000", // argsz 32, readable and writable
        "0010000000000000",
        "0000e0fe00000000",
        "0000200000000000",
    ];
    assert_eq!(crate::hex::encode(&encoded(&map)), expected.concat());
    assert_eq!(parsed(&encoded(&map)).1, Ok(map));
}

#[test]
fn sizes_of_messages_have_bounds() {
    let header = |size: u32, flags: u32| {
        let mut bytes = [0; HEADER_BYTES];
        bytes[2] = 9;
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        Header::parse(&bytes)
    };
    assert_eq!(header(15, 0), Err(Malformed::Truncated));
    assert_eq!(header(16, 0).unwrap().payload_bytes(), 0);
    assert!(header(MESSAGE_BYTES_MAX as u32, 0).is_ok());
    assert!(header(MESSAGE_BYTES_MAX as u32 + 1, 0).is_err());
    assert!(header(u32::MAX, 0).is_err());
    assert!(header(16, 2).is_err());
    let reply = header(16, TYPE_REPLY | ERROR).unwrap();
    assert_eq!(reply.kind, Kind::Reply { error: Some(0) });
}

#[test]
fn version_is_read_with_and_without_its_text() {
    let read = |payload: &[u8]| Version::parse(payload);
    let silent = read(&[0, 0, 1, 0]).unwrap();
    assert_eq!((silent.minor, silent.capabilities), (1, None));
    assert!(read(&[0, 0, 1]).is_err());
    let said = |text: &str| {
        let mut payload = vec![0, 0, 1, 0];
        payload.extend_from_slice(text.as_bytes());
        payload.push(0);
        read(&payload).map(|version| version.capabilities.unwrap())
    };
    assert_eq!(said(""), Ok(Capabilities::default()));
    assert_eq!(said("{}"), Ok(Capabilities::default()));
    let qemu = said(r#"{"capabilities":{"max_msg_fds":8,"write_multiple":true,"twin_socket":{}}}"#);
    let qemu = qemu.unwrap();
    assert_eq!((qemu.max_msg_fds, qemu.write_multiple), (8, true));
    for wrong in [
        "{",
        "[]",
        "7",
        r#"{"capabilities":[]}"#,
        r#"{"capabilities":{"max_msg_fds":"8"}}"#,
        r#"{"capabilities":{"max_data_xfer_size":-1}}"#,
        r#"{"capabilities":{"write_multiple":1}}"#,
    ] {
        assert!(said(wrong).is_err(), "{wrong}");
    }
    let deep = "[".repeat(10_000);
    assert!(said(&deep).is_err());
    let long = format!("{{\"x\":\"{}\"}}", "y".repeat(1 << 20));
    assert!(matches!(said(&long), Err(Malformed::TooLong(_))));
    // What another major version says is not looked at; the number is for the server to refuse.
    assert_eq!(read(&[1, 0, 0, 0, b'{']).unwrap().major, 1);
}

#[test]
fn ranges_that_wrap_or_contradict_themselves_are_refused() {
    let map = |address: u64, size: u64, offset: u64, flags: u32| {
        let mut payload = Vec::new();
        put_u32(&mut payload, 32);
        put_u32(&mut payload, flags);
        for value in [offset, address, size] {
            payload.extend_from_slice(&value.to_le_bytes());
        }
        Request::parse(Command::DmaMap, &payload).is_ok()
    };
    assert!(map(0, 4096, 0, 3) && map(u64::MAX - 4096, 4096, 0, 0));
    assert!(!map(0, 0, 0, 3));
    assert!(!map(u64::MAX - 4095, 4097, 0, 3));
    assert!(!map(0, 4097, u64::MAX - 4095, 3));
    assert!(!map(0, 4096, 0, 0xff));
    let unmap = |flags: u32, address: u64, size: u64| {
        let mut payload = Vec::new();
        put_u32(&mut payload, 24);
        put_u32(&mut payload, flags);
        payload.extend_from_slice(&address.to_le_bytes());
        payload.extend_from_slice(&size.to_le_bytes());
        Request::parse(Command::DmaUnmap, &payload).map(drop)
    };
    assert!(unmap(0, 0, 4096).is_ok() && unmap(2, 0, 0).is_ok());
    assert!(unmap(2, 0, 4096).is_err() && unmap(0, 0, 0).is_err());
    assert!(unmap(0, u64::MAX, 2).is_err() && unmap(4, 0, 0).is_err());
    assert!(matches!(unmap(1, 0, 4096), Err(Malformed::Unsupported(_))));
}

#[test]
fn interrupts_are_named_by_ranges_that_hold() {
    let set = |flags: u32, start: u32, count: u32, data: &[u8]| {
        let mut payload = Vec::new();
        for word in [20, flags, IRQ_MSIX, start, count] {
            put_u32(&mut payload, word);
        }
        payload.extend_from_slice(data);
        Request::parse(Command::DeviceSetIrqs, &payload).is_ok()
    };
    assert!(set(32 | 4, 0, 8, &[]) && set(32 | 1, 0, 0, &[]) && set(8 | 2, 0, 2, &[1, 0]));
    assert!(!set(32 | 4, u32::MAX, 1, &[]));
    assert!(!set(32 | 2, 0, 1 << 31, &[0; 8]));
    assert!(!set(32 | 2, 0, 2, &[1]));
    assert!(!set(32 | 16 | 4, 0, 1, &[]) && !set(32 | 1 | 2, 0, 1, &[0]) && !set(0, 0, 0, &[]));
    assert!(!set(64 | 32 | 4, 0, 1, &[]));
}

#[test]
fn a_query_may_be_longer_than_its_fields() {
    // One client asks with as many bytes as it has room for the answer.
    let mut payload = vec![0; 4064];
    payload[0..4].copy_from_slice(&4064u32.to_le_bytes());
    let request = Request::parse(Command::DeviceGetRegionInfo, &payload);
    let room = 4064;
    assert_eq!(request, Ok(Request::RegionInfo { room, index: 0 }));
    payload[0] = 15;
    payload[1] = 0;
    assert!(Request::parse(Command::DeviceGetRegionInfo, &payload).is_err());
}

#[test]
fn what_can_be_mapped_is_told_to_who_has_room() {
    let area = Area {
        offset: 0x1000,
        size: 0x1000,
    };
    let region = reply::Region {
        index: REGION_BAR0,
        size: 0x4000,
        mappable: Some((area, 0x2000)),
    };
    let mut short = Vec::new();
    reply::put_region(&mut short, &region, 32);
    assert_eq!(short.len(), 32);
    let (read, room) = reply::parse_region(&short).unwrap();
    assert_eq!((read.size, read.mappable, room), (0x4000, None, Some(64)));
    let mut whole = Vec::new();
    reply::put_region(&mut whole, &region, 64);
    assert_eq!(whole.len(), 64);
    assert_eq!(reply::parse_region(&whole), Ok((region, None)));
    // A chain of capabilities that turns back has no end.
    whole[32] = 9;
    whole[36..40].copy_from_slice(&32u32.to_le_bytes());
    assert!(reply::parse_region(&whole).is_err());
}

/// What QEMU 11.1 and its guest's driver said to our device, and what that answered, up to the first doorbell: `>` or `<`, how many files
/// came beside, the message.
const HANDSHAKE: &str = include_str!("golden/qemu_handshake.txt");

#[test]
fn the_messages_of_a_virtual_machine_are_read_as_they_are_written() {
    let mut asked = std::collections::BTreeMap::new();
    for line in HANDSHAKE.lines() {
        let [way, _, text] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(digit).collect();
        let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = Header::parse(head).unwrap();
        assert_eq!(
            (header.payload_bytes(), &header.encode()),
            (payload.len(), head)
        );
        let command = header.command().unwrap();
        if way == ">" {
            let request = Request::parse(command, payload).unwrap();
            let mut again = Vec::new();
            request.put(&mut again);
            assert_eq!(Request::parse(command, &again), Ok(request), "{line}");
            asked.insert(header.id, command);
            continue;
        }
        assert_eq!(asked.remove(&header.id), Some(command));
        assert_eq!(header.kind, Kind::Reply { error: None });
        match command {
            Command::Version => assert!(
                Version::parse(payload)
                    .unwrap()
                    .capabilities
                    .unwrap()
                    .write_multiple
            ),
            Command::DeviceGetInfo => {
                assert_eq!(reply::parse_device_info(payload), Ok((REGIONS, IRQS)))
            }
            Command::DeviceGetRegionInfo => drop(reply::parse_region(payload).unwrap()),
            Command::DeviceGetIrqInfo => drop(reply::parse_irq(payload).unwrap()),
            Command::RegionRead => drop(reply::parse_read(payload).unwrap()),
            _ => {}
        }
    }
}

/// A server's question and what clients answer, laid out by hand.
#[test]
fn a_device_asks_for_memory_as_the_specification_says() {
    let asked = DmaAccess {
        address: 0xfee0_0000,
        count: 3,
    };
    let write = DmaRequest::Write(asked, b"abc");
    let mut payload = Vec::new();
    write.put(&mut payload);
    let expected = ["0000e0fe00000000", "0300000000000000", "616263"];
    assert_eq!(crate::hex::encode(&payload), expected.concat());
    assert_eq!(DmaRequest::parse(Command::DmaWrite, &payload), Ok(write));
    assert_eq!(reply::parse_dma_read(&payload, asked), Ok(&b"abc"[..]));
    // Short, long, of somewhere else, of something else.
    assert!(reply::parse_dma_read(&payload[..18], asked).is_err());
    assert!(reply::parse_dma_read(&payload[..15], asked).is_err());
    assert!(reply::parse_dma_read(&[&payload[..], b"d"].concat(), asked).is_err());
    let elsewhere = DmaAccess {
        address: 0xfee0_0001,
        count: 3,
    };
    assert!(reply::parse_dma_read(&payload, elsewhere).is_err());
    let longer = DmaAccess { count: 4, ..asked };
    assert!(reply::parse_dma_read(&payload, longer).is_err());
    // What was written is answered in three forms.
    for len in [0, 12, 16] {
        assert_eq!(reply::parse_dma_written(&payload[..len], asked), Ok(()));
    }
    for len in [12, 16] {
        assert!(reply::parse_dma_written(&payload[..len], elsewhere).is_err());
        assert!(reply::parse_dma_written(&payload[..len], longer).is_err());
    }
    for len in [1, 8, 11, 13, 15, 17, 19] {
        assert!(
            reply::parse_dma_written(&payload[..len], asked).is_err(),
            "{len}"
        );
    }
    assert!(DmaRequest::parse(Command::DmaWrite, &payload[..18]).is_err());
    assert!(DmaRequest::parse(Command::RegionRead, &payload).is_err());
    let far = DmaAccess {
        address: 0,
        count: DATA_BYTES_MAX as u64 + 1,
    };
    let mut payload = Vec::new();
    DmaRequest::Read(far).put(&mut payload);
    assert!(DmaRequest::parse(Command::DmaRead, &payload).is_err());
}

fn access() -> impl Strategy<Value = Access> {
    (any::<u64>(), any::<u32>(), 0..=64u32).prop_map(|(offset, region, count)| Access {
        offset,
        region,
        count,
    })
}

proptest! {
    #[test]
    fn writes_come_back_as_they_went(
        access in access(),
        byte in any::<u8>(),
        room in 16..=u32::MAX,
        (start, count) in (0..=1_000_000u32, 0..=1_000_000u32),
    ) {
        let data = vec![byte; access.count as usize];
        let requests = [
            Request::RegionWrite(PayloadAccess { access, data: &data }),
            Request::RegionRead(access),
            Request::RegionInfo { room, index: access.region },
            Request::IrqInfo { index: access.region },
            Request::DeviceInfo,
            Request::DeviceReset,
            Request::SetIrqs(SetIrqs {
                action: IrqAction::Trigger,
                data: IrqData::Eventfd,
                index: access.region,
                start,
                count,
            }),
            Request::Version(Version { major: 0, minor: 1, capabilities: Some(Capabilities::default()) }),
            Request::Version(Version { major: 0, minor: 1, capabilities: None }),
        ];
        for request in requests {
            let message = encoded(&request);
            let (header, read) = parsed(&message);
            prop_assert_eq!(header.kind, Kind::Command { no_reply: false });
            prop_assert_eq!(read, Ok(request));
        }
    }

    #[test]
    fn no_payload_does_harm(number in 0..20u16, payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let Some(command) = Command::from_number(number) else { return Ok(()) };
        if let Ok(Request::RegionWriteMulti(writes)) = Request::parse(command, &payload) {
            prop_assert_eq!(writes.iter().count() as u64, writes.count());
        }
        let _ = reply::parse_region(&payload);
        let _ = reply::parse_read(&payload);
        let _ = reply::parse_device_info(&payload);
        let _ = reply::parse_irq(&payload);
        if let Ok(request) = DmaRequest::parse(command, &payload) {
            let mut again = Vec::new();
            request.put(&mut again);
            prop_assert_eq!(DmaRequest::parse(command, &again), Ok(request));
        }
    }
}
