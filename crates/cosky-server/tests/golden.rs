//! Compares this server with answers that were recorded from a real CoSky 5.8.1 server
//! (`cosky-testkit/fixtures/rest-golden.jsonl`): the same calls in the same order on an empty store. Status, content
//! type and body must be equal, but for what [`WANTED`] names. Not compared: the order of lists, the internal object
//! `delegate`, moments in time, tokens, and the wording of `msg` and `reason`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod golden {
    pub(crate) mod answer;
    pub(crate) mod calls;
    pub(crate) mod wanted;
}

use std::collections::BTreeSet;

use golden::{
    answer::{Answer, Recorded},
    calls::Session,
    wanted::WANTED,
};

const RECORDING: &str = include_str!("../../cosky-testkit/fixtures/rest-golden.jsonl");
const PARTS: [&str; 5] = ["login", "access", "namespaces", "services", "services-input"];

#[tokio::test]
async fn answers_are_those_of_the_real_cosky_server() {
    let recorded = recorded();
    let mut session = Session::start().await;
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for line in &recorded {
        let mut here = session.make(line).await;
        if line.name() == "services/choose" {
            here = as_recorded_when_a_member(here, line, &recorded);
        }
        let mut expected = line.answer();
        for wanted in WANTED.iter().filter(|wanted| wanted.call == line.name()) {
            used.insert(wanted.call);
            if let Err(stale) = wanted.apply(&mut expected) {
                problems.push(format!("{}: {stale}", line.name()));
            }
        }
        if here != expected {
            problems.push(format!("{}:\n  wanted {expected}\n  here   {here}", line.name()));
        }
    }
    for wanted in WANTED.iter().filter(|wanted| !used.contains(wanted.call)) {
        problems.push(format!("{}: the table names a call that is not made", wanted.call));
    }
    session.stop().await;
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}

/// The recorded calls of the parts that exist. Logins of `alice` belong to the part `users`.
fn recorded() -> Vec<Recorded> {
    let lines: Vec<Recorded> = RECORDING
        .lines()
        .map(|line| serde_json::from_str::<Recorded>(line).unwrap())
        .filter(|line| PARTS.contains(&line.part.as_str()) && !line.path.contains("/alice/"))
        .collect();
    assert_eq!(lines.len(), 74, "the recording is whole");
    lines
}

/// A balanced choice is random: any member of the recorded list counts as the one that was recorded.
fn as_recorded_when_a_member(here: Answer, line: &Recorded, recorded: &[Recorded]) -> Answer {
    let list = recorded.iter().find(|line| line.name() == "services/instances").unwrap().answer();
    let members = list.body.as_array().unwrap();
    if members.contains(&here.body) { Answer { body: line.answer().body, ..here } } else { here }
}
