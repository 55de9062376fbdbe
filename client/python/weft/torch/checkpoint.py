"""Distributed checkpoints (torch.distributed.checkpoint) in the snapshots of the shards.

    with session.step(lr=lr):
        ...
        weft.torch.checkpoint.save(state_dict)      # the snapshot of this step stores it

    weft.torch.checkpoint.load(state_dict)          # on any number of ranks that have restored the snapshot

Each rank's share of the checkpoint is its blob of the snapshot (Session.snapshot_blob):

    head | bytes of the items | pickled metadata, on the rank that coordinates the save only

All blobs of one save have the same identifier in the head. docs/snapshots.md has the folder and its options.
"""

import dataclasses
import io
import pickle
import struct
import uuid

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from .._errors import LimitReached, Malformed, NotFound, Unsupported
from ._rendezvous import get_session

BLOB_BYTES_MAX = 4 << 30  # of weft_snapshot_blob
_MAGIC = b"weft-dcp"
_VERSION = 1
# magic, version, rank of the coordinator, identifier of the save, step, bytes of the items, of the metadata
_HEAD = struct.Struct("<8sII16sQQQ")


def save(state_dict, *, session=None, planner=None, process_group=None):
    """Put a state dict into this job's next snapshot: torch.distributed.checkpoint.save with SnapshotWriter.

    Call it inside a step, on all ranks. The snapshot of a step has the last save before the step's end, so
    save in each step that may have a snapshot: with "100 steps" in each hundredth. Each rank's share is at
    most 4 GiB. It replaces the data of Session.snapshot_blob. An error on any rank raises
    CheckpointException on all ranks, and each rank keeps its older checkpoint. Collective; blocks for the
    other ranks, not for the snapshot.
    """
    writer = SnapshotWriter(session, _publish=False)
    metadata = dcp.save(state_dict, storage_writer=writer, planner=planner, process_group=process_group)
    writer.publish()  # all ranks have their shares now
    return metadata


def load(state_dict, *, session=None, planner=None, process_group=None):
    """Load a state dict in place from the snapshot that this job has restored; return its SnapshotReader.

    torch.distributed.checkpoint.load with SnapshotReader, on any number of ranks. `reader.step` is the step
    of the snapshot, `reader.saved_step` the step in which the checkpoint was saved. Collective; blocks for
    the coordinator. Raises CheckpointException with NotFound where the job has restored no snapshot.
    """
    reader = SnapshotReader(session)
    dcp.load(state_dict, storage_reader=reader, planner=planner, process_group=process_group)
    return reader


def _done(value):
    future = Future()
    future.set_result(value)
    return future


def _as_bytes(data):
    """The bytes of a tensor, contiguous on the host, or of a BytesIO; and its dtype and shape, or None."""
    if isinstance(data, io.BytesIO):
        return data.getbuffer(), None, None
    host = data.detach().cpu().contiguous()
    return memoryview(host.reshape(-1).view(torch.uint8).numpy()), host.dtype, tuple(host.shape)


def _as_tensor(data, dtype, shape):
    if len(data) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


class SnapshotWriter(dcp.StorageWriter):
    """A StorageWriter whose checkpoint is stored by the next snapshot of the shards.

    session: default that of the process. It is for code that takes a StorageWriter. `save` publishes the
    shares after all ranks have written theirs. A writer that is passed to torch.distributed.checkpoint
    publishes each share at once, and SnapshotReader refuses a snapshot that was made between two shares.
    """

    def __init__(self, session=None, *, _publish=True):
        super().__init__()
        self._session = session or get_session()
        if self._session.shards == 0:
            raise Unsupported(
                "a job without shards has no snapshots: start it with shards and a folder (weft run -s 1, "
                "WEFT_SNAPSHOT_FOLDER), or save with torch.distributed.checkpoint.FileSystemWriter(folder)"
            )
        self._publishes = _publish
        self._items, self._coordinator, self._save, self._blob = bytearray(), 0, b"", b""

    def reset(self, checkpoint_id=None):
        self._items, self._blob = bytearray(), b""

    def set_up_storage_writer(self, is_coordinator, *_, **options):
        if not options.get("use_collectives", True):
            raise Unsupported("a checkpoint in a snapshot has one rank's metadata: use use_collectives=True")

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        shared = (self._session.rank, uuid.uuid4().bytes)
        return [dataclasses.replace(plan, storage_data=shared) for plan in plans]

    def write_data(self, plan, planner):
        self._coordinator, self._save = plan.storage_data
        results = []
        for item in plan.items:
            data, dtype, shape = _as_bytes(planner.resolve_data(item))
            place = (self._session.rank, len(self._items), len(data), dtype, shape)
            self._check_limit(len(self._items) + len(data))
            self._items += data
            results.append(dcp.storage.WriteResult(item.index, len(data), place))
        self._make_blob(b"")
        return _done(results)

    def finish(self, metadata, results):
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        self._make_blob(pickle.dumps(metadata))

    def _check_limit(self, nbytes):
        if _HEAD.size + nbytes > BLOB_BYTES_MAX:
            raise LimitReached(
                f"rank {self._session.rank}'s share of the checkpoint exceeds {BLOB_BYTES_MAX} bytes, the "
                "limit of a rank's data in a snapshot: keep the weights on the shards, use more ranks, or save "
                "with torch.distributed.checkpoint.FileSystemWriter"
            )

    def _make_blob(self, metadata):
        self._check_limit(len(self._items) + len(metadata))
        head = _HEAD.pack(_MAGIC, _VERSION, self._coordinator, self._save, self._session.step_next,
                          len(self._items), len(metadata))  # fmt: skip
        self._blob = b"".join((head, self._items, metadata))
        if self._publishes:
            self.publish()

    def publish(self):
        """Make this rank's share the data of the next snapshot. Local."""
        self._session.snapshot_blob(self._blob)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return False  # never chosen by a path


class SnapshotReader(dcp.StorageReader):
    """A StorageReader of the checkpoint in the snapshot that the job has restored. session: default that of
    the process.

    step: of the snapshot; saved_step: that in which the checkpoint was saved. Both are None until it is read.
    """

    def __init__(self, session=None):
        super().__init__()
        self._session = session or get_session()
        self._save, self._places, self._kept = None, {}, {}
        self.step = self.saved_step = None

    def reset(self, checkpoint_id=None):
        self._save, self._places, self._kept = None, {}, {}

    def _blob(self, rank):
        """(rank of the coordinator, items, metadata) of one rank's share, after checks of its head."""
        if rank in self._kept:
            return self._kept.pop(rank)
        restored = self._session.restored_blob(rank)
        if restored is None:
            raise NotFound(
                f"there is no data of rank {rank} in a restored snapshot: restore one with "
                "WEFT_SNAPSHOT_RESTORE or weftd --restore"
            )
        self.step, data = restored
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise NotFound(f"rank {rank} has no checkpoint of PyTorch in the snapshot of step {self.step}")
        _, version, coordinator, save, saved_step, item_bytes, metadata_bytes = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise Unsupported(f"the checkpoint has version {version}; this release reads version {_VERSION}")
        if _HEAD.size + item_bytes + metadata_bytes != len(data):
            raise Malformed(f"rank {rank}'s checkpoint in the snapshot of step {self.step} is damaged")
        if self._save not in (None, save):
            raise Malformed(
                f"the snapshot of step {self.step} was made during a save: rank {rank}'s share is of another "
                "save. Restore an older snapshot"
            )
        self._save, self.saved_step = save, saved_step
        end = _HEAD.size + item_bytes
        return coordinator, memoryview(data)[_HEAD.size : end], memoryview(data)[end:]

    def read_metadata(self, *_, **__):
        first = self._blob(0)
        coordinator, _, metadata = first
        if coordinator != 0:
            metadata = self._blob(coordinator)[2]
        self._kept[0] = first  # for read_data
        if len(metadata) == 0:
            raise Malformed(
                f"the snapshot of step {self.step} was made during a save. Restore an older snapshot"
            )
        return pickle.loads(metadata)

    def set_up_storage_reader(self, metadata, is_coordinator, *_, **__):
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        by_rank = {}
        for item in plan.items:
            by_rank.setdefault(self._places[item.storage_index][0], []).append(item)
        for rank, items in sorted(by_rank.items()):
            stored = self._blob(rank)[1]
            for item in items:
                self._read_item(item, stored, planner)
        self._kept.clear()
        return _done(None)

    def _read_item(self, item, stored, planner):
        _, offset, count, dtype, shape = self._places[item.storage_index]
        data = bytearray(stored[offset : offset + count])
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(data))
            return
        source = narrow_tensor_by_index(_as_tensor(data, dtype, shape), item.storage_offsets, item.lengths)
        target = planner.resolve_tensor(item).detach()
        target.copy_(source)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return False  # never chosen by a path
