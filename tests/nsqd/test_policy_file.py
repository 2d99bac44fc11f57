import pytest

from nsq_compat.cli.errors import OptionError
from nsq_compat.nsqd.policy_file import load_policies


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "nsqd.cfg"

    def write_file(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write_file


def complaint(path: str) -> str:
    with pytest.raises(OptionError) as caught:
        load_policies(path)
    return str(caught.value).removeprefix(f"failed to load config file {path} - ")


def test_a_file_without_policies_has_none_and_so_has_no_file(write):
    assert len(load_policies(write('tcp_address = "0.0.0.0:4150"\n'))) == 0
    assert len(load_policies("")) == 0


def test_policies_are_tables_beside_the_options(write):
    policies = load_policies(write('tcp_address = "x:1"\n[[policies]]\nmax_rate = 1\n[[policies]]\nmax_depth = 2\n'))
    assert policies.written == [{"max_rate": 1}, {"max_depth": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'log_level = "info"\n\n[[policies]]\nmax_rate = 1\n[[ "policies" ]]\ntopic = "a"\nmax_depth = 0\n',
            "line 7: policy 2: max_depth: must be an integer from 1 to 9223372036854775807",
        ),
        (
            '\n[[policies]] # all\ntopic = "a"\n[[policies]]\nmax_rate = 1\n',
            "line 2: policy 1: needs max_attempts, max_depth, max_bytes, max_age or max_rate",
        ),
        ("policies = [{max_rate = 0}]\n", "policy 1: max_rate: must be a number above 0 (messages per second)"),
        ("policies = 5\n", "policies must be a list of tables"),
    ],
)
def test_a_complaint_names_the_line_as_far_as_that_can_be_told(write, text, expected):
    assert complaint(write(text)) == expected


def test_a_file_that_is_no_toml_is_refused_as_ever(write):
    assert "line 1" in complaint(write("[[policies\n"))
