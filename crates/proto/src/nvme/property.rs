//! Controller properties: the registers of a PCI device, by Property Get and Set over Fabrics (Base 2.0, section 3.1.3).

/// Where properties are.
pub mod offset {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1c;
    /// Admin Queue Attributes.
    pub const AQA: u32 = 0x24;
    /// Admin Submission Queue Base Address, 8 bytes.
    pub const ASQ: u32 = 0x28;
    /// Admin Completion Queue Base Address, 8 bytes.
    pub const ACQ: u32 = 0x30;
    /// The first doorbell.
    pub const DOORBELLS: u32 = 0x1000;
}

/// CAP.CSS: the NVM command set.
pub const CAP_CSS_NVM: u64 = 1 << 37;
/// CAP.CSS: one or more I/O command sets, chosen with CC.CSS = 110b.
pub const CAP_CSS_IOCS: u64 = 1 << 43;

/// Controller Capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// What controllers here have, with queues of at most `entries` (2 to 65536) entries: queues contiguous, ready within 10 s, NVM
    /// and further command sets, pages of 4096 bytes, doorbells 4 bytes apart.
    pub fn new(entries: u32) -> Capabilities {
        const CQR: u64 = 1 << 16;
        const TO_500MS: u64 = 20;
        let mqes = u64::from(entries.clamp(2, 65536) - 1);
        Capabilities(mqes | CQR | TO_500MS << 24 | CAP_CSS_NVM | CAP_CSS_IOCS)
    }

    /// The most entries of an I/O queue.
    pub fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// How long to wait for CSTS.RDY, in milliseconds.
    pub fn timeout_ms(self) -> u32 {
        (self.0 >> 24 & 0xff) as u32 * 500
    }

    /// Bytes from one doorbell to the next.
    pub fn doorbell_stride_bytes(self) -> u32 {
        4 << (self.0 >> 32 & 0xf)
    }

    /// Whether hosts may choose all supported I/O command sets.
    pub fn has_io_command_sets(self) -> bool {
        self.0 & CAP_CSS_IOCS != 0
    }
}

/// Controller Configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host here writes to enable a controller: all command sets, entries of 64 and 16 bytes.
    pub const ENABLE: Configuration = Configuration(0x0046_0061);

    /// EN.
    pub fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS: 0 NVM, 6 all supported, 7 admin only.
    pub fn command_sets(self) -> u32 {
        self.0 >> 4 & 7
    }

    /// MPS: pages of 2^(12 + MPS) bytes.
    pub fn page_size(self) -> u32 {
        self.0 >> 7 & 0xf
    }

    /// AMS: 0 round robin.
    pub fn arbitration(self) -> u32 {
        self.0 >> 11 & 7
    }

    /// SHN: 0 none, 1 normal, 2 abrupt shutdown.
    pub fn shutdown(self) -> u32 {
        self.0 >> 14 & 3
    }

    /// The same with SHN saying that the host will shut down normally.
    pub fn with_shutdown(self) -> Configuration {
        Configuration(self.0 & !(3 << 14) | 1 << 14)
    }

    /// IOSQES: submission entries of 2^n bytes.
    pub fn submission_entry_size(self) -> u32 {
        self.0 >> 16 & 0xf
    }

    /// IOCQES: completion entries of 2^n bytes.
    pub fn completion_entry_size(self) -> u32 {
        self.0 >> 20 & 0xf
    }
}

/// Controller Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// RDY.
    pub const READY: u32 = 1;
    /// CFS.
    pub const FATAL: u32 = 1 << 1;
    /// SHST: occurring.
    pub const SHUTDOWN_OCCURRING: u32 = 1 << 2;
    /// SHST: complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

    /// RDY.
    pub fn ready(self) -> bool {
        self.0 & ControllerStatus::READY != 0
    }

    /// CFS.
    pub fn fatal(self) -> bool {
        self.0 & ControllerStatus::FATAL != 0
    }

    /// SHST is not 00b.
    pub fn shuts_down(self) -> bool {
        self.0 >> 2 & 3 != 0
    }

    /// SHST = 10b.
    pub fn shutdown_complete(self) -> bool {
        self.0 >> 2 & 3 == 2
    }
}
