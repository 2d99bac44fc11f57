"""How hypothesis searches: quickly while one works (`dev`), longer where nobody waits (`ci`, chosen when CI is set)."""

import os

from hypothesis import settings

# No deadline: on a busy machine the time of one example says nothing. The blob lets a failure be replayed anywhere.
settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=300, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
