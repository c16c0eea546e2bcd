//! New inputs from known ones: changes bytes and case, moves pieces, splices two inputs, and inserts tokens. A seed
//! determines the whole sequence.

/// Longest generated input.
pub const INPUT_BYTES_MAX: usize = 4 * 1024;
/// Most changes to one input.
const CHANGES_MAX: u64 = 6;
/// Most repetitions of a piece. The limits of nesting and counts are far below.
const REPEATS_MAX: u64 = 300;

/// Bytes and numbers at which parsers tend to break.
const TOKENS: [&str; 30] = [
    "",
    "0",
    "-1",
    "1e308",
    "18446744073709551616",
    "9223372036854775807",
    "4294967295",
    "\0",
    "\r\n",
    "\n",
    "\t",
    " ",
    ",",
    ":",
    ";",
    "=",
    "%00",
    "%2e%2e%2f",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "{",
    "[",
    "null",
    "(",
    "\u{7f}",
    "\u{202e}",
    "é",
    "\u{f7e9}",
];

/// A sequence of numbers that its seed determines (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % (bound.max(1) as u64)) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Creates inputs from seeds and from the words in them.
pub struct Mutator {
    inputs: Vec<Vec<u8>>,
    tokens: Vec<Vec<u8>>,
    random: Random,
}

impl Mutator {
    /// Starts from these inputs, of which there must be at least one.
    pub fn new(inputs: Vec<Vec<u8>>, seed: u64) -> Mutator {
        Mutator { tokens: tokens(&inputs), inputs, random: Random::new(seed) }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.random.pick(&self.inputs).clone();
        for _ in 0..=self.random.number() % CHANGES_MAX {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.random.below(input.len() + 1);
        let end = at + self.random.below(input.len() - at + 1);
        match self.random.number() % 10 {
            0 if at < input.len() => input[at] ^= 1 << self.random.below(8),
            1 if at < input.len() => input[at] = self.random.number() as u8,
            2 => drop(input.drain(at..end)),
            3 => input.truncate(at),
            4 => {
                let piece = input[at..end].to_vec();
                let to = self.random.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            5 => {
                let piece = input[at..end.min(at + 4)].to_vec();
                let times = self.random.number() % REPEATS_MAX;
                let many: Vec<u8> = (0..times).flat_map(|_| piece.iter().copied()).take(INPUT_BYTES_MAX).collect();
                input.splice(at..at, many);
            }
            6 => {
                for byte in &mut input[at..end] {
                    *byte =
                        if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() };
                }
            }
            7 => {
                let other = self.random.pick(&self.inputs).clone();
                let from = self.random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            8 => {
                let token = self.random.pick(&self.tokens).clone();
                input.splice(at..end.min(at + token.len()), token);
            }
            _ => {
                let token = self.random.pick(&self.tokens).clone();
                input.splice(at..at, token);
            }
        }
        input.truncate(INPUT_BYTES_MAX);
    }
}

/// The words of the inputs, their separators, and common problematic tokens.
pub fn tokens(inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = TOKENS.iter().map(|token| token.as_bytes().to_vec()).collect();
    for input in inputs {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
        tokens.extend(input.chunk_by(|a, b| is_word(a) == is_word(b)).map(<[u8]>::to_vec));
    }
    tokens.retain(|token| token.len() <= 64);
    tokens.sort();
    tokens.dedup();
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_sequence() {
        let sequence = |seed| {
            let mut mutator = Mutator::new(vec![b"1d10h".to_vec(), b"\"x\"".to_vec()], seed);
            (0..1_000).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
        assert!(sequence(7).iter().all(|input| input.len() <= INPUT_BYTES_MAX));
        assert!(sequence(7).iter().any(|input| input.len() > 500));
    }

    #[test]
    fn words_and_their_separators_are_tokens() {
        let tokens = tokens(&[b"rate=10, period=1m".to_vec()]);
        for word in ["rate", "=", "10", ", ", "period", "1m", "null"] {
            assert!(tokens.contains(&word.as_bytes().to_vec()), "{word}");
        }
    }
}
