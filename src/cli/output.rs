//! Where commands print, and what they read from files.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

/// Standard output that nobody may be reading any more, as after `didactyl context | head -1`: what comes then is lost
/// without a word, and the command does its work to the end.
pub(super) struct Output<W>(pub(super) W);

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        quiet(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        quiet(self.0.flush(), ())
    }
}

fn quiet<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(done),
        result => result,
    }
}

/// The text of a file of at most `max` bytes: a device may have no end.
///
/// # Errors
/// A sentence with the file's name.
pub(super) fn read_text(file: &Path, max: u64) -> Result<String, String> {
    let name = file.display();
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(max.saturating_add(1)).read_to_end(&mut bytes))
        .map_err(|error| format!("{name}: cannot be read as a text: {error}"))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > max) {
        return Err(format!("{name}: has more than {max} bytes; shorten it, or name another file"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{name}: cannot be read as a text: it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes some bytes, then fails.
    struct Breaks(usize, ErrorKind);

    impl Write for Breaks {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(self.1)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.1.into())
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
        let print = |kind| {
            let mut out = Output(Breaks(4, kind));
            writeln!(out, "one").and_then(|()| writeln!(out, "two")).and_then(|()| out.flush())
        };
        assert!(print(ErrorKind::BrokenPipe).is_ok());
        assert_eq!(print(ErrorKind::StorageFull).unwrap_err().kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn a_file_is_read_as_far_as_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.md");
        std::fs::write(&file, "é").unwrap();
        assert_eq!(read_text(&file, 2).unwrap(), "é");
        let refused =
            |file: &Path, max| read_text(file, max).unwrap_err().replace(&*file.to_string_lossy(), "FILE");
        assert_eq!(refused(&file, 1), "FILE: has more than 1 bytes; shorten it, or name another file");
        std::fs::write(&file, [0xff]).unwrap();
        assert_eq!(refused(&file, 2), "FILE: cannot be read as a text: it is not UTF-8");
        #[cfg(unix)]
        assert!(
            refused(Path::new("/dev/zero"), 9)
                .ends_with("has more than 9 bytes; shorten it, or name another file")
        );
    }
}
