"""Groups of ranks."""

from ._abi import NULL, ffi, lib


class Comm:
    """A group of ranks 0 .. ranks-1 (Session.split, Session.comm_create). Pass it as `comm` to a collective.

    A group ends with the membership of the job and with the session.
    """

    __slots__ = ("_c", "_session", "__weakref__")

    def __init__(self, session, pointer):
        self._session, self._c = session, pointer

    @property
    def rank(self):
        """This rank in the group."""
        return lib.weft_comm_rank(self._c)

    @property
    def ranks(self):
        """Number of ranks of the group."""
        return lib.weft_comm_ranks(self._c)

    @property
    def id(self):
        """Id of the group, equal on its ranks and unique in the job."""
        return lib.weft_comm_id(self._c)

    @property
    def members(self):
        """Ranks of the job, in the order of the group."""
        return [lib.weft_comm_member(self._c, rank) for rank in range(self.ranks)]

    def free(self):
        """Leave the group. Raises Busy while operations of the group are open. A second call does nothing."""
        if self._c != NULL:
            self._session._check(lib.weft_comm_free(self._c))
            self._c = NULL


def make(session, start):
    """Return the Comm that start(out) makes; None where the call returns no group for this rank."""
    out = ffi.new("struct weft_comm **")
    session._check(start(out))
    return None if out[0] == NULL else Comm(session, out[0])
