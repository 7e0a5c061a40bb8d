//! Memory of messages that are over, for the next ones: a short message then costs no allocation.

/// So many messages' ...
const MESSAGES_MAX: usize = 16;
/// ... and no more bytes than this in all: each link may have had long ones once.
const BYTES_MAX: usize = 32 << 10;

/// Memory of messages that are over.
#[derive(Default)]
pub(super) struct Spent {
    memory: Vec<Vec<u8>>,
    bytes: usize,
}

impl Spent {
    /// Keeps it, unless there is enough.
    pub(super) fn keep(&mut self, memory: Vec<u8>) {
        let bytes = self.bytes + memory.capacity();
        if memory.capacity() > 0 && self.memory.len() < MESSAGES_MAX && bytes <= BYTES_MAX {
            self.bytes = bytes;
            self.memory.push(memory);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Some, or memory that is to be made.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let memory = self.memory.pop().unwrap_or_default();
        self.bytes -= memory.capacity();
        memory
    }

    /// Keeps all that the other has.
    pub(super) fn keep_all(&mut self, other: &mut Spent) {
        other.bytes = 0;
        other.memory.drain(..).for_each(|memory| self.keep(memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_is_worth_it() {
        let mut spent = Spent::default();
        (0..100).for_each(|_| spent.keep(Vec::with_capacity(100)));
        assert_eq!(spent.memory.len(), MESSAGES_MAX);
        let mut long = Spent::default();
        (0..100).for_each(|_| long.keep(Vec::with_capacity(BYTES_MAX / 4)));
        assert_eq!(long.memory.len(), 4);
        long.keep_all(&mut spent);
        assert_eq!((long.bytes, spent.bytes), (BYTES_MAX, 0));
        while long.take().capacity() > 0 {}
        assert_eq!(long.bytes, 0);
    }
}
