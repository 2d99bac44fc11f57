from nsq_compat.queue.turns import Turns


def order(turns: Turns[str], pieces: list[str]) -> list[str]:
    """In which order these pieces are done; each is removed when it is done."""
    done = []
    while len(turns):
        (first,) = (each for each in pieces if each not in done and turns.first is each)
        done.append(first)
        turns.remove(first)
    return done


def test_a_client_with_many_pieces_holds_up_others_by_one():
    turns: Turns[str] = Turns()
    pieces = []
    for client, count in (("a", 4), ("b", 2), ("c", 1)):
        for number in range(count):
            pieces.append(f"{client}{number}")
            turns.add(client, pieces[-1])
    assert order(turns, pieces) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_the_first_piece_stays_the_first_until_it_is_removed():
    turns: Turns[str] = Turns()
    for each in ("a0", "a1", "a2", "b0"):
        turns.add(each[0], each)
    assert turns.first == "a0"
    turns.remove("a0")
    turns.remove("a0")
    assert turns.first == "b0"


def test_clients_that_come_again_and_again_do_not_overtake_one_that_waits():
    turns: Turns[str] = Turns()
    pieces = ["a0", "a1", "a2", "b0", "c0"]
    for each in pieces:
        turns.add(each[0], each)
    done = []
    for number in range(1, 20):
        (first,) = (each for each in pieces if each not in done and turns.first is each)
        done.append(first)
        turns.remove(first)
        if first[0] != "a":
            pieces.append(f"{first[0]}{number}")
            turns.add(first[0], pieces[-1])
    assert [done.index(each) for each in ("a0", "a1", "a2")] == [0, 3, 6]


def test_what_clients_that_are_gone_had_is_forgotten():
    turns: Turns[str] = Turns()
    turns.add("a", "first")
    for number in range(1000):
        turns.add(str(number), "piece")
        turns.remove("piece")
    turns.remove("first")
    for each in ("first", "piece"):
        turns.add("a", each)
    assert list(turns._last) == ["a"]
