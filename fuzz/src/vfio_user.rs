//! vfio-user messages: a stream of them as a server reads it, and answers as a client reads them; and what a server asks, as a client
//! reads it, with what is answered to that.

use forebay_proto::vfio_user::reply::{
    parse_device_info, parse_dma_read, parse_dma_written, parse_irq, parse_read, parse_region,
};
use forebay_proto::vfio_user::{
    DATA_BYTES_MAX, DmaAccess, DmaRequest, HEADER_BYTES, Header, Kind, Request, Version, message,
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
    if let Ok(asked) = DmaRequest::parse(command, payload) {
        let mut again = Vec::new();
        asked.put(&mut again);
        assert!(asked.access().count as usize <= DATA_BYTES_MAX);
        assert_eq!(DmaRequest::parse(command, &again), Ok(asked));
    }
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
    // Whatever was asked: what is taken for its answer has as many bytes, and is its own.
    let number = |at: usize| {
        let bytes = payload.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let said = DmaAccess {
        address: number(0).unwrap_or(0),
        count: number(8).unwrap_or(0),
    };
    let other = DmaAccess {
        address: !said.address,
        ..said
    };
    if let Ok(data) = parse_dma_read(payload, said) {
        assert_eq!(data.len() as u64, said.count);
    }
    assert!(parse_dma_read(payload, other).is_err());
    let written = parse_dma_written(payload, said).is_ok();
    assert!(!written || matches!(payload.len(), 0 | 12 | 16));
    assert!(payload.is_empty() || parse_dma_written(payload, other).is_err());
}
