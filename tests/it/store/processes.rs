//! SQLite's file among processes: they share it, and it outlives them.

use std::path::Path;
use std::process::{Child, Command};

use didactyl::clock::Clock;
use didactyl::store::sqlite::Sqlite;
use didactyl::store::{Expect, Key, Row, Store, Write};

use super::increment;

/// Tells [`a_process_of_the_race`] which file to open.
const FILE: &str = "DIDACTYL_TEST_SQLITE";

const PROCESSES: u64 = 4;
const INCREMENTS: u64 = 25;

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, Clock::system()).unwrap()
}

#[tokio::test]
async fn a_reopened_file_has_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.sqlite");
    let key = Key::new("p", "s");
    for version in 1..=3 {
        let store = open(&path);
        store.write(&[Write::put(key.clone(), Expect::Anything, vec![7], None)]).await.unwrap();
        let expected = Row { key: key.clone(), version, expires_at: None, value: vec![7] };
        assert_eq!(open(&path).read(std::slice::from_ref(&key)).await.unwrap(), [Some(expected)]);
    }
}

/// They also race to create the file.
#[tokio::test]
async fn four_processes_on_one_file_lose_no_increment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.sqlite");
    let processes: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["store::processes::a_process_of_the_race", "--exact", "--ignored"])
                .env(FILE, &path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let row = open(&path).read(&[Key::new("p", "counter")]).await.unwrap().pop().unwrap().unwrap();
    let total = PROCESSES * INCREMENTS;
    assert_eq!((row.version, row.value), (total, total.to_string().into_bytes()));
}

#[tokio::test]
#[ignore = "one process of four_processes_on_one_file_lose_no_increment, which starts it"]
async fn a_process_of_the_race() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let store = open(Path::new(&path));
    for _ in 0..INCREMENTS {
        increment(&store, &Key::new("p", "counter")).await;
    }
}
