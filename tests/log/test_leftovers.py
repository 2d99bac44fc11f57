from nsq_compat.log.data_path import leftover_name, remove_leftovers
from nsq_compat.log.files import OsFiles


def test_a_leftover_has_a_name_that_is_not_taken():
    assert leftover_name("/data/orders.topic", ["orders.topic", "orders.deleted-1"]) == "/data/orders.deleted-2"


def test_what_a_crash_leaves_of_a_deleted_topic_goes_later_and_nothing_else_does(tmp_path):
    for folder in (leftover_name(str(tmp_path / "orders.topic"), []), str(tmp_path / "returns.topic")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.1").write_bytes(b"")
    (tmp_path / "reserve").write_bytes(b"")
    remove_leftovers(OsFiles(), str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["reserve", "returns.topic"]
