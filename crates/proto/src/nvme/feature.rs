//! Features (Base 2.0, section 5.27.1; Key Value Command Set 1.0, section 4.1.4).

/// Which feature (FID).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR_CONFIGURATION: u8 = 0x09;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY_NORMAL: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// I/O Command Set Profile.
    pub const IO_COMMAND_SET_PROFILE: u8 = 0x19;
    /// Key Value Configuration.
    pub const KEY_VALUE_CONFIGURATION: u8 = 0x20;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// Asynchronous Event Configuration, and OAES: Namespace Attribute Notices.
pub const EVENT_NAMESPACES: u32 = 1 << 8;
/// Likewise: Asymmetric Namespace Access Change Notices.
pub const EVENT_ANA: u32 = 1 << 11;
/// Likewise: Discovery Log Page Change Notifications.
pub const EVENT_DISCOVERY: u32 = 1 << 31;

/// Number of Queues as CDW11 of Set Features asks for them and DW0 grants them, both zero's based: submission queues below,
/// completion queues above.
pub fn queues(submission: u16, completion: u16) -> u32 {
    u32::from(submission.saturating_sub(1)) | u32::from(completion.saturating_sub(1)) << 16
}
