//! The PDUs: offsets, fields, and how they are written (section 3.6).

use super::digest::{DIGEST_BYTES, digest};
use super::fault::Fault;

/// Bytes of the common header.
pub const COMMON_BYTES: usize = 8;
/// Bytes of ICReq and ICResp, header and PDU.
pub const IC_BYTES: usize = 128;
/// HLEN of H2CTermReq and C2HTermReq.
pub const TERM_HLEN: usize = 24;
/// HLEN of CapsuleCmd.
pub const CAPSULE_CMD_HLEN: usize = COMMON_BYTES + SQE_BYTES;
/// HLEN of CapsuleResp.
pub const CAPSULE_RESP_HLEN: usize = COMMON_BYTES + CQE_BYTES;
/// HLEN of H2CData, C2HData and R2T.
pub const DATA_HLEN: usize = 24;
/// Bytes of a submission queue entry.
pub const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub const CQE_BYTES: usize = 16;
/// The largest HPDA and CPDA: data may be asked to begin at a multiple of 128 bytes.
pub const PDA_MAX: u8 = 31;
/// The furthest that data can begin in its PDU: PDO is one byte.
pub const HEAD_BYTES_MAX: usize = 255;
/// The least MAXH2CDATA, in bytes.
pub const H2C_DATA_BYTES_MIN: u32 = 4096;

/// Flag: a header digest follows the header.
pub const HDGSTF: u8 = 1 << 0;
/// Flag: a data digest follows the data.
pub const DDGSTF: u8 = 1 << 1;
/// Flag of data: the last of this transfer.
pub const LAST_PDU: u8 = 1 << 2;
/// Flag of C2HData: the command is complete and succeeded; no CapsuleResp follows.
pub const SUCCESS: u8 = 1 << 3;

/// Offsets of fields, as the Fatal Error Information names them.
pub mod offset {
    /// PDU type.
    pub const TYPE: u32 = 0;
    /// Flags.
    pub const FLAGS: u32 = 1;
    /// Header length.
    pub const HLEN: u32 = 2;
    /// PDU Data Offset.
    pub const PDO: u32 = 3;
    /// PDU length.
    pub const PLEN: u32 = 4;
    /// PDU Format Version of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp.
    pub const PDA: u32 = 10;
    /// Digests of ICReq and ICResp.
    pub const DGST: u32 = 11;
    /// MAXR2T of ICReq, MAXH2CDATA of ICResp.
    pub const MAXIMUM: u32 = 12;
    /// Command identifier of data and R2T.
    pub const CCCID: u32 = 8;
    /// Transfer tag of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// Data offset, or the offset that an R2T asks for.
    pub const DATAO: u32 = 12;
    /// Data length, or the length that an R2T asks for.
    pub const DATAL: u32 = 16;
}

/// The kinds of PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request.
    ICReq = 0x00,
    /// Initialize Connection Response.
    ICResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2CTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2HTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host to Controller Data Transfer.
    H2CData = 0x06,
    /// Controller to Host Data Transfer.
    C2HData = 0x07,
    /// Ready to Transfer.
    R2T = 0x09,
}

impl PduType {
    /// The kind of this number, if there is one.
    pub fn from_code(code: u8) -> Option<PduType> {
        Some(match code {
            0x00 => PduType::ICReq,
            0x01 => PduType::ICResp,
            0x02 => PduType::H2CTermReq,
            0x03 => PduType::C2HTermReq,
            0x04 => PduType::CapsuleCmd,
            0x05 => PduType::CapsuleResp,
            0x06 => PduType::H2CData,
            0x07 => PduType::C2HData,
            0x09 => PduType::R2T,
            _ => return None,
        })
    }

    /// The only header length that is right.
    pub fn hlen(self) -> usize {
        match self {
            PduType::ICReq | PduType::ICResp => IC_BYTES,
            PduType::H2CTermReq | PduType::C2HTermReq => TERM_HLEN,
            PduType::CapsuleCmd => CAPSULE_CMD_HLEN,
            PduType::CapsuleResp => CAPSULE_RESP_HLEN,
            PduType::H2CData | PduType::C2HData | PduType::R2T => DATA_HLEN,
        }
    }

    /// Whether hosts send it.
    pub fn is_from_host(self) -> bool {
        matches!(
            self,
            PduType::ICReq | PduType::H2CTermReq | PduType::CapsuleCmd | PduType::H2CData
        )
    }

    /// Flags that may be set.
    pub(super) fn flags(self) -> u8 {
        match self {
            PduType::ICReq | PduType::ICResp | PduType::H2CTermReq | PduType::C2HTermReq => 0,
            PduType::CapsuleCmd => HDGSTF | DDGSTF,
            PduType::CapsuleResp | PduType::R2T => HDGSTF,
            PduType::H2CData => HDGSTF | DDGSTF | LAST_PDU,
            PduType::C2HData => HDGSTF | DDGSTF | LAST_PDU | SUCCESS,
        }
    }
}

/// What PDUs of one direction look like, once the connection is initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// Headers are followed by a digest.
    pub header_digest: bool,
    /// Data is followed by a digest.
    pub data_digest: bool,
    /// Data begins at a multiple of this many bytes in its PDU.
    pub alignment_bytes: usize,
}

impl Framing {
    /// Without digests and padding.
    pub const PLAIN: Framing = Framing {
        header_digest: false,
        data_digest: false,
        alignment_bytes: 4,
    };

    fn new(digests: Digests, pda: u8) -> Framing {
        Framing {
            header_digest: digests.header,
            data_digest: digests.data,
            alignment_bytes: (usize::from(pda.min(PDA_MAX)) + 1) * 4,
        }
    }

    /// Bytes of a header and its digest.
    pub fn header_bytes(&self, kind: PduType) -> usize {
        kind.hlen() + if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    /// Where data begins (PDO).
    pub fn data_offset(&self, kind: PduType) -> usize {
        self.header_bytes(kind)
            .next_multiple_of(self.alignment_bytes)
    }

    /// Bytes after `data_bytes` of data.
    pub fn trailer_bytes(&self, data_bytes: usize) -> usize {
        if self.data_digest && data_bytes > 0 {
            DIGEST_BYTES
        } else {
            0
        }
    }

    /// Appends all that comes before the data: header, its digest, padding. `fields` is what follows the common header.
    fn put(&self, kind: PduType, flags: u8, fields: &[u8], data_bytes: u32, out: &mut Vec<u8>) {
        let begin = out.len();
        let (mut flags, mut pdo) = (flags, 0);
        let mut head_bytes = self.header_bytes(kind);
        if self.header_digest {
            flags |= HDGSTF;
        }
        if data_bytes > 0 {
            head_bytes = self.data_offset(kind);
            pdo = head_bytes as u8;
            if self.data_digest {
                flags |= DDGSTF;
            }
        }
        let after = self.trailer_bytes(data_bytes as usize);
        let plen = data_bytes.saturating_add((head_bytes + after) as u32);
        out.extend_from_slice(&[kind as u8, flags, kind.hlen() as u8, pdo]);
        out.extend_from_slice(&plen.to_le_bytes());
        out.extend_from_slice(fields);
        if self.header_digest {
            let field = digest(&out[begin..]);
            out.extend_from_slice(&field);
        }
        out.resize(begin + head_bytes, 0);
    }
}

/// Which digests an end wants or grants (DGST).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// Of headers.
    pub header: bool,
    /// Of data.
    pub data: bool,
}

impl Digests {
    fn parse(field: u8) -> Result<Digests, Fault> {
        if field & !3 != 0 {
            return Err(Fault::field(offset::DGST));
        }
        Ok(Digests {
            header: field & 1 != 0,
            data: field & 2 != 0,
        })
    }

    fn field(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// Initialize Connection Request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ICReq {
    /// HPDA: controller-to-host data begins at a multiple of (this + 1) x 4 bytes.
    pub hpda: u8,
    /// The digests that the host wants.
    pub digests: Digests,
    /// R2Ts that a controller may have outstanding for one command (MAXR2T is this less one).
    pub r2ts_max: u32,
}

/// Initialize Connection Response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ICResp {
    /// CPDA: host-to-controller data begins at a multiple of (this + 1) x 4 bytes.
    pub cpda: u8,
    /// The digests that are used.
    pub digests: Digests,
    /// MAXH2CDATA: the most data of one H2CData PDU, in bytes.
    pub h2c_data_bytes_max: u32,
}

/// What both ends know once the connection is initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// PDUs from host to controller.
    pub h2c: Framing,
    /// PDUs from controller to host.
    pub c2h: Framing,
    /// R2Ts that may be outstanding for one command.
    pub r2ts_max: u32,
    /// The most data of one H2CData PDU, in bytes.
    pub h2c_data_bytes_max: u32,
}

impl Agreed {
    /// By this request and this response.
    ///
    /// # Errors
    /// When the response grants a digest that was not wanted.
    pub fn new(request: &ICReq, response: &ICResp) -> Result<Agreed, Fault> {
        let (wanted, granted) = (request.digests, response.digests);
        if granted.header && !wanted.header || granted.data && !wanted.data {
            return Err(Fault::field(offset::DGST));
        }
        Ok(Agreed {
            h2c: Framing::new(granted, response.cpda),
            c2h: Framing::new(granted, request.hpda),
            r2ts_max: request.r2ts_max,
            h2c_data_bytes_max: response.h2c_data_bytes_max,
        })
    }
}

impl ICReq {
    pub(super) fn parse(bytes: &[u8; IC_BYTES]) -> Result<ICReq, Fault> {
        let (hpda, digests, maximum) = ic_fields(bytes)?;
        Ok(ICReq {
            hpda,
            digests,
            r2ts_max: maximum.saturating_add(1),
        })
    }

    /// As sent.
    pub fn encode(&self) -> [u8; IC_BYTES] {
        let maximum = self.r2ts_max.saturating_sub(1);
        ic_encode(PduType::ICReq, self.hpda, self.digests, maximum)
    }
}

impl ICResp {
    pub(super) fn parse(bytes: &[u8; IC_BYTES]) -> Result<ICResp, Fault> {
        let (cpda, digests, maximum) = ic_fields(bytes)?;
        if maximum < H2C_DATA_BYTES_MIN || !maximum.is_multiple_of(4) {
            return Err(Fault::field(offset::MAXIMUM));
        }
        Ok(ICResp {
            cpda,
            digests,
            h2c_data_bytes_max: maximum,
        })
    }

    /// As sent.
    pub fn encode(&self) -> [u8; IC_BYTES] {
        let maximum = self.h2c_data_bytes_max;
        ic_encode(PduType::ICResp, self.cpda, self.digests, maximum)
    }
}

fn ic_fields(bytes: &[u8; IC_BYTES]) -> Result<(u8, Digests, u32), Fault> {
    if u16_at(bytes, offset::PFV) != 0 {
        return Err(Fault::unsupported(offset::PFV));
    }
    let pda = bytes[offset::PDA as usize];
    if pda > PDA_MAX {
        return Err(Fault::field(offset::PDA));
    }
    let digests = Digests::parse(bytes[offset::DGST as usize])?;
    Ok((pda, digests, u32_at(bytes, offset::MAXIMUM)))
}

fn ic_encode(kind: PduType, pda: u8, digests: Digests, maximum: u32) -> [u8; IC_BYTES] {
    let mut bytes = [0; IC_BYTES];
    bytes[0] = kind as u8;
    bytes[2] = IC_BYTES as u8;
    bytes[4..8].copy_from_slice(&(IC_BYTES as u32).to_le_bytes());
    bytes[10] = pda;
    bytes[11] = digests.field();
    bytes[12..16].copy_from_slice(&maximum.to_le_bytes());
    bytes
}

/// Appends the head of a CapsuleCmd; `data_bytes` of in-capsule data and their digest are to follow.
pub fn capsule_cmd(framing: &Framing, sqe: &[u8; SQE_BYTES], data_bytes: u32, out: &mut Vec<u8>) {
    framing.put(PduType::CapsuleCmd, 0, sqe, data_bytes, out);
}

/// Appends a CapsuleResp.
pub fn capsule_resp(framing: &Framing, cqe: &[u8; CQE_BYTES], out: &mut Vec<u8>) {
    framing.put(PduType::CapsuleResp, 0, cqe, 0, out);
}

/// The header of H2CData and C2HData.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// CCCID: the command that the data belongs to.
    pub cccid: u16,
    /// TTAG: the R2T that asked for it; 0 in C2HData.
    pub ttag: u16,
    /// DATAO: where it belongs, from the begin of the command's data, in bytes.
    pub offset: u32,
    /// DATAL: how much it is, in bytes.
    pub bytes: u32,
    /// LAST_PDU.
    pub last: bool,
    /// SUCCESS, of C2HData.
    pub success: bool,
}

/// R2T: the controller asks for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct R2T {
    /// CCCID: the command whose data it wants.
    pub cccid: u16,
    /// TTAG: its name for the transfer.
    pub ttag: u16,
    /// R2TO: from where on, in bytes.
    pub offset: u32,
    /// R2TL: how much, in bytes.
    pub bytes: u32,
}

impl Data {
    pub(super) fn parse(kind: PduType, header: &[u8; DATA_HLEN]) -> Data {
        let [cccid, ttag] = [u16_at(header, offset::CCCID), u16_at(header, offset::TTAG)];
        Data {
            cccid,
            ttag: if kind == PduType::H2CData { ttag } else { 0 },
            offset: u32_at(header, offset::DATAO),
            bytes: u32_at(header, offset::DATAL),
            last: header[1] & LAST_PDU != 0,
            success: header[1] & SUCCESS != 0,
        }
    }

    /// Appends the head; the data and its digest are to follow. `kind` is [`PduType::H2CData`] or [`PduType::C2HData`].
    pub fn encode(&self, kind: PduType, framing: &Framing, out: &mut Vec<u8>) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.last, LAST_PDU) | flag(self.success, SUCCESS);
        let fields = transfer_fields(self.cccid, self.ttag, self.offset, self.bytes);
        framing.put(kind, flags, &fields, self.bytes, out);
    }
}

impl R2T {
    pub(super) fn parse(header: &[u8; DATA_HLEN]) -> R2T {
        R2T {
            cccid: u16_at(header, offset::CCCID),
            ttag: u16_at(header, offset::TTAG),
            offset: u32_at(header, offset::DATAO),
            bytes: u32_at(header, offset::DATAL),
        }
    }

    /// Appends it.
    pub fn encode(&self, framing: &Framing, out: &mut Vec<u8>) {
        let fields = transfer_fields(self.cccid, self.ttag, self.offset, self.bytes);
        framing.put(PduType::R2T, 0, &fields, 0, out);
    }
}

fn transfer_fields(cccid: u16, ttag: u16, offset: u32, bytes: u32) -> [u8; DATA_HLEN - 8] {
    let mut fields = [0; DATA_HLEN - 8];
    fields[0..2].copy_from_slice(&cccid.to_le_bytes());
    fields[2..4].copy_from_slice(&ttag.to_le_bytes());
    fields[4..8].copy_from_slice(&offset.to_le_bytes());
    fields[8..12].copy_from_slice(&bytes.to_le_bytes());
    fields
}

fn u16_at(header: &[u8], at: u32) -> u16 {
    let at = at as usize;
    u16::from_le_bytes([header[at], header[at + 1]])
}

fn u32_at(header: &[u8], at: u32) -> u32 {
    let at = at as usize;
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
