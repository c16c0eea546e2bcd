//! The power goes at random moments: the data is on a file system of its own, which loses what was not synced.
//!
//! Needs root, for loop mounts of ext4.

use crate::history::Void;
use crate::kills;
use crate::process::Launch;
use crate::report::Row;
use crate::round::Round;
use crate::tools::{compile, may_mount, run};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub(crate) const KIND: &str = "power cut";
/// Cuts of one round.
const ROUND_CUTS: u64 = 25;
const DISK_BYTES: u64 = 512 * 1024 * 1024;
/// How long a server may go on without a disk before it is killed, at most.
const AFTERLIFE_MS: u64 = 60;

/// Cuts the power so many times.
pub(crate) async fn run_cuts(cuts: u64, seed: u64) -> Row {
    let mut row = Row::new(KIND);
    while row.cycles < cuts {
        let mut disk = match Disk::make() {
            Ok(disk) => disk,
            Err(reason) => return Row::skipped(KIND, reason),
        };
        let mut round = Round::begin(Launch::on(&disk.data_dir()), seed + row.cycles).await;
        let last = cuts.min(row.cycles + ROUND_CUTS);
        while row.cycles < last {
            let has_started = one(&mut round, &mut disk).await;
            assert!(has_started, "the server does not start after a power cut");
            row.cycles += 1;
        }
        row.add(&round.end().await);
        row.progress(cuts);
    }
    row.expect_deliveries();
    row
}

/// One life and the cut that ends it. `false` when the server did not start on what the cut before has left.
pub(crate) async fn one(round: &mut Round, disk: &mut Disk) -> bool {
    let launch = round.launch.clone();
    let (mut server, address) = round.start(&launch).await;
    if address.is_none() {
        return false;
    }
    kills::live(round, &server).await;
    let cut_at = round.load.witness.now();
    disk.cut();
    let done_at = round.load.witness.now();
    // It ends by itself when it notices.
    let afterlife = Duration::from_millis(round.random.below(AFTERLIFE_MS));
    round.wait(&mut server, afterlife).await;
    let gone_us = round.load.witness.now_us();
    round.load.note(|history| history.voids.push(Void { cut: (cut_at, done_at), gone_us }));
    assert!(!server.output().contains("panicked"), "the server is unwell:\n{}", server.last_words());
    disk.restore();
    true
}

/// A file system in a file.
pub(crate) struct Disk {
    directory: tempfile::TempDir,
    cutter: PathBuf,
}

impl Disk {
    /// Makes and mounts it; otherwise says why this machine does not allow that.
    pub(crate) fn make() -> Result<Disk, String> {
        may_mount()?;
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let cutter = compile("power_cut.c", &[], directory.path())?;
        let disk = Disk { directory, cutter };
        let image = std::fs::File::create(disk.image()).map_err(|error| error.to_string())?;
        image.set_len(DISK_BYTES).map_err(|error| error.to_string())?;
        std::fs::create_dir(disk.mount_point()).map_err(|error| error.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk.image()))?;
        disk.mount()?;
        Ok(disk)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.mount_point().join("data")
    }

    /// From now on nothing reaches the disk.
    pub(crate) fn cut(&self) {
        run(Command::new(&self.cutter).arg(self.mount_point())).expect("the power can be cut");
    }

    /// Brings back what was on the disk. Nobody may use it.
    pub(crate) fn restore(&mut self) {
        run(Command::new("umount").arg(self.mount_point())).expect("a disk that nobody uses can be unmounted");
        self.mount().expect("what could be mounted once can be mounted again");
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(self.mount_point()))
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mount")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg("-l").arg(self.mount_point())));
    }
}
