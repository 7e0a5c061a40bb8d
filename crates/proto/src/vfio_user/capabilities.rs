//! The JSON of `VERSION`.

use serde_json::{Map, Value, json};

use super::{DATA_BYTES_MAX, Malformed};

/// The longest text read; what peers say is some hundred bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// What one end tells the other about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Files it takes beside one message.
    pub max_msg_fds: u32,
    /// Data it takes in one access, in bytes.
    pub max_data_xfer_size: u64,
    /// Ranges of memory it keeps mapped.
    pub max_dma_maps: u64,
    /// The page sizes it maps, as bits.
    pub pgsizes: u64,
    /// It knows `REGION_WRITE_MULTI`.
    pub write_multiple: bool,
}

impl Default for Capabilities {
    /// What an end that says nothing is taken to have said.
    fn default() -> Capabilities {
        Capabilities {
            max_msg_fds: 1,
            max_data_xfer_size: DATA_BYTES_MAX as u64,
            max_dma_maps: 65_535,
            pgsizes: 4096,
            write_multiple: false,
        }
    }
}

impl Capabilities {
    /// Reads text that ends with a NUL, or just ends. Unknown members are skipped.
    pub(super) fn parse(text: &[u8]) -> Result<Capabilities, Malformed> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Malformed::TooLong("the text of VERSION"));
        }
        let end = text.iter().position(|&byte| byte == 0);
        let text = &text[..end.unwrap_or(text.len())];
        let mut said = Capabilities::default();
        if text.is_empty() {
            return Ok(said);
        }
        let whole: Map<String, Value> = serde_json::from_slice(text)
            .map_err(|_| Malformed::Capability("the text of VERSION"))?;
        let members = match whole.get("capabilities") {
            None => return Ok(said),
            Some(Value::Object(members)) => members,
            Some(_) => return Err(Malformed::Capability("capabilities")),
        };
        if let Some(count) = number(members, "max_msg_fds")? {
            said.max_msg_fds = u32::try_from(count).unwrap_or(u32::MAX);
        }
        if let Some(bytes) = number(members, "max_data_xfer_size")? {
            said.max_data_xfer_size = bytes;
        }
        if let Some(count) = number(members, "max_dma_maps")? {
            said.max_dma_maps = count;
        }
        if let Some(sizes) = number(members, "pgsizes")? {
            said.pgsizes = sizes;
        }
        match members.get("write_multiple") {
            None => {}
            Some(Value::Bool(known)) => said.write_multiple = *known,
            Some(_) => return Err(Malformed::Capability("write_multiple")),
        }
        Ok(said)
    }

    /// Appends the text and the NUL after it.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let text = json!({"capabilities": {
            "max_msg_fds": self.max_msg_fds,
            "max_data_xfer_size": self.max_data_xfer_size,
            "max_dma_maps": self.max_dma_maps,
            "pgsizes": self.pgsizes,
            "write_multiple": self.write_multiple,
        }});
        out.extend_from_slice(text.to_string().as_bytes());
        out.push(0);
    }
}

fn number(members: &Map<String, Value>, name: &'static str) -> Result<Option<u64>, Malformed> {
    match members.get(name) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(Malformed::Capability(name)),
        },
    }
}
