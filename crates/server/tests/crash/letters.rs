//! What bulk actions on dead letters promise: each letter is deleted, or sent again once, or still there. Pure.

use crate::checker::Violation;
use crate::history::Kind;

/// A message and what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life<'a> {
    /// Its ends in the log.
    pub(crate) ends: &'a [&'static str],
    /// Its dead letters.
    pub(crate) letters: usize,
    /// How often it was delivered.
    pub(crate) delivered: usize,
}

/// What is wrong with a message that became a dead letter on purpose: its own life, and those of the messages that it was
/// sent again as. `asked` is whether a bulk action was to take the letter, and whether that was acknowledged.
pub(crate) fn wrong(kind: Kind, asked: Option<bool>, lives: &[Life<'_>]) -> Option<fn(String) -> Violation> {
    let (first, again) = lives.split_first()?;
    let (may_be_gone, must_be_gone) = (asked.is_some(), asked == Some(true));
    let is_revived = kind == Kind::Revived;
    if again.len() > usize::from(is_revived) {
        return Some(Violation::ManyIds);
    }
    match (first.ends, first.letters, again.first()) {
        // A death made its first attempt be forgotten, and the second one was answered with 200.
        (["DELIVERED"], 0, None) if is_revived && first.delivered > 0 => None,
        (["FAILED"], 1, None) => must_be_gone.then_some(Violation::LeftOut),
        (["FAILED"], 0, None) if !is_revived && may_be_gone => None,
        (["FAILED"], 0, Some(again)) if may_be_gone => {
            let is_delivered = again.ends == ["DELIVERED"] && again.letters == 0 && again.delivered > 0;
            (!is_delivered).then_some(Violation::WrongEnd)
        }
        (["FAILED"], 1, Some(_)) | (_, 2.., _) => Some(Violation::WronglyDead),
        ([], ..) | (["FAILED"], 0, None) => Some(Violation::Lost),
        _ => Some(Violation::WrongEnd),
    }
}

#[test]
fn a_letter_is_there_or_deleted_or_sent_again_once() {
    let key = || "k".to_owned();
    let life = |ends: &'static [&'static str], letters, delivered| Life { ends, letters, delivered };
    let (dead, gone) = (life(&["FAILED"], 1, 0), life(&["FAILED"], 0, 0));
    let (good, none) = (life(&["DELIVERED"], 0, 1), life(&[], 0, 0));
    let (may, must) = (Some(false), Some(true));
    let sound: [(Kind, Option<bool>, &[Life<'_>]); 10] = [
        (Kind::Buried, None, &[]),
        (Kind::Buried, None, &[dead]),
        (Kind::Buried, may, &[dead]),
        (Kind::Buried, may, &[gone]),
        (Kind::Buried, must, &[gone]),
        (Kind::Revived, None, &[dead]),
        (Kind::Revived, may, &[dead]),
        (Kind::Revived, may, &[gone, good]),
        (Kind::Revived, must, &[gone, good]),
        (Kind::Revived, must, &[good]),
    ];
    for (kind, asked, lives) in sound {
        let found = wrong(kind, asked, lives).map(|violation| violation(key()));
        assert_eq!(found, None, "{kind:?} {asked:?} {lives:?}");
    }
    let broken: [(Kind, Option<bool>, &[Life<'_>], Violation); 13] = [
        (Kind::Buried, None, &[gone], Violation::Lost(key())),
        (Kind::Buried, None, &[none], Violation::Lost(key())),
        (Kind::Buried, must, &[dead], Violation::LeftOut(key())),
        (Kind::Buried, must, &[gone, good], Violation::ManyIds(key())),
        (Kind::Buried, must, &[good], Violation::WrongEnd(key())),
        (Kind::Buried, may, &[life(&["FAILED"], 2, 0)], Violation::WronglyDead(key())),
        (Kind::Revived, may, &[gone], Violation::Lost(key())),
        (Kind::Revived, must, &[dead], Violation::LeftOut(key())),
        (Kind::Revived, must, &[dead, good], Violation::WronglyDead(key())),
        (Kind::Revived, must, &[gone, good, good], Violation::ManyIds(key())),
        (Kind::Revived, must, &[gone, dead], Violation::WrongEnd(key())),
        (Kind::Revived, must, &[gone, none], Violation::WrongEnd(key())),
        (Kind::Revived, None, &[gone, good], Violation::WrongEnd(key())),
    ];
    for (kind, asked, lives, expected) in broken {
        let found = wrong(kind, asked, lives).map(|violation| violation(key()));
        assert_eq!(found, Some(expected), "{kind:?} {asked:?} {lives:?}");
    }
}
