//! Snapshots as files: `context.logs/<stem>_<name>.md`, and `context.log.md`, the newest entry first.
//!
//! They hold private text, so only their owner may read them. Each is written aside and then takes its place by one
//! rename, and whoever changes the log holds a lock, which ends with its process: so neither two processes nor a crash
//! leave a torn file or lose another's entry.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Snapshot;
use crate::context::snapshot::rolled;
use crate::error::Error;

/// The rolling log: the newest entries that fit into [`MAX_LOG_BYTES`].
const LOG: &str = "context.log.md";

/// The most bytes of the log; room for its newest entry in any case.
const MAX_LOG_BYTES: usize = 2_000_000;

/// Where the snapshots lie.
const FOLDER: &str = "context.logs";

/// The file, in that folder, whose lock the log's writer holds. The log itself is replaced, so a lock on it would not do.
const LOCK: &str = ".lock";

/// How often a lock is tried, and how long after each time.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Writes a snapshot below `dir`, by default the working directory.
pub(super) async fn write(dir: Option<&Path>, stem: &str, snapshot: Snapshot) -> Result<(), Error> {
    let dir = dir.unwrap_or(Path::new(".")).to_owned();
    let stem = stem.to_owned();
    let written = tokio::task::spawn_blocking(move || write_now(&dir, &stem, &snapshot)).await;
    written.unwrap_or_else(|_| Err(Error::Permanent("writing it panicked".to_owned())))
}

fn write_now(dir: &Path, stem: &str, snapshot: &Snapshot) -> Result<(), Error> {
    let folder = dir.join(FOLDER);
    create_folder(&folder).map_err(failed("created", &folder))?;
    let path = folder.join(format!("{stem}_{}.md", snapshot.name));
    replace(&folder, &path, &snapshot.text).map_err(failed("written", &path))?;
    let Some(entry) = &snapshot.entry else { return Ok(()) };
    let _lock = lock(&folder.join(LOCK)).map_err(failed("locked", &folder.join(LOCK)))?;
    let path = dir.join(LOG);
    let log = match std::fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    replace(dir, &path, &rolled(entry, &log, MAX_LOG_BYTES)).map_err(failed("written", &path))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path: PathBuf = path.to_owned();
    move |error| {
        Error::Permanent(format!(
            "{} could not be {what}: {error}; name another folder in DIDACTYL_CONTEXT_DIR",
            path.display()
        ))
    }
}

fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Puts `text` in the place of the file at `path`, through a file aside that only its owner may read.
fn replace(dir: &Path, path: &Path, text: &str) -> io::Result<()> {
    let mut aside = tempfile::Builder::new().prefix(".context-").tempfile_in(dir)?;
    aside.write_all(text.as_bytes())?;
    aside.as_file().sync_all()?;
    aside.persist(path)?;
    Ok(())
}

/// The lock that all writers of a log share. It ends with the file.
fn lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another process holds it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(name: &str, entry: &str) -> Snapshot {
        Snapshot { name: name.to_owned(), text: format!("{name}\n"), entry: Some(format!("{entry}\n")) }
    }

    #[test]
    fn many_writers_at_once_lose_no_entry_and_leave_nothing_aside() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let dir = dir.path();
                scope.spawn(move || {
                    for turn in 0..5 {
                        let name = format!("t{turn:03}");
                        write_now(dir, &writer.to_string(), &snapshot(&name, &format!("{writer}/{turn}")))
                            .unwrap();
                    }
                });
            }
        });
        let log = std::fs::read_to_string(dir.path().join(LOG)).unwrap();
        let mut entries: Vec<&str> = log.split("\n---\n\n").map(str::trim).collect();
        entries.sort_unstable();
        let expected: Vec<String> =
            (0..8).flat_map(|writer| (0..5).map(move |turn| format!("{writer}/{turn}"))).collect();
        assert_eq!(entries, expected);
        let files = std::fs::read_dir(dir.path().join(FOLDER)).unwrap().count();
        assert_eq!((files, std::fs::read_dir(dir.path()).unwrap().count()), (8 * 5 + 1, 2));
    }

    #[test]
    fn the_log_stays_within_its_bound_and_keeps_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..5 {
            let entry = format!("{number}{}", "x".repeat(MAX_LOG_BYTES / 3));
            write_now(dir.path(), "s", &snapshot("init", &entry)).unwrap();
        }
        let log = std::fs::read_to_string(dir.path().join(LOG)).unwrap();
        let firsts: Vec<_> = log.split("\n---\n\n").map(|entry| entry.chars().next()).collect();
        assert_eq!(firsts, [Some('4'), Some('3')]);
        assert!(log.len() <= MAX_LOG_BYTES);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_what_is_written() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        // A log that others could read does not stay so.
        std::fs::write(dir.path().join(LOG), "old\n").unwrap();
        write_now(dir.path(), "s", &snapshot("init", "new")).unwrap();
        let mode =
            |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        let modes = [LOG, FOLDER, "context.logs/s_init.md", "context.logs/.lock"].map(mode);
        assert_eq!(modes, [0o600, 0o700, 0o600, 0o600]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = write_now(&file, "s", &snapshot("init", "private")).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{}/context.logs could not be created: ", file.display())),
            "{error}"
        );
        assert!(error.ends_with("; name another folder in DIDACTYL_CONTEXT_DIR"), "{error}");
        assert!(!error.contains("private"));
    }
}
