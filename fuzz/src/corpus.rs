//! Inputs in the repository: one file per target and one line per input, escaped so that people can read them
//! (`fuzz/corpus/<target>.txt`).

use std::fs;
use std::io;
use std::path::Path;

/// Most bytes of inputs that are kept for one target.
const KEPT_BYTES_MAX: usize = 6 * 1024;

/// The inputs of a file; empty if the file does not exist.
pub fn read(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let wrong = |line: &str| io::Error::other(format!("{}: {line:?} is not escaped", path.display()));
    text.lines().map(|line| unescaped(line).ok_or_else(|| wrong(line))).collect()
}

/// Writes inputs up to the limit, spread evenly over all sizes.
pub fn write(path: &Path, mut inputs: Vec<Vec<u8>>) -> io::Result<usize> {
    inputs.sort_by(|one, other| one.len().cmp(&other.len()).then_with(|| one.cmp(other)));
    inputs.dedup();
    let bytes: usize = inputs.iter().map(Vec::len).sum();
    let stride = bytes.div_ceil(KEPT_BYTES_MAX).max(1);
    let kept: Vec<String> = inputs.iter().step_by(stride).map(|input| format!("{}\n", input.escape_ascii())).collect();
    fs::write(path, kept.concat())?;
    Ok(kept.len())
}

/// The inputs in the files of a folder.
pub fn read_folder(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    fs::read_dir(folder)?.map(|entry| fs::read(entry?.path())).collect()
}

/// Undoes `escape_ascii`.
fn unescaped(line: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    u8::try_from(digit(rest.next()?)? << 4 | digit(rest.next()?)?).ok()?
                }
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips_through_a_line() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&all.escape_ascii().to_string()), Some(all));
        assert_eq!(unescaped("\\x1"), None);
        assert_eq!(unescaped("\\q"), None);
    }

    #[test]
    fn stored_inputs_are_bounded_and_read_back() {
        let path = std::env::temp_dir().join(format!("posthaste-corpus-{}.txt", std::process::id()));
        let inputs: Vec<Vec<u8>> = (0..200).map(|n: u8| vec![n; usize::from(n)]).collect();
        let count = write(&path, inputs.clone()).expect("it can be written");
        let kept = read(&path).expect("it was written");
        assert!(kept.len() == count && kept.iter().map(Vec::len).sum::<usize>() <= KEPT_BYTES_MAX + 200);
        assert!(kept.iter().all(|input| inputs.contains(input)) && kept.iter().any(|input| input.len() > 150));
        fs::remove_file(&path).expect("it is ours");
        assert_eq!(read(&path).expect("that is fine"), [] as [Vec<u8>; 0]);
    }
}
