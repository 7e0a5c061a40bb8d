//! How often something was seen lately, in four bits a counter and without keeping it (a count-min sketch that ages).

/// Four rows of counters up to 15; all halve after ten times as many sightings as there are items.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: Vec<u8>,
    row: usize,
    seen: u64,
    period: u64,
}

const ROWS: usize = 4;
const MOST: u8 = 15;
const SIGHTINGS_PER_ITEM: u64 = 10;

impl Sketch {
    /// For about so many items.
    pub fn new(items: u64) -> Sketch {
        let items = items.clamp(64, 1 << 24);
        let row = items.next_power_of_two() as usize * 2;
        Sketch {
            counters: vec![0; row * ROWS],
            row,
            seen: 0,
            period: items * SIGHTINGS_PER_ITEM,
        }
    }

    /// How many items it was made for, in doubt fewer.
    pub fn items(&self) -> u64 {
        self.row as u64 / 2
    }

    pub fn see(&mut self, print: u64) {
        let least = self.count(print);
        if least < MOST {
            for row in 0..ROWS {
                let at = self.at(row, print);
                if self.counters[at] == least {
                    self.counters[at] += 1;
                }
            }
        }
        self.seen += 1;
        if self.seen >= self.period {
            self.seen /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }

    pub fn count(&self, print: u64) -> u8 {
        (0..ROWS)
            .map(|row| self.counters[self.at(row, print)])
            .min()
            .unwrap_or(0)
    }

    fn at(&self, row: usize, print: u64) -> usize {
        const SEEDS: [u64; ROWS] = [
            0x9e37_79b9_7f4a_7c15,
            0xc2b2_ae3d_27d4_eb4f,
            0x1656_67b1_9e37_79f9,
            0xd6e8_feb8_6659_fd93,
        ];
        let mixed = (print ^ (print >> 32)).wrapping_mul(SEEDS[row]);
        row * self.row + (mixed >> 32) as usize % self.row
    }
}
