//! vfio-user messages: a stream of them as a server reads it, and answers as a client reads them.

use forebay_proto::vfio_user::reply::{parse_device_info, parse_irq, parse_read, parse_region};
use forebay_proto::vfio_user::{
    DATA_BYTES_MAX, HEADER_BYTES, Header, Kind, Request, Version, message,
};

/// A stream of messages, each of which says how long it is. What parses is written as it was meant, and parses again.
pub fn vfio_user(mut data: &[u8]) {
    while let Some((head, rest)) = data.split_first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::parse(head) else {
            return;
        };
        assert_eq!(Header::parse(&header.encode()), Ok(header));
        let Some(payload) = rest.get(..header.payload_bytes()) else {
            return;
        };
        data = &rest[payload.len()..];
        match header.kind {
            Kind::Command { .. } => request(&header, payload),
            Kind::Reply { .. } => answer(payload),
        }
    }
}

fn request(header: &Header, payload: &[u8]) {
    let Some(command) = header.command() else {
        return;
    };
    let Ok(request) = Request::parse(command, payload) else {
        return;
    };
    assert_eq!(request.command(), command);
    if let Request::RegionRead(access) = &request {
        assert!(access.count as usize <= DATA_BYTES_MAX);
    }
    if let Request::RegionWriteMulti(writes) = &request {
        assert_eq!(writes.iter().count() as u64, writes.count());
        assert!(writes.iter().all(|write| write.data.len() <= 8));
    }
    let mut again = Vec::new();
    message(&mut again, header.id, header.number, header.kind, |out| {
        request.put(out);
    });
    let (head, payload) = again.split_first_chunk::<HEADER_BYTES>().expect("a header");
    let header = Header::parse(head).expect("what was written is a header");
    assert_eq!(header.payload_bytes(), payload.len());
    assert_eq!(Request::parse(command, payload), Ok(request));
}

fn answer(payload: &[u8]) {
    let _ = Version::parse(payload);
    let _ = parse_device_info(payload);
    let _ = parse_irq(payload);
    if let Ok((region, _)) = parse_region(payload)
        && let Some((area, _)) = region.mappable
    {
        assert!(area.offset.checked_add(area.size) <= Some(region.size) || area.offset == 0);
    }
    if let Ok(read) = parse_read(payload) {
        assert_eq!(read.data.len(), read.access.count as usize);
    }
}
