//! The PCI configuration space (PCI Express Base 7.5): an endpoint of class "NVM Express" with power management, MSI-X and PCI Express
//! capabilities. There is no interrupt pin.

use forebay_proto::nvme::identify::PCI_VENDOR;

use super::VECTORS;
use super::bar::{BAR_BYTES, MSIX_PENDING_AT, MSIX_TABLE_AT};

/// Its length: that of a PCI Express function.
pub(super) const CONFIG_BYTES: usize = 4096;

/// The name beside it that vfio-user's other NVMe controllers (SPDK's) go by, which initiators know.
const DEVICE: u16 = 0x0001;
/// Mass storage, non-volatile memory, NVM Express.
const CLASS: [u8; 3] = [0x02, 0x08, 0x01];

const COMMAND_AT: usize = 0x04;
const STATUS_AT: usize = 0x06;
const BAR0_AT: usize = 0x10;
const SUBSYSTEM_AT: usize = 0x2c;
const CAPABILITIES_AT: usize = 0x34;
const INTERRUPT_LINE_AT: usize = 0x3c;
const POWER_AT: usize = 0x40;
const MSIX_AT: usize = 0x50;
const EXPRESS_AT: usize = 0x60;
const DEVICE_CONTROL_AT: usize = EXPRESS_AT + 8;

const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR_64_BIT: u32 = 4;
const FUNCTION_LEVEL_RESET: u32 = 1 << 28;
/// Initiate Function Level Reset, in the second byte of Device Control.
const RESET_NOW: u8 = 0x80;

/// What the client reads and writes of it.
#[derive(Debug)]
pub(super) struct Config {
    bytes: [u8; CONFIG_BYTES],
    /// Bits that writing changes.
    writable: [u8; CONFIG_BYTES],
}

impl Config {
    pub(super) fn new() -> Config {
        let mut config = Config {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
        };
        config.put16(0x00, PCI_VENDOR);
        config.put16(0x02, DEVICE);
        config.put16(STATUS_AT, STATUS_CAPABILITIES);
        config.bytes[0x09..0x0c].copy_from_slice(&CLASS);
        config.put32(BAR0_AT, BAR_64_BIT);
        config.put16(SUBSYSTEM_AT, PCI_VENDOR);
        config.put16(SUBSYSTEM_AT + 2, DEVICE);
        config.bytes[CAPABILITIES_AT] = POWER_AT as u8;

        // Power management, version 3: D0 and D3hot, no reset between them.
        config.put16(POWER_AT, 0x01 | (MSIX_AT as u16) << 8);
        config.put16(POWER_AT + 2, 3);
        config.put16(POWER_AT + 4, 1 << 3);

        config.put16(MSIX_AT, 0x11 | (EXPRESS_AT as u16) << 8);
        config.put16(MSIX_AT + 2, VECTORS - 1);
        config.put32(MSIX_AT + 4, MSIX_TABLE_AT);
        config.put32(MSIX_AT + 8, MSIX_PENDING_AT);

        // PCI Express, version 2: an endpoint of one lane at 2.5 GT/s.
        config.put16(EXPRESS_AT, 0x10);
        config.put16(EXPRESS_AT + 2, 2);
        config.put32(EXPRESS_AT + 4, 1 << 15 | FUNCTION_LEVEL_RESET);
        config.put32(EXPRESS_AT + 12, 0x11);
        config.put16(EXPRESS_AT + 18, 0x11);

        // Memory space, bus master, parity, SERR, interrupt disable.
        config.allow16(COMMAND_AT, 0x0546);
        config.allow16(0x0c, 0x00ff);
        let address = !(BAR_BYTES as u32 - 1);
        config.allow16(BAR0_AT, address as u16);
        config.allow16(BAR0_AT + 2, (address >> 16) as u16);
        config.allow16(BAR0_AT + 4, 0xffff);
        config.allow16(BAR0_AT + 6, 0xffff);
        config.allow16(INTERRUPT_LINE_AT, 0x00ff);
        config.allow16(POWER_AT + 4, 3);
        config.allow16(MSIX_AT + 2, 0xc000);
        config.allow16(DEVICE_CONTROL_AT, 0x7fff);
        config
    }

    /// Fills `into` from `offset`; false when that is not all inside.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = range(offset, into.len()).and_then(|range| self.bytes.get(range)) else {
            return false;
        };
        into.copy_from_slice(from);
        true
    }

    /// Writes `data` at `offset`, as far as it can be written; `None` when that is not all inside. The answer is whether the
    /// function is to be reset.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Option<bool> {
        let range = range(offset, data.len()).filter(|range| range.end <= CONFIG_BYTES)?;
        let mut reset = false;
        for (at, byte) in range.zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            reset |= at == DEVICE_CONTROL_AT + 1 && byte & RESET_NOW != 0;
        }
        Some(reset)
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn allow16(&mut self, at: usize, bits: u16) {
        self.writable[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

fn range(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(config: &Config, at: u64) -> u32 {
        let mut bytes = [0; 4];
        assert!(config.read(at, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    /// As a system finds the capabilities of a function.
    #[test]
    fn the_capabilities_form_a_list() {
        let config = Config::new();
        assert_eq!(read32(&config, 8) >> 8, 0x01_0802);
        let mut at = read32(&config, 0x34) as u8;
        let mut found = Vec::new();
        while at != 0 {
            let head = read32(&config, at.into());
            found.push(head as u8);
            at = (head >> 8) as u8;
        }
        assert_eq!(found, [0x01, 0x11, 0x10]);
    }

    /// As a system finds out how large a BAR is.
    #[test]
    fn the_bar_tells_its_size() {
        let mut config = Config::new();
        assert_eq!(config.write(0x10, &[0xff; 8]), Some(false));
        let size = u64::from(read32(&config, 0x10)) | u64::from(read32(&config, 0x14)) << 32;
        assert_eq!(!(size & !0xf) + 1, BAR_BYTES);
        assert_eq!(size & 0xf, 4);
    }

    #[test]
    fn what_cannot_be_written_stays() {
        let mut config = Config::new();
        let before = config.bytes;
        assert_eq!(config.write(0, &[0xff; 4]), Some(false));
        assert_eq!(config.write(CONFIG_BYTES as u64 - 2, &[1, 2, 3]), None);
        assert_eq!(config.write(u64::MAX, &[1]), None);
        assert!(!config.read(4095, &mut [0; 2]) && !config.read(u64::MAX, &mut [0; 2]));
        assert_eq!(config.bytes, before);
        assert_eq!(config.write(4, &[0x04, 0x04]), Some(false));
        assert_eq!(read32(&config, 4) as u16, 0x0404);
        assert_eq!(
            config.write(DEVICE_CONTROL_AT as u64, &[0, 0x80]),
            Some(true)
        );
        assert_eq!(read32(&config, DEVICE_CONTROL_AT as u64) as u16, 0);
    }
}
