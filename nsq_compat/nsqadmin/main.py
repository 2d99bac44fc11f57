"""The program ``nsqadmin``: reads the command line, runs the daemon, and exits."""

# ruff: noqa: E402
# First, before other modules import names that this replaces. requests and threads then use greenlets.
from gevent import monkey

monkey.patch_all()

import os
import sys
from importlib.util import find_spec

from nsq_compat import missing_package, version_text
from nsq_compat.cli.flags import exit_checked, exit_fatal, load_access, read_options, warn_of_options
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.logs import configure
from nsq_compat.net import resolver
from nsq_compat.net.process import Supervisor, on_hangup, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.sockets import ListenError, check_address
from nsq_compat.nsqadmin.options import PROGRAM, NsqadminOptions, validate
from nsq_compat.web.admin.sessions import SessionFileError, revoke
from nsq_compat.web.admin.users import make_line


def main() -> None:
    """Run nsqadmin until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqadminOptions, sys.argv[1:], version_text(PROGRAM))
    configure(options.log_prefix, options.log_level, form=options.log_format)
    warn_of_options(options, PROGRAM)
    if options.make_user:
        # The password is the first line of stdin.
        name, _, role = options.make_user.partition(":")
        try:
            print(make_line(name, role or "admin", sys.stdin.readline().rstrip("\n")))
        except ValueError as error:
            exit_fatal(PROGRAM, str(error))
        return
    if options.revoke_sessions:
        if not options.session_file:
            exit_fatal(
                PROGRAM, "--revoke-sessions needs --session-file; without such a file, a restart ends all logins"
            )
        try:
            revoke(options.session_file)
        except SessionFileError as error:
            exit_fatal(PROGRAM, f"failed to revoke sessions - {error}")
        print(f"{PROGRAM}: all logins have ended")
        return
    if find_spec("flask") is None:
        exit_fatal(PROGRAM, f"failed to instantiate nsqadmin - {missing_package('flask', 'admin')}")
    # Not at the top: the pages need flask, which is an extra.
    from nsq_compat.nsqadmin.daemon import Daemon, make_provider, open_sessions, read_users

    raise_descriptor_limit()
    resolver.install()
    stop = stop_signal()
    try:
        validate(options)
        if options.check_config:
            load_access(options.access_file)
            if options.user_file:
                read_users(options.user_file)
            if options.oidc_issuer:
                make_provider(options)
            if options.session_file and os.path.exists(options.session_file):
                open_sessions(options, lambda write: None)
            check_address(options.http_address)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqadmin - {error}")
    tune_gc()
    supervisor = Supervisor()
    on_hangup(daemon.reload)
    daemon.start()
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
