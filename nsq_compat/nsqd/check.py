"""--check-config: what a start would refuse, found without one.

It takes no lock and no port, so it may run beside the daemon whose next configuration it looks at.
"""

from nsq_compat.log.data_path import check_folder, resolved
from nsq_compat.net.listeners import check_address
from nsq_compat.nsqd.daemon import http_calls
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqd.policy_file import load_policies
from nsq_compat.nsqd.tls import certificates_of


def check(options: NsqdOptions) -> None:
    """Files, folders and addresses, after `validate`. Raises ``OptionError``, ``DataPathError``, ``ListenError``."""
    check_folder(resolved(options.data_path))
    load_policies(options.config)
    certificates = certificates_of(options)
    http_calls(options)
    check_address(options.tcp_address)
    if options.http_address:
        check_address(options.http_address)
    if options.https_address and certificates is not None:
        check_address(options.https_address)
