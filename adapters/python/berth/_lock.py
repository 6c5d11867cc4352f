# SPDX-License-Identifier: BSD-3-Clause
"""A lock that a fork does not leave taken."""

import os
import threading


class Lock:
    """with lock.held: ...

    In a forked child it is a new one: a thread of the parent's, which the child does not have, may hold
    the old one (X11). What it guards may have been half changed there.
    """

    def __init__(self):
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self):
        self.held = threading.Lock()
