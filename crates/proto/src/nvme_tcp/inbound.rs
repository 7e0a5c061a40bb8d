//! The receiving direction of either end: what the stream holds next, checked before anything is made of it.

use super::digest::{DIGEST_BYTES, digest};
use super::fault::{FatalErrorStatus, Fault, OFFENDING_BYTES_MAX, TermReq};
use super::pdu::{
    Agreed, CAPSULE_CMD_HLEN, CAPSULE_RESP_HLEN, COMMON_BYTES, CQE_BYTES, DATA_HLEN, DDGSTF, Data,
    Framing, HDGSTF, IC_BYTES, ICReq, ICResp, LAST_PDU, PduType, R2T, SQE_BYTES, SUCCESS,
    TERM_HLEN, offset,
};

/// What a PDU is, data aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first PDU of a host. [`Inbound::initialized`] is to be called before anything else is looked at.
    ICReq(ICReq),
    /// The first PDU of a controller; as [`Event::ICReq`].
    ICResp(ICResp),
    /// The peer ends the connection.
    Terminate(TermReq),
    /// A submission queue entry; the data of the PDU is in-capsule data.
    CapsuleCmd([u8; SQE_BYTES]),
    /// A completion queue entry.
    CapsuleResp([u8; CQE_BYTES]),
    /// H2CData or C2HData. Whether it was asked for is for [`Transfer`](super::Transfer) to say.
    Data(Data),
    /// A controller asks for data.
    R2T(R2T),
}

/// A PDU whose head is all there, and right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pdu {
    /// What it is.
    pub event: Event,
    /// Bytes before the data: header, digest, padding.
    pub head_bytes: usize,
    /// Bytes of data that follow, from the stream.
    pub data_bytes: usize,
    /// Bytes of the digest that follows the data: [`DIGEST_BYTES`] or 0.
    pub trailer_bytes: usize,
}

/// What is known of the next PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It cannot be told from fewer than this many bytes; at most [`HEAD_BYTES_MAX`](super::HEAD_BYTES_MAX).
    Need(usize),
    /// Its head.
    Pdu(Pdu),
}

/// The end of a connection that receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Controller,
    Host,
}

/// Reads heads. It holds no bytes: the caller shows what it received of a PDU again, with more, until the head is whole.
#[derive(Debug, Clone)]
pub struct Inbound {
    end: End,
    /// None until the connection is initialized.
    framing: Option<Framing>,
    capsule_data_bytes_max: usize,
    data_bytes_max: u32,
}

impl Inbound {
    /// Of a controller: awaits an ICReq. A CapsuleCmd may carry this many bytes of data.
    pub fn controller(capsule_data_bytes_max: usize) -> Inbound {
        Inbound {
            end: End::Controller,
            framing: None,
            capsule_data_bytes_max,
            data_bytes_max: 0,
        }
    }

    /// Of a host: awaits an ICResp.
    pub fn host() -> Inbound {
        Inbound {
            end: End::Host,
            framing: None,
            capsule_data_bytes_max: 0,
            data_bytes_max: u32::MAX,
        }
    }

    /// The connection is initialized.
    pub fn initialized(&mut self, agreed: &Agreed) {
        match self.end {
            End::Controller => {
                self.framing = Some(agreed.h2c);
                self.data_bytes_max = agreed.h2c_data_bytes_max;
            }
            End::Host => self.framing = Some(agreed.c2h),
        }
    }

    /// From now on a CapsuleCmd may carry this many bytes of data.
    pub fn set_capsule_data_bytes_max(&mut self, bytes: usize) {
        self.capsule_data_bytes_max = bytes;
    }

    /// Looks at the PDU that begins here.
    ///
    /// # Errors
    /// What is wrong with it; nothing after it can be trusted. [`Inbound::offending`] is what to repeat.
    pub fn pdu(&self, bytes: &[u8]) -> Result<Progress, Fault> {
        let Some(common) = bytes.first_chunk::<COMMON_BYTES>() else {
            return Ok(Progress::Need(COMMON_BYTES));
        };
        let kind = self.kind(common[0])?;
        if usize::from(common[2]) != kind.hlen() {
            return Err(Fault::field(offset::HLEN));
        }
        let (flags, pdo) = (common[1], usize::from(common[3]));
        let plen = u32::from_le_bytes([common[4], common[5], common[6], common[7]]) as usize;
        let Some(framing) = &self.framing else {
            return self.before(kind, flags, plen, bytes);
        };
        if is_term(kind) {
            return terminate(plen, bytes);
        }
        // First: without the flag there is no digest to be counted.
        if (flags & HDGSTF != 0) != framing.header_digest {
            return Err(Fault::field(offset::FLAGS));
        }
        let header_bytes = framing.header_bytes(kind);
        let Some(behind) = plen.checked_sub(header_bytes) else {
            return Err(Fault::field(offset::PLEN));
        };
        check_flags(kind, flags, behind > 0, framing)?;
        let carries = matches!(
            kind,
            PduType::CapsuleCmd | PduType::H2CData | PduType::C2HData
        );
        let mut head_bytes = header_bytes;
        let (mut data_bytes, mut trailer_bytes) = (0, 0);
        if behind == 0 {
            if pdo != 0 && pdo != plen {
                return Err(Fault::field(offset::PDO));
            }
        } else if !carries {
            return Err(Fault::field(offset::PLEN));
        } else {
            let aligned = pdo.is_multiple_of(framing.alignment_bytes);
            if pdo < header_bytes || pdo > plen || !aligned {
                return Err(Fault::field(offset::PDO));
            }
            trailer_bytes = if framing.data_digest { DIGEST_BYTES } else { 0 };
            data_bytes = match (plen - pdo).checked_sub(trailer_bytes) {
                None | Some(0) => return Err(Fault::field(offset::PLEN)),
                Some(data_bytes) => data_bytes,
            };
            head_bytes = pdo;
        }
        if kind == PduType::CapsuleCmd && data_bytes > self.capsule_data_bytes_max {
            return Err(Fault::of(FatalErrorStatus::DataTransferLimitExceeded));
        }
        if bytes.len() < header_bytes {
            return Ok(Progress::Need(header_bytes));
        }
        if framing.header_digest {
            let (header, behind) = bytes.split_at(kind.hlen());
            if !behind.starts_with(&digest(header)) {
                return Err(Fault::of(FatalErrorStatus::HeaderDigestError));
            }
        }
        let event = self.event(kind, bytes, data_bytes)?;
        if bytes.len() < head_bytes {
            return Ok(Progress::Need(head_bytes));
        }
        Ok(Progress::Pdu(Pdu {
            event,
            head_bytes,
            data_bytes,
            trailer_bytes,
        }))
    }

    /// The header to repeat when [`Inbound::pdu`] refused what begins here.
    pub fn offending<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let hlen = bytes.get(2).map_or(COMMON_BYTES, |hlen| usize::from(*hlen));
        let known = hlen.clamp(COMMON_BYTES, OFFENDING_BYTES_MAX);
        &bytes[..bytes.len().min(known)]
    }

    /// Whether the kind may come now, and from there.
    fn kind(&self, code: u8) -> Result<PduType, Fault> {
        let kind = PduType::from_code(code).ok_or(Fault::field(offset::TYPE))?;
        let expected = match (self.framing, kind) {
            (_, PduType::H2CTermReq | PduType::C2HTermReq) => true,
            (None, PduType::ICReq | PduType::ICResp) => true,
            (None, _) | (Some(_), PduType::ICReq | PduType::ICResp) => false,
            (Some(_), _) => true,
        };
        if !expected || kind.is_from_host() != (self.end == End::Controller) {
            return Err(Fault::of(FatalErrorStatus::PduSequenceError));
        }
        Ok(kind)
    }

    /// The PDUs that may come before the connection is initialized.
    fn before(
        &self,
        kind: PduType,
        flags: u8,
        plen: usize,
        bytes: &[u8],
    ) -> Result<Progress, Fault> {
        if is_term(kind) {
            return terminate(plen, bytes);
        }
        if plen != IC_BYTES {
            return Err(Fault::field(offset::PLEN));
        }
        if flags != 0 {
            return Err(Fault::field(offset::FLAGS));
        }
        let Some(whole) = bytes.first_chunk::<IC_BYTES>() else {
            return Ok(Progress::Need(IC_BYTES));
        };
        let event = match self.end {
            End::Controller => Event::ICReq(ICReq::parse(whole)?),
            End::Host => Event::ICResp(ICResp::parse(whole)?),
        };
        Ok(Progress::Pdu(Pdu {
            event,
            head_bytes: IC_BYTES,
            data_bytes: 0,
            trailer_bytes: 0,
        }))
    }

    fn event(&self, kind: PduType, bytes: &[u8], data_bytes: usize) -> Result<Event, Fault> {
        let short = Fault::field(offset::HLEN);
        Ok(match kind {
            PduType::CapsuleCmd => {
                let header: &[u8; CAPSULE_CMD_HLEN] = bytes.first_chunk().ok_or(short)?;
                let mut sqe = [0; SQE_BYTES];
                sqe.copy_from_slice(&header[COMMON_BYTES..]);
                Event::CapsuleCmd(sqe)
            }
            PduType::CapsuleResp => {
                let header: &[u8; CAPSULE_RESP_HLEN] = bytes.first_chunk().ok_or(short)?;
                let mut cqe = [0; CQE_BYTES];
                cqe.copy_from_slice(&header[COMMON_BYTES..]);
                Event::CapsuleResp(cqe)
            }
            PduType::R2T => {
                let header: &[u8; DATA_HLEN] = bytes.first_chunk().ok_or(short)?;
                Event::R2T(R2T::parse(header))
            }
            PduType::H2CData | PduType::C2HData => {
                let header: &[u8; DATA_HLEN] = bytes.first_chunk().ok_or(short)?;
                let data = Data::parse(kind, header);
                if data_bytes == 0 || data.bytes as usize != data_bytes {
                    return Err(Fault::field(offset::DATAL));
                }
                if data.bytes > self.data_bytes_max {
                    return Err(Fault::of(FatalErrorStatus::DataTransferLimitExceeded));
                }
                Event::Data(data)
            }
            PduType::ICReq | PduType::ICResp | PduType::H2CTermReq | PduType::C2HTermReq => {
                return Err(Fault::of(FatalErrorStatus::PduSequenceError));
            }
        })
    }
}

fn is_term(kind: PduType) -> bool {
    matches!(kind, PduType::H2CTermReq | PduType::C2HTermReq)
}

/// The peer gives its reason; as little as makes it out is believed, since the connection ends anyhow.
fn terminate(plen: usize, bytes: &[u8]) -> Result<Progress, Fault> {
    if !(TERM_HLEN..=TERM_HLEN + OFFENDING_BYTES_MAX).contains(&plen) {
        return Err(Fault::field(offset::PLEN));
    }
    let Some(header) = bytes.first_chunk::<TERM_HLEN>() else {
        return Ok(Progress::Need(TERM_HLEN));
    };
    if bytes.len() < plen {
        return Ok(Progress::Need(plen));
    }
    let request = TermReq {
        status: u16::from_le_bytes([header[8], header[9]]),
        information: u32::from_le_bytes([header[10], header[11], header[12], header[13]]),
    };
    Ok(Progress::Pdu(Pdu {
        event: Event::Terminate(request),
        head_bytes: plen,
        data_bytes: 0,
        trailer_bytes: 0,
    }))
}

fn check_flags(kind: PduType, flags: u8, data: bool, framing: &Framing) -> Result<(), Fault> {
    let known = flags & !kind.flags() == 0;
    // Without data there is nothing to digest, whatever the flag says.
    let data = (flags & DDGSTF != 0) == framing.data_digest || !data && flags & DDGSTF == 0;
    let success = flags & SUCCESS == 0 || flags & LAST_PDU != 0;
    if known && data && success {
        Ok(())
    } else {
        Err(Fault::field(offset::FLAGS))
    }
}
