//! Blocks of keys and values of attention, as inference engines keep them: elements of 16 bits, little-endian.
//!
//! - `int8 [GROUP]` (128 unless said otherwise) quantises fp16 elements of all inputs: each group of so many elements gets a scale,
//!   its greatest magnitude over 127. The output is, for each input, the scales of all groups as `f32`, then one `i8` an element:
//!   `element / scale`, rounded to even. A group that holds an infinity or a NaN is refused.
//! - `gather BYTES INDEX...` writes the blocks of `BYTES` bytes with these indices, in this order, counted through all inputs as if
//!   they were one.
//! - `gather_int8 GROUP BYTES INDEX...` gathers, and quantises what was gathered as one input.

use forebay_module::{Input, export, inputs, words, write};

export!(int8, gather, gather_int8);

const PIECE_BYTES: usize = 256 << 10;
/// Scales wait until all codes are made, so that what is quantised together is bounded.
const QUANTISED_BYTES_MAX: u64 = 64 << 20;

fn int8() -> Result<(), String> {
    let words = words();
    let group = words.first().map_or(Ok(128), |word| number(word))?;
    for input in inputs() {
        let mut quantised = Quantised::new(group, input.size())?;
        quantised.feed(input, 0, input.size())?;
        quantised.write();
    }
    Ok(())
}

fn gather() -> Result<(), String> {
    let words = words();
    let (bytes, indices) = words.split_first().ok_or("gather BYTES INDEX...")?;
    for place in Places::new(number(bytes)?).find(indices) {
        let (input, offset, len) = place?;
        if input.pass(offset, len) != len {
            return Err("an input became shorter".to_owned());
        }
    }
    Ok(())
}

fn gather_int8() -> Result<(), String> {
    let words = words();
    let [group, bytes, indices @ ..] = &words[..] else {
        return Err("gather_int8 GROUP BYTES INDEX...".to_owned());
    };
    let bytes: u64 = number(bytes)?;
    let all = bytes.checked_mul(indices.len() as u64);
    let mut quantised = Quantised::new(number(group)?, all.unwrap_or(u64::MAX))?;
    for place in Places::new(bytes).find(indices) {
        let (input, offset, len) = place?;
        quantised.feed(input, offset, len)?;
    }
    quantised.write();
    Ok(())
}

fn number<T: TryFrom<u64>>(word: &str) -> Result<T, String> {
    let number = word
        .parse()
        .ok()
        .and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| format!("{word} is no such number"))
}

/// Where blocks lie in inputs that follow one another.
struct Places {
    bytes: u64,
    begins: Vec<(u64, Input)>,
    end: u64,
}

impl Places {
    fn new(bytes: u64) -> Places {
        let mut end = 0;
        let begins = inputs().map(|input| {
            let begin = end;
            end += input.size();
            (begin, input)
        });
        let begins = begins.collect();
        Places { bytes, begins, end }
    }

    /// The pieces of the blocks, in order: a block may lie across inputs.
    fn find(&self, indices: &[String]) -> impl Iterator<Item = Result<(Input, u64, u64), String>> {
        indices.iter().flat_map(|word| match self.block(word) {
            Ok(pieces) => pieces.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        })
    }

    fn block(&self, word: &str) -> Result<Vec<(Input, u64, u64)>, String> {
        let index: u64 = number(word)?;
        let begin = index.checked_mul(self.bytes);
        let end = begin.and_then(|begin| begin.checked_add(self.bytes));
        let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= self.end)) else {
            return Err(format!("there is no block {index}"));
        };
        let mut pieces = Vec::new();
        for (starts, input) in &self.begins {
            let from = begin.max(*starts);
            let to = end.min(starts + input.size());
            if from < to {
                pieces.push((*input, from - starts, to - from));
            }
        }
        Ok(pieces)
    }
}

/// Elements on their way to fewer bits.
struct Quantised {
    group: usize,
    scales: Vec<u8>,
    codes: Vec<u8>,
    /// Elements of the group that is not whole.
    held: Vec<f32>,
    /// The first byte of an element whose second is in the next piece.
    half: Option<u8>,
}

impl Quantised {
    fn new(group: usize, bytes: u64) -> Result<Quantised, String> {
        if group == 0 {
            return Err("groups of no element".to_owned());
        }
        if bytes > QUANTISED_BYTES_MAX {
            return Err(format!("more than {QUANTISED_BYTES_MAX} bytes at once"));
        }
        if !bytes.is_multiple_of(2) {
            return Err("half an element".to_owned());
        }
        let elements = bytes as usize / 2;
        Ok(Quantised {
            group,
            scales: Vec::with_capacity(elements.div_ceil(group) * 4),
            codes: Vec::with_capacity(elements),
            held: Vec::with_capacity(group.min(elements)),
            half: None,
        })
    }

    fn feed(&mut self, input: Input, offset: u64, len: u64) -> Result<(), String> {
        let mut piece = vec![0; PIECE_BYTES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = piece.len().min((len - done) as usize);
            let got = input.read(offset + done, &mut piece[..want]);
            if got == 0 {
                return Err("an input became shorter".to_owned());
            }
            self.take(&piece[..got])?;
            done += got as u64;
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        if let (Some(low), Some((high, rest))) = (self.half, bytes.split_first()) {
            self.half = None;
            self.element([low, *high])?;
            bytes = rest;
        }
        let (pairs, odd) = bytes.as_chunks::<2>();
        for pair in pairs {
            self.element(*pair)?;
        }
        if let [low] = odd {
            self.half = Some(*low);
        }
        Ok(())
    }

    fn element(&mut self, bytes: [u8; 2]) -> Result<(), String> {
        self.held.push(widened(u16::from_le_bytes(bytes)));
        match self.held.len() == self.group {
            true => self.close(),
            false => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        let most = self.held.iter().fold(0f32, |most, element| {
            // A NaN compares with nothing and must not be lost.
            if element.is_nan() {
                f32::INFINITY
            } else {
                most.max(element.abs())
            }
        });
        if most.is_infinite() {
            return Err("an element that is no number".to_owned());
        }
        let scale = most / 127.0;
        self.scales.extend_from_slice(&scale.to_le_bytes());
        for element in self.held.drain(..) {
            let code = if scale > 0.0 {
                (element / scale).round_ties_even()
            } else {
                0.0
            };
            self.codes.push(code as i8 as u8);
        }
        Ok(())
    }

    fn write(mut self) {
        if !self.held.is_empty()
            && let Err(words) = self.close()
        {
            forebay_module::fail(1, words);
        }
        write(&self.scales);
        write(&self.codes);
    }
}

/// IEEE 754 binary16 as binary32, which holds every value of it.
fn widened(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = match magnitude {
        0x7c00.. => 0x7f80_0000 | (magnitude & 0x3ff) << 13,
        0x400.. => (magnitude << 13) + ((127 - 15) << 23),
        // Subnormal: a whole number of 2^-24.
        _ => return f32::from_bits(sign | (magnitude as f32 / 16_777_216.0).to_bits()),
    };
    f32::from_bits(sign | bits)
}
