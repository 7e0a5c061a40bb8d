//! A structure of fixed length that is mostly zero, filled and read field by field.

/// `N` bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Page<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Page<N> {
    pub(crate) fn zeroed() -> Page<N> {
        Page([0; N])
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn put_u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(crate) fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    pub(crate) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    pub(crate) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// ASCII text padded with spaces to `len`; what is not visible ASCII becomes a question mark.
    pub(crate) fn put_ascii(&mut self, at: usize, len: usize, text: &str) {
        let field = &mut self.0[at..at + len];
        field.fill(b' ');
        for (to, from) in field.iter_mut().zip(text.bytes()) {
            *to = if from.is_ascii_graphic() || from == b' ' {
                from
            } else {
                b'?'
            };
        }
    }

    /// A text cut to leave at least one NUL behind it in its field of `len` bytes.
    pub(crate) fn put_terminated(&mut self, at: usize, len: usize, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(len - 1)];
        self.put(at, bytes);
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    pub(crate) fn array16(&self, at: usize) -> [u8; 16] {
        let mut array = [0; 16];
        array.copy_from_slice(&self.0[at..at + 16]);
        array
    }

    /// Text up to its NUL or the padding's first space at the end; what is not UTF-8 is replaced.
    pub(crate) fn text(&self, at: usize, len: usize) -> String {
        let field = &self.0[at..at + len];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(len);
        String::from_utf8_lossy(&field[..end]).trim_end().to_owned()
    }
}
