# SPDX-License-Identifier: BSD-3-Clause
"""The processes of a joint save or load, by torch.distributed: steps that succeed or fail on all of them."""

import builtins
import datetime
import functools
import signal
import threading
import time

import torch
import torch.distributed as dist

from berth import _native
from berth._errors import NO_OFFSET, make

PEER = "BERTH_E_PEER"  # what ranks raise because another one has failed

MOST_NAMED = 8  # of ranks that are missing
TAG = 0x4254  # of messages to find them: in the program's group, too
SLACK = datetime.timedelta(seconds=5)
USUAL_TIMEOUT = datetime.timedelta(minutes=30)

_groups = {}  # (group, purpose) -> a gloo group of the same processes


class Failure:
    """An exception of one rank, as all ranks raise it."""

    def __init__(self, rank, error):
        self.rank = rank
        self.text = str(error) or type(error).__name__
        if isinstance(error, KeyError):  # whose text is that of its key
            self.text = str(error.args[0])
        self.facts = None
        if getattr(error, "status", ""):
            self.facts = error.status, error.errno, error.offset, error.record
        self.is_of_another = getattr(error, "status", "") == PEER
        self.kind = next((each.__name__ for each in type(error).__mro__
                          if issubclass(each, Exception) and getattr(builtins, each.__name__, None) is each),
                         "RuntimeError")

    def exception(self):
        message = f"rank {self.rank}: {self.text}"
        if self.facts:
            status, number, offset, record = self.facts
            return make(status, message, number, offset, record)
        try:
            return getattr(builtins, self.kind)(message)
        except TypeError:  # UnicodeDecodeError wants more
            return RuntimeError(message)


def under_handler(handler, function):
    """Calls it, with ^C handled by handler(the program's handler, number, frame), if it has one.

    Nothing that is raised at any place, such as by the handler of a time limit, leaves it in place (Y12).
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        return function()
    return _native.with_handler(signal.SIGINT, functools.partial(handler, before), function)


class Interrupts:
    """^C during the messages of an operation: this rank would leave, and the others wait for it.

    Interrupts().around(function): function(interrupts) calls the steps of a Group

    ^C is raised while a step runs what is this rank's own; there it is a failure that all ranks are told
    of. Otherwise it waits for the next step, or for the end.
    """

    def __init__(self):
        self._error = None
        self._may_raise = False

    def run(self, function, *arguments):
        """Calls it. ^C is raised in it, also one that came before."""
        try:
            self._may_raise = True
            self._raise_error()
            return function(*arguments)
        finally:
            self._may_raise = False

    def _raise_error(self):
        error, self._error = self._error, None  # its traceback holds frames that hold this
        if error is not None:
            raise error

    def _interrupt(self, handler, *arguments):
        """The handler of ^C; the one of the program raises."""
        try:
            handler(*arguments)
        except BaseException as error:
            if self._may_raise:
                self._may_raise = False
                raise
            self._error = self._error or error

    def around(self, function):
        try:
            result = under_handler(self._interrupt, functools.partial(function, self))
        except Exception:
            self._raise_error()
            raise
        self._raise_error()
        return result


def attempt(rank, function, *args):
    """(what the function returns, its exception); a Failure in place of a result."""
    try:
        return function(*args), None
    except BaseException as error:
        return Failure(rank, error), error


class Group:
    """The processes of a group of torch.distributed; without one, this process alone.

    Rank 0 of the group is the coordinator. What is sent is pickled: the processes are one program.
    Every method is called by all of them, in the same order.
    """

    def __init__(self, process_group=None, purpose=None, interrupts=None, watches=False):
        """watches: a rank that does not come is named, after the timeout of the group."""
        self._group, self._watch, self.rank, self.size = None, None, 0, 1
        self._run = (interrupts or Interrupts()).run
        if not dist.is_available() or not dist.is_initialized():
            if process_group is not None:
                raise ValueError("a process group without torch.distributed.init_process_group()")
            return
        group = dist.group.WORLD if process_group is None else process_group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"this process, rank {dist.get_rank()}, is not in the process group")
        self._group = _group_for_bytes(group, purpose)
        self._root = dist.get_global_rank(self._group, 0)
        if watches and self.size > 1:
            # It has connections of its own: those of a group end with the first message that fails.
            if (group, f"watching {purpose}") not in _groups:
                self._meet(self._group)
            self._watch = _group_for_bytes(group, f"watching {purpose}")

    @property
    def is_coordinator(self):
        return self.rank == 0

    def step(self, each, central, exchange=None):
        """Calls each() on all ranks, then central([what they returned]) on the coordinator.

        exchange: the Exchange in which each() runs; None: it runs in none.
        Returns: what central returned, on all ranks.
        Raises: what one of them raised, on all ranks, with the number of the rank before its message.
        """
        if self.size == 1:
            return self._run(central, [self._run_each(each, exchange)])
        mine, error = attempt(self.rank, self._run_each, each, exchange)
        parts = self._gather(mine)
        answer = None
        if self.is_coordinator:
            failures = (part for part in parts if isinstance(part, Failure))
            answer = min(failures, key=lambda failure: failure.is_of_another, default=None)
            if answer is None:
                answer, error = attempt(self.rank, self._run, central, parts)
        answer = self._broadcast(answer)
        if not isinstance(answer, Failure):
            return answer
        if error is not None and not isinstance(error, Exception):
            raise error  # ^C stays ^C where it came
        try:
            raise answer.exception() from error
        finally:
            del error, mine, parts  # the traceback holds this frame

    def _run_each(self, each, exchange):
        """A ^C that came before is raised inside the exchange: the others may wait there already."""
        return exchange.around(lambda: self._run(each)) if exchange else self._run(each)

    def any(self, mine):
        """Whether something is true of any rank."""
        flag = torch.tensor([mine], dtype=torch.uint8)
        if self.size > 1:
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def exchange(self, receive, send, receive_nbytes, send_nbytes):
        """All-to-all of bytes. *_nbytes: how many from, and for, each rank."""
        if self.size == 1:
            receive.copy_(send)
        else:
            dist.all_to_all_single(receive, send, receive_nbytes, send_nbytes, group=self._group)

    def _meet(self, group):
        """All come; or the coordinator raises which do not: after the timeout of the group, or at once if they died.

        So do the others, unless they waited so long: gloo ends all connections of a group with a message that is late.
        """
        timeout = _timeout_of(group) or USUAL_TIMEOUT
        words = torch.zeros(1 + MOST_NAMED, dtype=torch.int64)  # how many are missing, and the first of them
        if self.is_coordinator:
            # One that was in the same exchange comes a timeout later, if its message waited for nobody that died.
            missing, end = [], time.monotonic() + (timeout + SLACK).total_seconds()
            waits = [(rank, _attempt_message(dist.irecv, torch.zeros(1), self._global(group, rank), group))
                     for rank in range(1, self.size)]
            for rank, work in waits:
                left = datetime.timedelta(seconds=max(end - time.monotonic(), 0.001))
                if work is None or _attempt_message(work.wait, left) is None:
                    missing.append(rank)
            words[0] = len(missing)
            words[1:1 + len(missing)] = torch.tensor(missing[:MOST_NAMED], dtype=torch.int64)
            for rank in range(1, self.size):
                if rank not in missing:
                    _attempt_message(dist.send, words, self._global(group, rank), group)
        else:
            _attempt_message(dist.send, torch.zeros(1), self._global(group, 0), group)
            answer = _attempt_message(dist.irecv, words, self._global(group, 0), group)
            # It has waited for another one as long as this rank may wait for it.
            if answer is None or _attempt_message(answer.wait, 2 * (timeout + SLACK)) is None:
                raise RuntimeError(f"rank 0 of {self.size} is missing, or has given up waiting for another one, which it names")
        n = int(words[0])
        if n > 0:
            names = ", ".join(str(int(rank)) for rank in words[1:1 + min(n, MOST_NAMED)]) + ", ..." * (n > MOST_NAMED)
            raise RuntimeError(f"rank{'s' * (n > 1)} {names} of {self.size} {'are' if n > 1 else 'is'} missing: died, or not "
                               f"come within {timeout.total_seconds():g} s")

    @staticmethod
    def _global(group, rank):
        return dist.get_global_rank(group, rank)

    def _gather(self, part):
        if self._watch:
            self._meet(self._watch)
        parts = [None] * self.size if self.is_coordinator else None
        dist.gather_object(part, parts, dst=self._root, group=self._group)
        return parts

    def _broadcast(self, answer):
        answers = [answer]
        dist.broadcast_object_list(answers, src=self._root, group=self._group)
        return answers[0]


def _attempt_message(function, *arguments):
    """What it returns, or True; None: the message failed, as the other side is gone or does not come."""
    try:
        if function in (dist.irecv, dist.send):
            made = function(*arguments, tag=TAG)
        else:
            made = function(*arguments)
    except RuntimeError:
        return None
    return True if made is None else made


class Exchange:
    """An exchange of bytes, for joint_write: it is done on all ranks of a group, or raises on all.

    exchange.around(lambda: joint_write(..., exchange))

    ^C during a message would leave the others waiting: it is raised in front of the next exchange, or at
    the end.
    """

    def __init__(self, group):
        self._group, self._was_called = group, False
        self._error = None

    def __call__(self, send, send_nbytes, receive, receive_nbytes):
        """send, receive: buffers, until this returns; *_nbytes: how many bytes for, and from, each rank."""
        self._was_called = True
        tensors, error = attempt(self._group.rank, lambda: (_bytes_of(receive), _bytes_of(send)))
        self._error = self._error or error
        if self._group.any(self._error is not None):
            raise self._error or make(PEER, "another rank has failed, and says why", 0, NO_OFFSET, "")
        self._group.exchange(*tensors, receive_nbytes, send_nbytes)

    def leave(self):
        """Tells the others, which are in an exchange or will be, that this rank has failed before it."""
        self._was_called = True
        self._group.any(True)

    def _interrupt(self, handler, number, frame):
        """The handler of ^C; the one of the program raises. frame: where the program is."""
        try:
            handler(number, frame)
        except BaseException as error:
            # Frames tell this from the first instruction of a call to its last; a flag would not.
            if not any(caller.f_code in _MESSAGES for caller in _frames(frame)):
                raise
            self._error = error

    def _call(self, function):
        try:
            return function()
        except BaseException:
            if not self._was_called:
                self.leave()
            raise

    def around(self, function):
        result = under_handler(self._interrupt, functools.partial(self._call, function))
        kept, self._error = self._error, None  # its traceback holds frames that hold this
        if kept is not None:
            raise kept
        return result


_MESSAGES = (Exchange.__call__.__code__, Exchange.leave.__code__)


def _frames(frame):
    """The frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _bytes_of(buffer):
    """A tensor that lies on the buffer."""
    return torch.frombuffer(buffer, dtype=torch.uint8) if len(buffer) else torch.empty(0, dtype=torch.uint8)


def _group_for_bytes(group, purpose):
    """The group itself if it carries bytes of the host; else, or for a purpose, one of gloo beside it."""
    carries = "cpu:" in dist.get_backend_config(group)
    if carries and purpose is None:
        return group
    known = _groups.get((group, purpose))
    if known is None:
        # PyTorch names a group that only its ranks make by the number of groups that a rank knows. That
        # may differ between ranks; so all make it, if all are there.
        ranks, is_part = dist.get_process_group_ranks(group), group is not dist.group.WORLD
        known = dist.new_group(ranks, _timeout_of(group), "gloo", use_local_synchronization=is_part)
        _groups[group, purpose] = known
    return known


def _timeout_of(group):
    """None: PyTorch's default."""
    try:
        kind = dist.get_backend_config(group).split(":")[0]
        return group._get_backend(torch.device(kind)).options._timeout
    except (AttributeError, RuntimeError):
        return None
