use super::*;
use crate::schema::Dtype;

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

fn stream(lanes: usize) -> Inference {
    let field = |name| vec![Field::new(name, Dtype::U64, &[2]).unwrap()];
    Inference::create(&field("obs"), &field("action"), lanes, 1).unwrap()
}

fn client(stream: &Inference, groups: &[Vec<usize>], worker: u64) -> Result<Client> {
    stream.client(groups, id(worker), Some(Duration::ZERO), &mut || true)
}

fn ask(client: &mut Client, group: usize, which: &[usize], value: u64) {
    client
        .ask(group, which, |at, row| {
            row[0] = value + at as u64;
            value
        })
        .unwrap();
}

/// Take all requests: lane, value and note of each.
fn take(server: &mut Server) -> Result<Vec<(usize, u64, u64)>> {
    let mut seen = Vec::new();
    server.take(64, Some(Duration::ZERO), Duration::ZERO, &mut || true, |_, lane, row, note| {
        seen.push((lane, row[0], note));
    })?;
    Ok(seen)
}

/// Answer each request with ten times its value.
fn answer(server: &mut Server, seen: &[(usize, u64, u64)], note: u64) -> usize {
    server.answer(note, |number, row| row[0] = 10 * seen[number].1).unwrap()
}

fn answers(client: &mut Client, group: usize) -> Vec<(usize, u64, u64)> {
    let mut seen = Vec::new();
    client.take(group, |at, row, note| seen.push((at, row[0], note))).unwrap();
    seen
}

fn poll(client: &Client) -> Result<usize> {
    client.wait(Some(Duration::ZERO), &mut || true)
}

#[test]
fn groups_come_back_in_the_order_in_which_they_asked() {
    let stream = stream(5);
    let mut client = client(&stream, &[vec![0, 1], vec![4, 2]], 2).unwrap();
    let mut server = stream.server(id(3)).unwrap();
    assert!(matches!(take(&mut server), Err(Error::Timeout { .. })));
    ask(&mut client, 1, &[0, 1], 100);
    ask(&mut client, 0, &[1], 7);
    assert!(matches!(poll(&client), Err(Error::Timeout { .. })));
    let seen = take(&mut server).unwrap();
    assert_eq!(seen, [(1, 8, 7), (2, 101, 100), (4, 100, 100)]);
    assert_eq!(answer(&mut server, &seen, 55), 3);
    assert_eq!(poll(&client).unwrap(), 1);
    assert_eq!(answers(&mut client, 1), [(0, 1000, 55), (1, 1010, 55)]);
    ask(&mut client, 1, &[0], 3); // it is behind the other one now
    assert_eq!(poll(&client).unwrap(), 0);
    assert_eq!(answers(&mut client, 0), [(1, 80, 55)]);
    assert_eq!(stream.missed_wakeups().unwrap(), 0);
}

#[test]
fn a_batch_may_be_small_and_nobody_is_left_out() {
    let stream = stream(3);
    let mut client = client(&stream, &[vec![0, 1, 2]], 2).unwrap();
    let mut server = stream.server(id(3)).unwrap();
    ask(&mut client, 0, &[0, 1, 2], 1);
    let mut lanes = Vec::new();
    for _ in 0..2 {
        let taken =
            server.take(2, Some(Duration::ZERO), Duration::ZERO, &mut || true, |_, lane, _, _| lanes.push(lane));
        server.answer(1, |_, _| ()).unwrap();
        assert!(taken.is_ok());
    }
    assert_eq!(lanes, [0, 1, 2]);
    assert_eq!(poll(&client).unwrap(), 0);
}

#[test]
fn a_batch_lingers_for_more_until_it_is_full() {
    let stream = stream(2);
    let mut both = [0, 1].map(|lane| client(&stream, &[vec![lane]], 2 + lane as u64).unwrap());
    let mut server = stream.server(id(9)).unwrap();
    ask(&mut both[0], 0, &[0], 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            ask(&mut both[1], 0, &[0], 2);
        });
        let linger = Duration::from_secs(60); // a full batch does not wait for it
        assert_eq!(server.take(2, None, linger, &mut || true, |_, _, _, _| ()).unwrap(), 2);
    });
    server.answer(1, |_, _| ()).unwrap();
    ask_again(&mut both[0]);
    let linger = Duration::from_millis(10);
    let begin = std::time::Instant::now();
    assert_eq!(server.take(2, None, linger, &mut || true, |_, _, _, _| ()).unwrap(), 1);
    assert!(begin.elapsed() >= linger);
    // A wait that is interrupted leaves its requests to the next one.
    server.answer(1, |_, _| ()).unwrap();
    ask_again(&mut both[0]);
    let linger = Duration::from_secs(60);
    let interrupted = server.take(2, None, linger, &mut || false, |_, _, _, _| ());
    assert!(matches!(interrupted, Err(Error::Interrupted)));
    assert_eq!((server.taken(), stream.occupancy().unwrap().asked), (0, 1));
}

fn ask_again(client: &mut Client) {
    answers(client, 0);
    ask(client, 0, &[0], 5);
}

#[test]
fn a_late_answer_to_a_dead_client_is_never_taken_by_the_next() {
    let stream = stream(1);
    let mut dead = client(&stream, &[vec![0]], 2).unwrap();
    let mut server = stream.server(id(3)).unwrap();
    ask(&mut dead, 0, &[0], 1);
    let seen = take(&mut server).unwrap();
    std::mem::forget(dead);
    assert!(matches!(client(&stream, &[vec![0]], 4), Err(Error::Owned { owner: 2, .. })));
    assert_eq!(stream.reap(id(2)).unwrap(), Reaped { lanes: 1, returned: 0 });
    assert_eq!(stream.occupancy().unwrap().orphaned, 1);
    assert!(matches!(client(&stream, &[vec![0]], 2), Err(Error::Timeout { .. })), "its server still has the row");
    assert_eq!(answer(&mut server, &seen, 1), 0, "nobody waits for it");
    let mut next = client(&stream, &[vec![0]], 2).unwrap();
    ask(&mut next, 0, &[0], 9);
    assert!(matches!(poll(&next), Err(Error::Timeout { .. })));
    let seen = take(&mut server).unwrap();
    answer(&mut server, &seen, 2);
    assert_eq!(answers(&mut next, 0), [(0, 90, 2)]);
}

#[test]
fn requests_of_a_dead_server_are_answered_by_the_next() {
    let stream = stream(2);
    let mut client = client(&stream, &[vec![0, 1]], 2).unwrap();
    let mut dead = stream.server(id(3)).unwrap();
    ask(&mut client, 0, &[0, 1], 1);
    let seen = take(&mut dead).unwrap();
    assert!(matches!(stream.server(id(3)), Err(Error::Owned { owner: 3, .. })));
    assert_eq!(stream.reap(id(3)).unwrap(), Reaped { lanes: 0, returned: 2 });
    let mut server = stream.server(id(3)).unwrap();
    assert_eq!(take(&mut server).unwrap(), seen);
    // The first one was taken for dead and lives: what its successor has is not its to answer.
    assert!(matches!(dead.answer(7, |_, _| ()), Err(Error::LeaseLost { worker: 3, .. })));
    drop(dead);
    assert_eq!(answer(&mut server, &seen, 8), 2);
    assert_eq!(answers(&mut client, 0), [(0, 10, 8), (1, 20, 8)]);
}

#[test]
fn ends_that_close_give_back_what_they_hold() {
    let stream = stream(2);
    let mut one = client(&stream, &[vec![0], vec![1]], 2).unwrap();
    let mut server = stream.server(id(3)).unwrap();
    ask(&mut one, 0, &[0], 1);
    take(&mut server).unwrap();
    drop(server);
    assert_eq!(stream.occupancy().unwrap(), Occupancy { idle: 1, asked: 1, ..Occupancy::default() });
    let mut server = stream.server(id(3)).unwrap();
    let seen = take(&mut server).unwrap();
    drop(one); // with a request that a server has
    assert_eq!(stream.owners().unwrap(), [(0, 3), (0, 0)]);
    answer(&mut server, &seen, 1);
    assert_eq!(stream.owners().unwrap(), [(0, 0), (0, 0)]);
}

#[test]
fn a_client_that_was_reaped_and_lives_is_told_so() {
    let stream = stream(1);
    let mut ghost = client(&stream, &[vec![0]], 2).unwrap();
    stream.reap(id(2)).unwrap();
    let mut next = client(&stream, &[vec![0]], 2).unwrap();
    assert!(matches!(ghost.ask(0, &[0], |_, _| 0), Err(Error::LeaseLost { .. })));
    ask(&mut next, 0, &[0], 4);
    drop(ghost);
    assert_eq!(stream.occupancy().unwrap().asked, 1);
}

#[test]
fn wrong_calls_are_named() {
    let stream = stream(2);
    for groups in [&[][..], &[vec![]], &[vec![0], vec![0]], &[vec![2]]] {
        assert!(client(&stream, groups, 2).unwrap_err().to_string().contains("lanes from 0 to 1"), "{groups:?}");
    }
    let mut one = client(&stream, &[vec![0, 1]], 2).unwrap();
    assert!(poll(&one).unwrap_err().to_string().contains("ask first"));
    assert!(one.take(0, |_, _, _| ()).unwrap_err().to_string().contains("no whole answer"));
    for which in [&[][..], &[1, 0], &[2]] {
        assert!(one.ask(0, which, |_, _| 0).unwrap_err().to_string().contains("rising"), "{which:?}");
    }
    assert!(one.ask(1, &[0], |_, _| 0).unwrap_err().to_string().contains("0 to 0"));
    ask(&mut one, 0, &[0], 1);
    assert!(one.ask(0, &[1], |_, _| 0).unwrap_err().to_string().contains("taken first"));
    let mut server = stream.server(id(3)).unwrap();
    take(&mut server).unwrap();
    assert!(take(&mut server).unwrap_err().to_string().contains("answered first"));
    let twice = [Field::new("x", Dtype::F32, &[]).unwrap()];
    assert!(Inference::create(&twice, &twice, 1, 1).unwrap_err().to_string().contains("\"x\" twice"));
    assert!(Inference::create(&twice, &[], 1, 1).is_err() && Inference::create(&[], &twice, 1, 1).is_err());
}

#[test]
fn attaching_gives_the_same_stream() {
    let here = stream(3);
    let there = Inference::attach(here.as_fd()).unwrap();
    assert_eq!((there.lanes(), there.request(), there.answer()), (3, here.request(), here.answer()));
    let mut one = client(&here, &[vec![1]], 2).unwrap();
    ask(&mut one, 0, &[0], 6);
    let mut server = there.server(id(3)).unwrap();
    let seen = take(&mut server).unwrap();
    answer(&mut server, &seen, 1);
    assert_eq!(answers(&mut one, 0), [(0, 60, 1)]);
}
