//! Histories made at random: of a register that behaves, of the same with a falsified answer, and small ones whose every order is tried.

use forebay_history::{Action, Operation, Outcome, Value, Verdict, check};
use proptest::prelude::*;

/// What a register answers.
fn answer(held: &mut Option<Value>, action: Action) -> Outcome {
    let (holds, after) = match action {
        Action::Read => return Outcome::Saw(*held),
        Action::Write(value) => (true, Some(value)),
        Action::Create(value) => (held.is_none(), Some(value)),
        Action::Swap(expected, value) => (*held == Some(expected), Some(value)),
        Action::Delete => (true, None),
    };
    if holds {
        *held = after;
        Outcome::Done
    } else {
        Outcome::Refused
    }
}

/// An action by its kind; `recent` is what a swap expects.
fn action(kind: u8, fresh: Value, recent: Value) -> Action {
    match kind {
        0..=3 => Action::Read,
        4..=5 => Action::Write(fresh),
        6 => Action::Create(fresh),
        7 => Action::Swap(recent, fresh),
        _ => Action::Delete,
    }
}

/// Operations take effect one after the other at the moments 10, 20, ..; they are asked some time before and answered some time
/// after. One in `unanswered` is never answered.
fn made() -> impl Strategy<Value = Vec<Operation>> {
    let one = (0..9u8, 0..40u64, 0..40u64, 0..6u8, 0..4u64);
    prop::collection::vec(one, 0..120).prop_map(|drawn| {
        let mut held = None;
        (1..)
            .zip(drawn)
            .map(|(number, (kind, early, late, unanswered, back))| {
                let moment = 100 + number * 10;
                let action = action(kind, number, number.saturating_sub(1 + back));
                let outcome = answer(&mut held, action);
                let outcome = if unanswered == 0 {
                    Outcome::Unknown
                } else {
                    outcome
                };
                Operation {
                    asked: moment - early,
                    answered: moment + late,
                    action,
                    outcome,
                }
            })
            .collect()
    })
}

/// Tries every order, knowing nothing of memory or windows.
fn possible(left: &mut Vec<Operation>, held: Option<Value>) -> bool {
    if left
        .iter()
        .all(|operation| operation.outcome == Outcome::Unknown)
    {
        return true;
    }
    for index in 0..left.len() {
        let one = left[index].clone();
        let waits = left
            .iter()
            .any(|other| other.outcome != Outcome::Unknown && other.answered < one.asked);
        if waits {
            continue;
        }
        let mut after = held;
        let told = answer(&mut after, one.action);
        let fits = match one.outcome {
            Outcome::Unknown => told != Outcome::Refused,
            outcome => outcome == told,
        };
        if fits {
            left.remove(index);
            let found = possible(left, after);
            left.insert(index, one);
            if found {
                return true;
            }
        }
    }
    false
}

/// Small histories of few values and any answers at all.
fn any_small() -> impl Strategy<Value = Vec<Operation>> {
    let one = (0..9u8, 0..8u64, 0..8u64, 0..4u8, 0..4u64);
    prop::collection::vec(one, 1..8).prop_map(|drawn| {
        (1..)
            .zip(drawn)
            .map(|(number, (kind, asked, length, outcome, value))| {
                let action = action(kind, number, value);
                let conditional = matches!(action, Action::Create(_) | Action::Swap(..));
                let outcome = match (outcome, action) {
                    (0, _) => Outcome::Unknown,
                    (_, Action::Read) => Outcome::Saw((value > 0).then_some(value)),
                    (1, _) if conditional => Outcome::Refused,
                    _ => Outcome::Done,
                };
                Operation {
                    asked,
                    answered: asked + length,
                    action,
                    outcome,
                }
            })
            .collect()
    })
}

/// Goes through an order that was told, as a reader would.
fn replay(history: &[Operation], order: &[usize]) -> Result<(), TestCaseError> {
    let mut held = None;
    for place in order {
        let told = answer(&mut held, history[*place].action);
        let outcome = history[*place].outcome;
        prop_assert!(outcome == told || outcome == Outcome::Unknown);
    }
    for (at, later) in order.iter().enumerate() {
        for earlier in &order[..at] {
            let overtaken = history[*later].outcome != Outcome::Unknown
                && history[*later].answered < history[*earlier].asked;
            prop_assert!(!overtaken, "{} is before {}", earlier, later);
        }
    }
    for (place, operation) in history.iter().enumerate() {
        prop_assert!(operation.outcome == Outcome::Unknown || order.contains(&place));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_register_is_found_to_be_one(history in made()) {
        match check(&history) {
            Verdict::Linearizable(order) => replay(&history, &order)?,
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_read_of_what_nobody_wrote_is_found(mut history in made(), at in any::<prop::sample::Index>()) {
        let reads: Vec<usize> = (0..history.len())
            .filter(|place| matches!(history[*place].outcome, Outcome::Saw(_)))
            .collect();
        prop_assume!(!reads.is_empty());
        history[*at.get(&reads)].outcome = Outcome::Saw(Some(u64::MAX));
        let told = matches!(check(&history), Verdict::Violation { .. });
        prop_assert!(told);
    }

    #[test]
    fn small_ones_agree_with_trying_every_order(history in any_small()) {
        let mut left = history.clone();
        let expected = possible(&mut left, None);
        match check(&history) {
            Verdict::Linearizable(order) => {
                prop_assert!(expected);
                replay(&history, &order)?;
            }
            Verdict::Violation { .. } => prop_assert!(!expected),
            Verdict::Undecided => prop_assert!(false, "undecided"),
        }
    }
}
