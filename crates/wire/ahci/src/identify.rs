//! [`Identify`]: the data of IDENTIFY DEVICE \[ACS3\], as far as Sluice uses it.

/// The data that IDENTIFY DEVICE returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Words 10 to 19: serial number, at most 20 characters.
    pub serial: String,
    /// Words 23 to 26: firmware revision, at most 8 characters.
    pub firmware: String,
    /// Words 27 to 46: model number, at most 40 characters.
    pub model: String,
    /// Words 100 to 103: addressable sectors.
    pub sectors: u64,
    /// Words 106, 117 and 118: bytes of a logical sector.
    pub sector_bytes: u32,
    /// Word 75: queue depth, 1 to 32.
    pub queue_depth: u32,
    /// Word 76 bit 8: native command queuing.
    pub queuing: bool,
    /// Words 82 and 85 bit 5: the volatile write cache is supported and enabled.
    pub write_cache: bool,
    /// Word 169 bit 0: DATA SET MANAGEMENT with TRIM.
    pub trim: bool,
    /// Word 105: maximum number of 512-byte blocks of ranges per DATA SET MANAGEMENT.
    pub trim_blocks: u16,
    /// Word 69 bits 14 and 5: trimmed sectors read as zeros.
    pub trim_zeroes: bool,
}

impl Identify {
    /// Size of the data in bytes.
    pub const BYTES: usize = 512;

    /// Encodes the data, with integrity word 255.
    pub fn to_bytes(&self) -> [u8; Identify::BYTES] {
        let mut words = [0u16; 256];
        let mut text = |first: usize, words_len: usize, text: &str| {
            let mut bytes = text.bytes().chain(std::iter::repeat(b' '));
            for word in &mut words[first..first + words_len] {
                // Strings have their first character in the upper byte (ACS-3, 3.4.9).
                let mut next = || bytes.next().unwrap_or(b' ');
                *word = u16::from_be_bytes([next(), next()]);
            }
        };
        text(10, 10, &self.serial);
        text(23, 4, &self.firmware);
        text(27, 20, &self.model);
        // Word 49: LBA and DMA supported. Word 83 bit 10: 48-bit addresses; bit 13: FLUSH CACHE EXT.
        (words[49], words[83], words[86]) = (0x0300, 0x6400, 0x2400);
        words[69] = if self.trim_zeroes { 1 << 14 | 1 << 5 } else { 0 };
        words[75] = (self.queue_depth.clamp(1, 32) - 1) as u16;
        // Word 76: speeds of generation 1 to 3.
        words[76] = u16::from(self.queuing) << 8 | 0b1110;
        words[82] = u16::from(self.write_cache) << 5;
        words[85] = words[82];
        for (i, word) in words[100..104].iter_mut().enumerate() {
            *word = (self.sectors >> (16 * i)) as u16;
        }
        words[105] = self.trim_blocks;
        if self.sector_bytes != 512 {
            // Word 106 bit 14: the word is valid; bit 12: words 117 and 118 hold the size in words.
            words[106] = 1 << 14 | 1 << 12;
            let size = self.sector_bytes / 2;
            (words[117], words[118]) = (size as u16, (size >> 16) as u16);
        }
        words[169] = self.trim.into();
        let mut bytes = [0; Identify::BYTES];
        for (to, word) in bytes.chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        // Word 255: signature A5h and a checksum that makes all bytes add up to zero.
        bytes[510] = 0xa5;
        bytes[511] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg();
        bytes
    }

    /// Decodes the data; `None` if the integrity word is present and wrong.
    pub fn from_bytes(bytes: &[u8; Identify::BYTES]) -> Option<Identify> {
        let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        if bytes[510] == 0xa5 && sum != 0 {
            return None;
        }
        let word = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
        let text = |first: usize, words: usize| {
            let characters = (first..first + words).flat_map(|i| word(i).to_be_bytes());
            let text: String = characters
                .map(|c| if c.is_ascii_graphic() || c == b' ' { char::from(c) } else { '?' })
                .collect();
            text.trim().to_owned()
        };
        let wide = |first: usize, words: usize| {
            (first..first + words).rev().fold(0u64, |sum, i| sum << 16 | u64::from(word(i)))
        };
        let sector_bytes = match word(106) >> 12 {
            // Bits 15:14 are 01b in a valid word.
            high if high & 0b1101 == 0b0101 => u32::try_from(2 * wide(117, 2)).unwrap_or(u32::MAX),
            _ => 512,
        };
        Some(Identify {
            serial: text(10, 10),
            firmware: text(23, 4),
            model: text(27, 20),
            sectors: wide(100, 4),
            sector_bytes,
            queue_depth: u32::from(word(75) & 0x1f) + 1,
            queuing: word(76) & 1 << 8 != 0,
            write_cache: word(82) & word(85) & 1 << 5 != 0,
            trim: word(169) & 1 != 0,
            trim_blocks: word(105),
            trim_zeroes: word(69) & (1 << 14 | 1 << 5) == (1 << 14 | 1 << 5),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify() -> Identify {
        Identify {
            serial: "S12PNEAD000001".into(),
            firmware: "DXM05B0Q".into(),
            model: "Emulated SATA SSD 256GB".into(),
            sectors: 500_118_192,
            sector_bytes: 512,
            queue_depth: 32,
            queuing: true,
            write_cache: true,
            trim: true,
            trim_blocks: 8,
            trim_zeroes: true,
        }
    }

    #[test]
    fn goes_round_and_is_where_the_words_are() {
        let one = identify();
        let bytes = one.to_bytes();
        assert_eq!(&bytes[20..24], b"1SP2", "characters are swapped in their words");
        assert_eq!(bytes[2 * 75], 31);
        assert_eq!(Identify::from_bytes(&bytes), Some(one.clone()));
        let other = Identify {
            sector_bytes: 4096,
            queue_depth: 1,
            queuing: false,
            write_cache: false,
            trim: false,
            trim_blocks: 0,
            trim_zeroes: false,
            ..one
        };
        assert_eq!(Identify::from_bytes(&other.to_bytes()), Some(other));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused() {
        let mut bytes = identify().to_bytes();
        bytes[20] ^= 0x80;
        assert_eq!(Identify::from_bytes(&bytes), None, "checksum");
        let wild = Identify::from_bytes(&[0xff; 512]).unwrap();
        assert_eq!((wild.sectors, wild.queue_depth), (u64::MAX, 32));
        assert_eq!(Identify::from_bytes(&[0; 512]).unwrap().sector_bytes, 512);
    }
}
