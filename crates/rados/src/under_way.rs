//! What a journal says of changes and values under way (`docs/rados.md` section 4).

use forebay_store::Space;

use crate::codec::{Malformed, Reader};
use crate::record::{Segment, begin, writer};

/// A key, as a journal names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Named {
    pub space: Space,
    pub key: Vec<u8>,
}

impl Named {
    /// A key that users see.
    pub fn object(key: Vec<u8>) -> Named {
        Named {
            space: Space::Objects,
            key,
        }
    }

    fn write(&self, writer: &mut crate::codec::Writer) {
        writer.bool(self.space == Space::Staging);
        writer.string(&self.key);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Named, Malformed> {
        let space = match reader.bool()? {
            true => Space::Staging,
            false => Space::Objects,
        };
        let key = reader.string()?.to_vec();
        Ok(Named { space, key })
    }
}

/// A change of a key that the index may not know yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub named: Named,
    /// Whether it is a composition, whose sources are in its object.
    pub composes: bool,
    /// What the change lets go.
    pub freed: Vec<Segment>,
}

impl Pending {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        self.named.write(&mut writer);
        writer.bool(self.composes);
        writer.list(&self.freed, Segment::write);
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Pending, Malformed> {
        let mut reader = begin(encoded)?;
        let pending = Pending {
            named: Named::read(&mut reader)?,
            composes: reader.bool()?,
            freed: reader.list(28, Segment::read)?,
        };
        reader.end()?;
        Ok(pending)
    }
}

/// A value whose stripes are being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Intent {
    /// Where it will belong.
    pub named: Named,
    /// The stripes are among those of this.
    pub segment: Segment,
}

impl Intent {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        self.named.write(&mut writer);
        Segment::write(&mut writer, &self.segment);
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Intent, Malformed> {
        let mut reader = begin(encoded)?;
        let intent = Intent {
            named: Named::read(&mut reader)?,
            segment: Segment::read(&mut reader)?,
        };
        reader.end()?;
        Ok(intent)
    }
}

/// What a composition takes out of the staging space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The staged keys.
    pub keys: Vec<Vec<u8>>,
}

impl Taken {
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        writer.list(&self.keys, |writer, key| writer.string(key));
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Taken, Malformed> {
        let mut reader = begin(encoded)?;
        let keys = reader.list(4, |reader| Ok(reader.string()?.to_vec()))?;
        reader.end()?;
        Ok(Taken { keys })
    }
}

/// Stripes that nothing refers to any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Garbage {
    pub segment: Segment,
    /// Of a value that did not arrive: the key that it was for. It may have arrived late.
    pub meant_for: Option<Named>,
}

impl Garbage {
    /// Stripes that a change let go.
    pub fn of(segment: Segment) -> Garbage {
        Garbage {
            segment,
            meant_for: None,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut writer = writer();
        Segment::write(&mut writer, &self.segment);
        if let Some(named) = &self.meant_for {
            named.write(&mut writer);
        }
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Garbage, Malformed> {
        let mut reader = begin(encoded)?;
        let segment = Segment::read(&mut reader)?;
        let meant_for = match reader.end() {
            Ok(()) => None,
            Err(Malformed) => Some(Named::read(&mut reader)?),
        };
        reader.end()?;
        Ok(Garbage { segment, meant_for })
    }
}

/// What a gateway's changes of a shard add up to: objects and bytes, which may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum {
    pub objects: i64,
    pub bytes: i64,
}

impl Sum {
    pub fn between(before: forebay_store::Usage, after: forebay_store::Usage) -> Sum {
        Sum {
            objects: after.objects.wrapping_sub(before.objects) as i64,
            bytes: after.bytes.wrapping_sub(before.bytes) as i64,
        }
    }

    pub fn plus(self, other: Sum) -> Sum {
        Sum {
            objects: self.objects.wrapping_add(other.objects),
            bytes: self.bytes.wrapping_add(other.bytes),
        }
    }

    pub fn minus(self, other: Sum) -> Sum {
        Sum {
            objects: self.objects.wrapping_sub(other.objects),
            bytes: self.bytes.wrapping_sub(other.bytes),
        }
    }

    pub fn encode(self) -> Vec<u8> {
        let mut writer = writer();
        writer.u64(self.objects as u64);
        writer.u64(self.bytes as u64);
        writer.0
    }

    pub fn decode(encoded: &[u8]) -> Result<Sum, Malformed> {
        let mut reader = begin(encoded)?;
        let sum = Sum {
            objects: reader.u64()? as i64,
            bytes: reader.u64()? as i64,
        };
        reader.end()?;
        Ok(sum)
    }
}
