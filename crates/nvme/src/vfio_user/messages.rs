//! What is done on the client's messages.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use forebay_io::passing::Passed;
use forebay_proto::vfio_user::reply::{
    self, Region, put_access, put_device_info, put_irq, put_region, put_unmapped, put_written,
};
use forebay_proto::vfio_user::{
    Access, Capabilities, DmaUnmap, FILES_MAX, Header, Kind, MAJOR, MINOR, PayloadAccess,
    REGION_BAR0, REGION_CONFIG, REGIONS, Request, Version, message, put_version,
};

use super::asking::Asks;
use super::bar::{BAR_BYTES, DOORBELLS};
use super::channel::{Channel, Message};
use super::device::{Device, Reset};
use super::errno::Errno;
use super::interrupts::Interrupts;
use super::memory::MAPS_MAX;
use super::pci::CONFIG_BYTES;
use super::remapping::{Remap, Remapping};

/// Answers that wait for memory to be mapped or released, or a reset to end; more requests wait in the socket then.
pub(super) const WAITING_MAX: usize = 64;

/// Messages that a client may leave in the socket, answers to it and [questions](super::asking): one that reads nothing is not listened
/// to. Below that it is, so that it never waits for us to read while we wait for it to.
const UNSENT_MAX: usize = 128;

/// The client's side of a device: its messages, and the answers that are still due.
pub(super) struct Messages {
    channel: Channel,
    asks: Asks,
    /// What was agreed on; nothing before that but `VERSION`.
    agreed: Option<Agreed>,
    remapping: Remapping,
    unmapping: Vec<Unmapping>,
    resetting: Vec<Header>,
    /// Where answers are written.
    out: Vec<u8>,
    /// Where reads are put.
    data: Vec<u8>,
}

struct Agreed {
    /// The client may map the doorbells.
    maps_doorbells: bool,
    /// It did, or at least it was told how.
    mapped: bool,
}

/// A range whose last use is awaited.
struct Unmapping {
    header: Header,
    unmap: DmaUnmap,
    names: Vec<u64>,
}

/// What became of a request.
enum Answer {
    /// Done; the payload is written.
    Now,
    /// Later.
    Waits,
}

impl Messages {
    pub(super) fn new(channel: Channel, asks: Asks) -> Messages {
        Messages {
            channel,
            asks,
            agreed: None,
            remapping: Remapping::default(),
            unmapping: Vec::new(),
            resetting: Vec::new(),
            out: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Whether it is agreed how to talk.
    pub(super) fn are_agreed(&self) -> bool {
        self.agreed.is_some()
    }

    /// Whether the client may write doorbells without a message.
    pub(super) fn are_doorbells_mapped(&self) -> bool {
        self.agreed.as_ref().is_some_and(|agreed| agreed.mapped)
    }

    /// Takes one message, or ends what one has begun, if there is any: ready with false at the end of the connection. An error ends it,
    /// too.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        device: &mut Device<'_>,
    ) -> Poll<io::Result<bool>> {
        while let Poll::Ready(name) = device.memory.poll_released(cx) {
            self.released(name)?;
        }
        if let Poll::Ready((header, mapped)) = self.remapping.poll_mapped(cx) {
            let kept = mapped.and_then(|mapped| device.memory.keep(mapped));
            device.find();
            self.answer(&header, kept, |_| {})?;
            while let Some((header, remap)) = self.remapping.next() {
                let mut out = Vec::new();
                let answer = self.remap(device, &header, remap, &mut out);
                self.end(device, &header, answer, &out)?;
            }
            return Poll::Ready(Ok(true));
        }
        if device.memory.any_far() {
            // A reset waits for nobody's answer.
            let cut = device.reset.is_some();
            self.asks.poll(cx, cut, &device.memory, &mut self.channel)?;
        }
        if let Poll::Ready(Err(error)) = self.channel.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        let waiting = self.remapping.len() + self.unmapping.len() + self.resetting.len();
        if waiting >= WAITING_MAX || self.channel.unsent() >= UNSENT_MAX {
            return Poll::Pending;
        }
        match std::task::ready!(self.channel.poll_receive(cx))? {
            Some(message) => {
                self.receive(device, message)?;
                Poll::Ready(Ok(true))
            }
            None => Poll::Ready(Ok(false)),
        }
    }

    /// A reset has ended.
    pub(super) fn reset_done(&mut self) -> io::Result<()> {
        for header in std::mem::take(&mut self.resetting) {
            self.answer(&header, Ok(()), |_| {})?;
        }
        Ok(())
    }

    fn released(&mut self, name: u64) -> io::Result<()> {
        for unmapping in &mut self.unmapping {
            unmapping.names.retain(|&waits| waits != name);
        }
        let (done, waits) = std::mem::take(&mut self.unmapping)
            .into_iter()
            .partition(|unmapping| unmapping.names.is_empty());
        self.unmapping = waits;
        let done: Vec<Unmapping> = done;
        for Unmapping { header, unmap, .. } in done {
            self.answer(&header, Ok(()), |out| put_unmapped(out, &unmap))?;
        }
        Ok(())
    }

    fn receive(&mut self, device: &mut Device<'_>, message: Message) -> io::Result<()> {
        let Message {
            header,
            payload,
            files,
        } = message;
        if !matches!(header.kind, Kind::Command { .. }) {
            return self.asks.answered(&header, payload);
        }
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        let request = match header.command() {
            Some(command) => Request::parse(command, &payload).map_err(Errno::from),
            None => Err(Errno::UNSUPPORTED),
        };
        let answer = match request {
            Ok(request) => self.serve(device, &header, &request, files, &mut out),
            Err(errno) => Err(errno),
        };
        let sent = self.end(device, &header, answer, &out);
        self.out = out;
        self.channel.recycle(payload);
        // Without an agreement there is nothing to talk about.
        match self.agreed {
            Some(_) => sent,
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn serve(
        &mut self,
        device: &mut Device<'_>,
        header: &Header,
        request: &Request<'_>,
        mut files: VecDeque<Passed>,
        out: &mut Vec<u8>,
    ) -> Result<Answer, Errno> {
        if self.agreed.is_some() == matches!(request, Request::Version(_)) {
            return Err(Errno::INVALID);
        }
        match request {
            Request::Version(version) => self.agree(version, out)?,
            Request::DmaMap(map) => {
                let file = files.pop_front();
                if !files.is_empty() {
                    return Err(Errno::INVALID);
                }
                return self.enter(device, header, Remap::Map(*map, file), out);
            }
            Request::DmaUnmap(unmap) => {
                return self.enter(device, header, Remap::Unmap(*unmap), out);
            }
            Request::DeviceInfo => put_device_info(out),
            Request::RegionInfo { room, index } => put_region(out, &self.region(*index)?, *room),
            Request::IrqInfo { index } => put_irq(out, *index, Interrupts::count(*index)?),
            Request::SetIrqs(set) => device.interrupts.set(set, files)?,
            Request::RegionRead(access) => {
                self.read(device, access)?;
                put_access(out, *access);
                out.extend_from_slice(&self.data);
            }
            Request::RegionWrite(write) => {
                self.write(device, write)?;
                put_access(out, write.access);
            }
            Request::RegionWriteMulti(writes) => {
                for write in writes.iter() {
                    self.write(device, &write)?;
                }
                put_written(out, writes.count());
            }
            Request::DeviceReset => {
                device.begin_reset(Reset::Function);
                self.resetting.push(*header);
                return Ok(Answer::Waits);
            }
        }
        Ok(Answer::Now)
    }

    fn enter(
        &mut self,
        device: &mut Device<'_>,
        header: &Header,
        remap: Remap,
        out: &mut Vec<u8>,
    ) -> Result<Answer, Errno> {
        match self.remapping.enter(header, remap)? {
            Some(remap) => self.remap(device, header, remap, out),
            None => Ok(Answer::Waits),
        }
    }

    /// Maps or unmaps memory: it is its turn.
    fn remap(
        &mut self,
        device: &mut Device<'_>,
        header: &Header,
        remap: Remap,
        out: &mut Vec<u8>,
    ) -> Result<Answer, Errno> {
        match remap {
            Remap::Map(map, None) => device.memory.keep_far(&map)?,
            Remap::Map(map, Some(file)) if file.is_memory() => {
                let mapped = device.memory.offer(&map)?.map(file)?;
                device.memory.keep(mapped)?;
            }
            // Somebody may serve that file, who might never answer.
            Remap::Map(map, Some(file)) => {
                let turns = device.memory.turns();
                let mapped = device.memory.offer(&map)?.map_apart(file, turns);
                self.remapping.begin(header, &map, mapped);
                return Ok(Answer::Waits);
            }
            Remap::Unmap(unmap) => return self.unmap(device, header, unmap, out),
        }
        device.find();
        Ok(Answer::Now)
    }

    fn unmap(
        &mut self,
        device: &mut Device<'_>,
        header: &Header,
        unmap: DmaUnmap,
        out: &mut Vec<u8>,
    ) -> Result<Answer, Errno> {
        let unmapped = device.memory.unmap(&unmap)?;
        device.let_go(&unmapped);
        self.asks.let_go(&unmapped);
        // Every one of them is released, soon or at once, and then the answer follows.
        if !unmapped.names.is_empty() {
            self.unmapping.push(Unmapping {
                header: *header,
                unmap,
                names: unmapped.names,
            });
            return Ok(Answer::Waits);
        }
        put_unmapped(out, &unmap);
        Ok(Answer::Now)
    }

    fn agree(&mut self, version: &Version, out: &mut Vec<u8>) -> Result<(), Errno> {
        if version.major != MAJOR {
            return Err(Errno::INVALID);
        }
        let said = version.capabilities.unwrap_or_default();
        self.asks.agree(said.max_data_xfer_size);
        let write_multiple = said.write_multiple;
        self.agreed = Some(Agreed {
            // Who tells nothing of itself is a program that polls, and writes doorbells in memory or not at all. A virtual machine
            // tells us much, and would map whatever it may: then its driver's doorbells would come unheard while we sleep.
            maps_doorbells: version.capabilities.is_none(),
            mapped: false,
        });
        put_version(
            out,
            &Version {
                major: MAJOR,
                minor: MINOR.min(version.minor),
                capabilities: Some(Capabilities {
                    max_msg_fds: FILES_MAX as u32,
                    max_dma_maps: MAPS_MAX as u64,
                    write_multiple,
                    ..Capabilities::default()
                }),
            },
        );
        Ok(())
    }

    fn region(&self, index: u32) -> Result<Region, Errno> {
        let maps = self
            .agreed
            .as_ref()
            .is_some_and(|agreed| agreed.maps_doorbells);
        let (size, mappable) = match index {
            REGION_BAR0 => (BAR_BYTES, maps.then_some((DOORBELLS, 0))),
            REGION_CONFIG => (CONFIG_BYTES as u64, None),
            REGIONS.. => return Err(Errno::INVALID),
            _ => (0, None),
        };
        Ok(Region {
            index,
            size,
            mappable,
        })
    }

    fn read(&mut self, device: &Device<'_>, access: &Access) -> Result<(), Errno> {
        let end = access.offset.checked_add(u64::from(access.count));
        let size = self.region(access.region)?.size;
        if access.count == 0 || end.is_none_or(|end| end > size) {
            return Err(Errno::INVALID);
        }
        self.data.clear();
        self.data.resize(access.count as usize, 0);
        if access.region == REGION_CONFIG {
            device.config.read(access.offset, &mut self.data);
            return Ok(());
        }
        // Registers can be read in any pieces; doorbells and what follows read as zero.
        for (at, byte) in (access.offset..DOORBELLS.offset).zip(&mut self.data) {
            let dword = device.controller.read_property(at as u32 & !3, 4);
            *byte = dword.unwrap_or(0).to_le_bytes()[at as usize & 3];
        }
        Ok(())
    }

    fn write(&mut self, device: &mut Device<'_>, write: &PayloadAccess<'_>) -> Result<(), Errno> {
        let PayloadAccess { access, data } = write;
        let end = access.offset.checked_add(data.len() as u64);
        let size = self.region(access.region)?.size;
        if data.is_empty() || end.is_none_or(|end| end > size) {
            return Err(Errno::INVALID);
        }
        if access.region == REGION_CONFIG {
            if device.config.write(access.offset, data) == Some(true) {
                device.begin_reset(Reset::Function);
            }
            return Ok(());
        }
        let beyond = DOORBELLS.offset + DOORBELLS.size;
        match (access.offset, *data) {
            (at, &[a, b, c, d])
                if at.is_multiple_of(4) && at >= DOORBELLS.offset && at < beyond =>
            {
                let value = u32::from_le_bytes([a, b, c, d]);
                device
                    .doorbells
                    .ring((at - DOORBELLS.offset) as usize, value);
            }
            (at, &[a, b, c, d]) if at.is_multiple_of(4) && at < DOORBELLS.offset => {
                let value = u32::from_le_bytes([a, b, c, d]);
                set_property(device, at, 4, value.into());
            }
            (at, &[a, b, c, d, e, f, g, h]) if at.is_multiple_of(8) && at < DOORBELLS.offset => {
                let value = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                set_property(device, at, 8, value);
            }
            (at, _) if at >= beyond => {}
            _ => return Err(Errno::INVALID),
        }
        Ok(())
    }

    /// Answers a request, unless it waits.
    fn end(
        &mut self,
        device: &Device<'_>,
        header: &Header,
        answer: Result<Answer, Errno>,
        payload: &[u8],
    ) -> io::Result<()> {
        match answer {
            Ok(Answer::Waits) => Ok(()),
            Ok(Answer::Now) => self.answer_with(device, header, payload),
            Err(errno) => self.answer(header, Err(errno), |_| {}),
        }
    }

    /// Answers a request whose payload is written; a region that can be mapped goes with its file.
    fn answer_with(
        &mut self,
        device: &Device<'_>,
        header: &Header,
        payload: &[u8],
    ) -> io::Result<()> {
        let tells_area = header.command()
            == Some(forebay_proto::vfio_user::Command::DeviceGetRegionInfo)
            && matches!(reply::parse_region(payload), Ok((region, _)) if region.mappable.is_some());
        let backing = device.doorbells.backing().filter(|_| tells_area);
        if let Some(agreed) = self.agreed.as_mut().filter(|_| tells_area) {
            agreed.mapped = true;
        }
        let mut whole = std::mem::take(&mut self.data);
        whole.clear();
        message(
            &mut whole,
            header.id,
            header.number,
            Kind::Reply { error: None },
            |out| {
                out.extend_from_slice(payload);
            },
        );
        let file = backing.map(|backing| backing.file);
        let sent = match header.kind {
            Kind::Command { no_reply: true } => Ok(()),
            _ => self.channel.send(&whole, file.as_slice()),
        };
        self.data = whole;
        sent
    }

    fn answer(
        &mut self,
        header: &Header,
        outcome: Result<(), Errno>,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        if matches!(header.kind, Kind::Command { no_reply: true }) {
            return Ok(());
        }
        let error = outcome.err().map(|Errno(number)| number);
        let mut whole = Vec::new();
        message(
            &mut whole,
            header.id,
            header.number,
            Kind::Reply { error },
            payload,
        );
        self.channel.send(&whole, &[])
    }
}

fn set_property(device: &mut Device<'_>, at: u64, size: u8, value: u64) {
    // A register that does not exist, or cannot be written so, is left as it is.
    if let Ok(effect) = device.controller.write_property(at as u32, size, value) {
        device.apply(effect);
    }
}
