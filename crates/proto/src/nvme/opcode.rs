//! Opcodes. The lowest two bits say which way data goes: 00 none, 01 to the controller, 10 to the host, 11 both.

/// Which way a command's data goes, as its opcode says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// Host to controller.
    ToController,
    /// Controller to host.
    ToHost,
    /// Both; Fabrics have no such transfers.
    Both,
}

/// The direction of an opcode; for [`FABRICS`] pass the fabrics command type.
pub fn direction(opcode: u8) -> Direction {
    match opcode & 3 {
        0 => Direction::None,
        1 => Direction::ToController,
        2 => Direction::ToHost,
        _ => Direction::Both,
    }
}

/// Fabrics commands, on every queue; the command type is in byte 4.
pub const FABRICS: u8 = 0x7f;

/// The admin queue's (Base 2.0, section 5).
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_IO_SQ: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_IO_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue.
    pub const DELETE_IO_CQ: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_IO_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Doorbell Buffer Config.
    pub const DOORBELL_BUFFER_CONFIG: u8 = 0x7c;
}

/// The NVM command set's (NVM Command Set 1.0, section 3).
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
}

/// The Key Value command set's (Key Value Command Set 1.0, section 3), and ours behind them.
pub mod kv {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Store.
    pub const STORE: u8 = 0x01;
    /// Retrieve.
    pub const RETRIEVE: u8 = 0x02;
    /// List.
    pub const LIST: u8 = 0x06;
    /// Delete.
    pub const DELETE: u8 = 0x10;
    /// Exist.
    pub const EXIST: u8 = 0x14;
    /// Vendor: a function run over a value, whose result takes the place of its arguments; not over Fabrics, whose transfers have one
    /// direction.
    pub const EXECUTE: u8 = 0x83;
    /// Vendor: the same, whose result is kept until it is fetched.
    pub const EXECUTE_SUBMIT: u8 = 0xc1;
    /// Vendor: fetches what was kept.
    pub const EXECUTE_FETCH: u8 = 0xc2;
    /// Vendor: a function run over a value of a short key, without arguments but a number.
    pub const EXECUTE_INLINE: u8 = 0xc6;
    /// Vendor: a verb with a key of up to 255 bytes as its payload.
    pub const EXTENDED_KEY: u8 = 0xc5;
    /// Vendor: part of a value to the controller.
    pub const STORE_PART: u8 = 0xc9;
    /// Vendor: part of a value to the host.
    pub const RETRIEVE_RANGE: u8 = 0xca;
}

/// Fabrics command types (Base 2.0, section 6).
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}
