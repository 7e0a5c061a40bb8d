//! What a controller shows to its host.

use super::Csi;

/// A subsystem as one host sees it at a moment. Immutable: a change is a new one, with a greater generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its NVMe Qualified Name.
    pub nqn: String,
    /// SN; cut to 20 ASCII characters.
    pub serial: String,
    /// MN; cut to 40 ASCII characters.
    pub model: String,
    /// FR; cut to 8 ASCII characters.
    pub firmware: String,
    /// Grows with every change.
    pub generation: u64,
    /// In ascending order of NSID, each once.
    pub namespaces: Vec<Namespace>,
}

impl Subsystem {
    /// The namespace of this number.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let at = self
            .namespaces
            .binary_search_by_key(&nsid, |namespace| namespace.nsid);
        at.ok().and_then(|at| self.namespaces.get(at))
    }
}

/// One namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// 1 to FFFFFFFEh.
    pub nsid: u32,
    /// Names it for ever, wherever it is seen.
    pub uuid: [u8; 16],
    /// Likewise, in the form of an NGUID.
    pub nguid: [u8; 16],
    /// What it keeps.
    pub kind: NamespaceKind,
}

/// What a namespace keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceKind {
    /// Keys and values.
    Kv {
        /// The largest value, in bytes.
        value_bytes_max: u32,
        /// The most keys; 0 where there is no such bound.
        keys_max: u32,
        /// What it may hold, in bytes.
        capacity_bytes: u64,
        /// What it holds, in bytes.
        used_bytes: u64,
    },
    /// Blocks.
    Block {
        /// The length of a block is 2 to this power: 9 to 12.
        lba_shift: u8,
        /// How many.
        blocks: u64,
        /// Whether writes are refused.
        read_only: bool,
    },
}

impl Namespace {
    /// Its command set.
    pub fn csi(&self) -> Csi {
        match self.kind {
            NamespaceKind::Kv { .. } => Csi::Kv,
            NamespaceKind::Block { .. } => Csi::Nvm,
        }
    }
}
