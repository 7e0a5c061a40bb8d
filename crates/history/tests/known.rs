//! Histories whose verdict is known.

use forebay_history::{Action, Operation, Outcome, Verdict, check};

use Action::{Create, Delete, Read, Swap, Write};
use Outcome::{Done, Refused, Saw, Unknown};

fn history(operations: &[(u64, u64, Action, Outcome)]) -> Vec<Operation> {
    let one = |(asked, answered, action, outcome): &(u64, u64, Action, Outcome)| Operation {
        asked: *asked,
        answered: *answered,
        action: *action,
        outcome: *outcome,
    };
    operations.iter().map(one).collect()
}

fn good(operations: &[(u64, u64, Action, Outcome)]) {
    let verdict = check(&history(operations));
    assert!(
        matches!(verdict, Verdict::Linearizable(_)),
        "{operations:?}: {verdict:?}"
    );
}

fn bad(operations: &[(u64, u64, Action, Outcome)]) {
    let verdict = check(&history(operations));
    assert!(
        matches!(verdict, Verdict::Violation { .. }),
        "{operations:?}: {verdict:?}"
    );
}

#[test]
fn nothing_happened() {
    assert_eq!(check(&[]), Verdict::Linearizable(vec![]));
}

#[test]
fn one_after_the_other() {
    good(&[
        (0, 1, Read, Saw(None)),
        (2, 3, Write(1), Done),
        (4, 5, Read, Saw(Some(1))),
        (6, 7, Delete, Done),
        (8, 9, Read, Saw(None)),
        (10, 11, Create(2), Done),
        (12, 13, Create(3), Refused),
        (14, 15, Swap(2, 4), Done),
        (16, 17, Swap(2, 5), Refused),
        (18, 19, Read, Saw(Some(4))),
    ]);
}

#[test]
fn a_stale_read() {
    bad(&[
        (0, 1, Write(1), Done),
        (2, 3, Write(2), Done),
        (4, 5, Read, Saw(Some(1))),
    ]);
    // The same while the second write is under way.
    good(&[
        (0, 1, Write(1), Done),
        (2, 5, Write(2), Done),
        (3, 4, Read, Saw(Some(1))),
    ]);
}

#[test]
fn reads_that_go_back_in_time() {
    // A cache that one gateway has not yet been told of: new, then old, while the write is still under way.
    bad(&[
        (0, 1, Write(1), Done),
        (2, 9, Write(2), Done),
        (3, 4, Read, Saw(Some(2))),
        (5, 6, Read, Saw(Some(1))),
    ]);
}

#[test]
fn a_lost_write() {
    bad(&[
        (0, 5, Write(1), Done),
        (1, 6, Write(2), Done),
        (7, 8, Read, Saw(None)),
    ]);
    bad(&[(0, 1, Write(1), Done), (2, 3, Read, Saw(None))]);
}

#[test]
fn a_read_from_nowhere() {
    bad(&[(0, 1, Write(1), Done), (0, 3, Read, Saw(Some(7)))]);
    bad(&[(0, 1, Read, Saw(Some(1))), (2, 3, Write(1), Done)]);
}

#[test]
fn two_winners() {
    bad(&[(0, 5, Create(1), Done), (1, 6, Create(2), Done)]);
    bad(&[
        (0, 1, Write(1), Done),
        (2, 7, Swap(1, 2), Done),
        (3, 8, Swap(1, 3), Done),
    ]);
    // With a delete that may lie between.
    good(&[
        (0, 5, Create(1), Done),
        (1, 6, Create(2), Done),
        (2, 6, Delete, Done),
    ]);
}

#[test]
fn a_refusal_without_a_reason() {
    bad(&[(0, 1, Create(1), Refused)]);
    bad(&[(0, 1, Write(1), Done), (2, 3, Swap(1, 2), Refused)]);
    good(&[(0, 9, Write(1), Done), (2, 3, Create(2), Refused)]);
}

#[test]
fn a_resurrection() {
    bad(&[
        (0, 1, Write(1), Done),
        (2, 3, Delete, Done),
        (4, 5, Read, Saw(Some(1))),
    ]);
    // Two reads disagree about who was last.
    bad(&[
        (0, 9, Write(1), Done),
        (0, 9, Write(2), Done),
        (10, 11, Read, Saw(Some(1))),
        (12, 13, Read, Saw(Some(2))),
    ]);
}

#[test]
fn without_an_answer() {
    // It may have happened late, or never, ...
    let late = |seen| {
        [
            (0, 1, Write(1), Done),
            (2, u64::MAX, Write(2), Unknown),
            (3, 4, Read, Saw(Some(1))),
            (5, 6, Read, Saw(seen)),
        ]
    };
    good(&late(Some(2)));
    good(&late(Some(1)));
    bad(&late(None));
    // ... but not twice, and not before it was asked.
    bad(&[
        (0, u64::MAX, Write(1), Unknown),
        (1, 2, Read, Saw(Some(1))),
        (3, 4, Delete, Done),
        (5, 6, Read, Saw(Some(1))),
    ]);
    bad(&[(0, 1, Read, Saw(Some(1))), (2, u64::MAX, Write(1), Unknown)]);
    // A condition is kept by who never answered, too.
    bad(&[
        (0, 1, Write(1), Done),
        (2, u64::MAX, Create(2), Unknown),
        (3, 4, Read, Saw(Some(2))),
    ]);
    good(&[(0, u64::MAX, Read, Unknown)]);
}

#[test]
fn the_order_is_told() {
    let told = check(&history(&[
        (0, 9, Read, Saw(Some(2))),
        (0, 9, Write(2), Done),
        (0, u64::MAX, Write(3), Unknown),
    ]));
    assert_eq!(told, Verdict::Linearizable(vec![1, 0]));
    let told = check(&history(&[(0, 1, Write(1), Done), (2, 3, Read, Saw(None))]));
    assert_eq!(
        told,
        Verdict::Violation {
            longest: vec![0],
            held: Some(1),
            stuck: vec![1],
        }
    );
}
