//! NVMe commands of any command set, through the kernel's own driver and its character devices, `/dev/ngXnY`
//! (linux/nvme_ioctl.h).
#![expect(
    unsafe_code,
    reason = "an ioctl hands the kernel the addresses of a command and of its data"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// `NVME_IOCTL_ID`: the namespace identifier.
const ID: libc::Ioctl = 0x4e40;
/// `NVME_IOCTL_IO64_CMD`: an I/O command whose completion has 64 bits.
const IO64_CMD: libc::Ioctl = 0xc050_4e48_u32 as libc::Ioctl;

/// `struct nvme_passthru_cmd64`.
#[repr(C)]
#[derive(Default)]
struct Passed {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    reserved_2: u32,
    result: u64,
}

/// The data of a command.
#[derive(Debug)]
pub enum Data<'a> {
    /// There is none.
    None,
    /// What the device reads.
    ToDevice(&'a [u8]),
    /// Where the device writes.
    FromDevice(&'a mut [u8]),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// The status field without its phase bit: 0 is success.
    pub status: u16,
    /// DW0 and DW1.
    pub result: u64,
}

/// A namespace of the kernel's.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    nsid: u32,
}

impl Namespace {
    /// Opens a device.
    ///
    /// # Errors
    /// Of the system; `ENOTTY` when it is no NVMe namespace.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // SAFETY: the request takes no argument; the descriptor is open.
        let nsid = unsafe { libc::ioctl(file.as_raw_fd(), ID) };
        match u32::try_from(nsid) {
            Ok(nsid) => Ok(Namespace { file, nsid }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Its identifier on its controller.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Executes a command, blocking: a submission queue entry, of which the kernel fills in the identifier and the data pointer
    /// itself, and this its namespace.
    ///
    /// # Errors
    /// `InvalidInput` when the data goes another way than the opcode says, or is too long; what the system says, such as
    /// `PermissionDenied` for a user who may not.
    pub fn execute(
        &self,
        entry: &[u8; 64],
        data: Data<'_>,
        timeout: Duration,
    ) -> io::Result<Completed> {
        let dword = |index: usize| {
            let at = index * 4;
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        let opcode = entry[0];
        let (addr, len) = match data {
            Data::None => (0, 0),
            // The kernel takes bit 0 for the direction: with it set it only reads the data.
            Data::ToDevice(data) if opcode & 1 == 1 => (data.as_ptr() as u64, data.len()),
            Data::FromDevice(data) if opcode & 1 == 0 => (data.as_mut_ptr() as u64, data.len()),
            Data::ToDevice(_) | Data::FromDevice(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        let mut passed = Passed {
            opcode,
            nsid: self.nsid,
            cdw2: dword(2),
            cdw3: dword(3),
            addr,
            data_len: u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?,
            cdw10: [10, 11, 12, 13, 14, 15].map(dword),
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            ..Passed::default()
        };
        // SAFETY: `passed` has the layout that this request asks for and lives until the call returns, as does the data, of
        // which the kernel uses `data_len` bytes from `addr`: it writes only where the caller gave memory to write to.
        let status = unsafe { libc::ioctl(self.file.as_raw_fd(), IO64_CMD, &raw mut passed) };
        match u16::try_from(status) {
            Ok(status) => Ok(Completed {
                status,
                result: passed.result,
            }),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

const _: () = assert!(size_of::<Passed>() == 80);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_is_refused() {
        let refused = Namespace::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY));
        let none = Namespace::open(Path::new("/dev/ng-none"));
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn data_goes_as_the_opcode_says() {
        let file = OpenOptions::new().read(true).open("/dev/null").unwrap();
        let device = Namespace { file, nsid: 1 };
        let (mut store, mut retrieve) = ([0; 64], [0; 64]);
        (store[0], retrieve[0]) = (1, 2);
        let mut room = [0; 8];
        let second = Duration::from_secs(1);
        for refused in [
            device.execute(&store, Data::FromDevice(&mut room), second),
            device.execute(&retrieve, Data::ToDevice(&[0; 8]), second),
        ] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let passed = device.execute(&store, Data::ToDevice(&[0; 8]), second);
        assert_eq!(passed.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
    }
}
