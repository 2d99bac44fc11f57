from nsq_compat.queue.exiting import Exiting


def test_it_says_the_word_that_clients_know():
    assert str(Exiting()) == "exiting"
