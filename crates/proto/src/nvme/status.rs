//! Status codes, in the specifications' words.

use std::fmt;

/// How a command ended: SCT in bits 10:8, SC in bits 7:0, and the bits More and Do Not Retry as in a completion.
///
/// The named constants carry no Do Not Retry; what controllers here answer does where trying again cannot help
/// ([`answered`](Status::answered)). Compare by [`code`](Status::code).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

const CODE: u16 = 0x07ff;
const DNR: u16 = 1 << 14;

macro_rules! statuses {
    ($($(#[$attribute:meta])* $name:ident = $code:literal, $permanent:literal, $words:literal;)*) => {
        impl Status {
            $(#[doc = $words] #[doc = "."] $(#[$attribute])* pub const $name: Status = Status($code);)*

            fn words(self) -> Option<&'static str> {
                match self.0 & CODE {
                    $($code => Some($words),)*
                    _ => None,
                }
            }

            fn is_permanent(self) -> bool {
                match self.0 & CODE {
                    $($code => $permanent,)*
                    _ => false,
                }
            }
        }
    };
}

// Code (SCT then SC), whether trying again is pointless, words.
statuses! {
    SUCCESS = 0x000, false, "Successful Completion";
    INVALID_OPCODE = 0x001, true, "Invalid Command Opcode";
    INVALID_FIELD = 0x002, true, "Invalid Field in Command";
    CID_CONFLICT = 0x003, true, "Command ID Conflict";
    DATA_TRANSFER_ERROR = 0x004, false, "Data Transfer Error";
    INTERNAL_ERROR = 0x006, false, "Internal Error";
    ABORT_REQUESTED = 0x007, false, "Command Abort Requested";
    ABORTED_SQ_DELETION = 0x008, false, "Command Aborted due to SQ Deletion";
    ABORTED_FAILED_FUSED = 0x009, false, "Command Aborted due to Failed Fused Command";
    ABORTED_MISSING_FUSED = 0x00a, true, "Command Aborted due to Missing Fused Command";
    INVALID_NAMESPACE_OR_FORMAT = 0x00b, true, "Invalid Namespace or Format";
    COMMAND_SEQUENCE_ERROR = 0x00c, true, "Command Sequence Error";
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0x00d, true, "Invalid SGL Segment Descriptor";
    INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0x00e, true, "Invalid Number of SGL Descriptors";
    DATA_SGL_LENGTH_INVALID = 0x00f, true, "Data SGL Length Invalid";
    METADATA_SGL_LENGTH_INVALID = 0x010, true, "Metadata SGL Length Invalid";
    SGL_DESCRIPTOR_TYPE_INVALID = 0x011, true, "SGL Descriptor Type Invalid";
    PRP_OFFSET_INVALID = 0x013, true, "PRP Offset Invalid";
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, true, "Atomic Write Unit Exceeded";
    SGL_OFFSET_INVALID = 0x016, true, "SGL Offset Invalid";
    HOST_IDENTIFIER_INCONSISTENT_FORMAT = 0x018, true, "Host Identifier Inconsistent Format";
    KEEP_ALIVE_TIMER_EXPIRED = 0x019, false, "Keep Alive Timer Expired";
    KEEP_ALIVE_TIMEOUT_INVALID = 0x01a, true, "Keep Alive Timeout Invalid";
    NAMESPACE_WRITE_PROTECTED = 0x020, true, "Namespace is Write Protected";
    TRANSIENT_TRANSPORT_ERROR = 0x022, false, "Transient Transport Error";
    LBA_OUT_OF_RANGE = 0x080, true, "LBA Out of Range";
    CAPACITY_EXCEEDED = 0x081, false, "Capacity Exceeded";
    NAMESPACE_NOT_READY = 0x082, false, "Namespace Not Ready";
    RESERVATION_CONFLICT = 0x083, true, "Reservation Conflict";
    INVALID_VALUE_SIZE = 0x085, true, "Invalid Value Size";
    INVALID_KEY_SIZE = 0x086, true, "Invalid Key Size";
    KV_KEY_DOES_NOT_EXIST = 0x087, true, "KV Key Does Not Exist";
    UNRECOVERED_ERROR = 0x088, false, "Unrecovered Error";
    KEY_EXISTS = 0x089, true, "Key Exists";
    COMPLETION_QUEUE_INVALID = 0x100, true, "Completion Queue Invalid";
    INVALID_QUEUE_IDENTIFIER = 0x101, true, "Invalid Queue Identifier";
    INVALID_QUEUE_SIZE = 0x102, true, "Invalid Queue Size";
    ABORT_COMMAND_LIMIT_EXCEEDED = 0x103, false, "Abort Command Limit Exceeded";
    ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED = 0x105, true, "Asynchronous Event Request Limit Exceeded";
    INVALID_INTERRUPT_VECTOR = 0x108, true, "Invalid Interrupt Vector";
    INVALID_LOG_PAGE = 0x109, true, "Invalid Log Page";
    INVALID_QUEUE_DELETION = 0x10c, true, "Invalid Queue Deletion";
    FEATURE_IDENTIFIER_NOT_SAVEABLE = 0x10d, true, "Feature Identifier Not Saveable";
    FEATURE_NOT_CHANGEABLE = 0x10e, true, "Feature Not Changeable";
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, true, "Feature Not Namespace Specific";
    INVALID_CONTROLLER_IDENTIFIER = 0x11f, true, "Invalid Controller Identifier";
    IO_COMMAND_SET_NOT_SUPPORTED = 0x129, true, "I/O Command Set Not Supported";
    IO_COMMAND_SET_COMBINATION_REJECTED = 0x12b, true, "I/O Command Set Combination Rejected";
    CONNECT_INCOMPATIBLE_FORMAT = 0x180, true, "Connect Incompatible Format";
    CONNECT_CONTROLLER_BUSY = 0x181, false, "Connect Controller Busy";
    CONNECT_INVALID_PARAMETERS = 0x182, true, "Connect Invalid Parameters";
    CONNECT_RESTART_DISCOVERY = 0x183, false, "Connect Restart Discovery";
    CONNECT_INVALID_HOST = 0x184, true, "Connect Invalid Host";
    DISCOVERY_RESTART = 0x190, false, "Discovery Restart";
    AUTHENTICATION_REQUIRED = 0x191, true, "Authentication Required";
    WRITE_FAULT = 0x280, false, "Write Fault";
    UNRECOVERED_READ_ERROR = 0x281, false, "Unrecovered Read Error";
    COMPARE_FAILURE = 0x285, true, "Compare Failure";
    INTERNAL_PATH_ERROR = 0x300, false, "Internal Path Error";
    ASYMMETRIC_ACCESS_PERSISTENT_LOSS = 0x301, true, "Asymmetric Access Persistent Loss";
    ASYMMETRIC_ACCESS_INACCESSIBLE = 0x302, false, "Asymmetric Access Inaccessible";
    ASYMMETRIC_ACCESS_TRANSITION = 0x303, false, "Asymmetric Access Transition";
    /// Vendor specific: the controller does not know whether the command took place.
    OUTCOME_UNKNOWN = 0x7c0, false, "Outcome Unknown";
    /// As the KV codes are called by controllers that send them as command specific ones.
    KV_KEY_DOES_NOT_EXIST_SPECIFIC = 0x187, true, "KV Key Does Not Exist (command specific)";
    /// See above.
    KEY_EXISTS_SPECIFIC = 0x189, true, "Key Exists (command specific)";
}

impl Status {
    /// From a status field without its phase tag, as a completion has it.
    pub fn from_wire(field: u16) -> Status {
        Status(field & 0x7fff)
    }

    /// The status field without its phase tag.
    pub fn wire(self) -> u16 {
        self.0
    }

    /// The same without the bits Command Retry Delay, More and Do Not Retry.
    pub fn code(self) -> Status {
        Status(self.0 & CODE)
    }

    /// Status Code Type: 0 generic, 1 command specific, 2 media, 3 path related, 7 vendor specific.
    pub fn code_type(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Whether the command did what it should.
    pub fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// Whether the same command would fail again.
    pub fn do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// The same saying that the same command would fail again.
    pub fn with_do_not_retry(self) -> Status {
        Status(self.0 | DNR)
    }

    /// As controllers here answer it: with Do Not Retry where trying again is pointless.
    pub fn answered(self) -> Status {
        match self.is_permanent() {
            true => self.with_do_not_retry(),
            false => self,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => f.write_str(words)?,
            None => f.write_str("Unknown Status")?,
        }
        write!(f, " ({:x}h/{:02x}h)", self.code_type(), self.0 & 0xff)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        if self.do_not_retry() {
            f.write_str(", do not retry")?;
        }
        Ok(())
    }
}
