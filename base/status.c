/* status.c - names and sentences of the status codes. Two switches without default, so that -Wswitch reports
 * a missing code. */
#include "weft/status.h"

const char *weft_status_name(enum weft_status status)
{
    switch (status) {
    case WEFT_OK: return "WEFT_OK";
    case WEFT_IN_PROGRESS: return "WEFT_IN_PROGRESS";
    case WEFT_ERR_INVALID: return "WEFT_ERR_INVALID";
    case WEFT_ERR_UNSUPPORTED: return "WEFT_ERR_UNSUPPORTED";
    case WEFT_ERR_STATE: return "WEFT_ERR_STATE";
    case WEFT_ERR_NOT_FOUND: return "WEFT_ERR_NOT_FOUND";
    case WEFT_ERR_EXISTS: return "WEFT_ERR_EXISTS";
    case WEFT_ERR_FORKED: return "WEFT_ERR_FORKED";
    case WEFT_ERR_BUSY: return "WEFT_ERR_BUSY";
    case WEFT_ERR_AGAIN: return "WEFT_ERR_AGAIN";
    case WEFT_ERR_NO_MEMORY: return "WEFT_ERR_NO_MEMORY";
    case WEFT_ERR_LIMIT: return "WEFT_ERR_LIMIT";
    case WEFT_ERR_DEADLINE: return "WEFT_ERR_DEADLINE";
    case WEFT_ERR_CANCELLED: return "WEFT_ERR_CANCELLED";
    case WEFT_ERR_IO: return "WEFT_ERR_IO";
    case WEFT_ERR_MALFORMED: return "WEFT_ERR_MALFORMED";
    case WEFT_ERR_TRUNCATED: return "WEFT_ERR_TRUNCATED";
    case WEFT_ERR_VERSION: return "WEFT_ERR_VERSION";
    case WEFT_ERR_AUTH: return "WEFT_ERR_AUTH";
    case WEFT_ERR_PEER_LOST: return "WEFT_ERR_PEER_LOST";
    case WEFT_ERR_UNREACHABLE: return "WEFT_ERR_UNREACHABLE";
    case WEFT_ERR_MISMATCH: return "WEFT_ERR_MISMATCH";
    case WEFT_ERR_DIVERGED: return "WEFT_ERR_DIVERGED";
    case WEFT_ERR_STALE: return "WEFT_ERR_STALE";
    case WEFT_ERR_SHRUNK: return "WEFT_ERR_SHRUNK";
    case WEFT_ERR_GREW: return "WEFT_ERR_GREW";
    case WEFT_ERR_SKIPPED: return "WEFT_ERR_SKIPPED";
    case WEFT_ERR_CLOSED: return "WEFT_ERR_CLOSED";
    case WEFT_ERR_ABORTED: return "WEFT_ERR_ABORTED";
    case WEFT_ERR_INTERNAL: return "WEFT_ERR_INTERNAL";
    case WEFT_ERR_ROLLED_BACK: return "WEFT_ERR_ROLLED_BACK";
    }
    return "WEFT_ERR_?";
}

const char *weft_status_text(enum weft_status status)
{
    switch (status) {
    case WEFT_OK: return "done";
    case WEFT_IN_PROGRESS: return "accepted and not finished yet; wait for the request";
    case WEFT_ERR_INVALID: return "an argument is out of its documented range; correct the call";
    case WEFT_ERR_UNSUPPORTED:
        return "this build, backend or mode cannot do it; choose another or rebuild with the feature";
    case WEFT_ERR_STATE: return "the call is right but the moment is not; check the order of calls";
    case WEFT_ERR_NOT_FOUND: return "a name, file or host does not exist; check its spelling";
    case WEFT_ERR_EXISTS: return "a name, port or file is already taken; choose another";
    case WEFT_ERR_FORKED: return "the session belongs to the parent process; open one in the child";
    case WEFT_ERR_BUSY: return "the object is still in use; wait until its operation has finished";
    case WEFT_ERR_AGAIN: return "nothing was queued; call again after some progress";
    case WEFT_ERR_NO_MEMORY: return "an allocation failed and nothing was changed; free memory and retry";
    case WEFT_ERR_LIMIT: return "a named limit is reached; raise its option or ask for less";
    case WEFT_ERR_DEADLINE: return "the deadline passed; look at the process it waited for";
    case WEFT_ERR_CANCELLED: return "cancelled by the caller";
    case WEFT_ERR_IO: return "a file, disk or descriptor refused; the error text has the name and the cause";
    case WEFT_ERR_MALFORMED: return "bytes that break their format; check the sender or the file";
    case WEFT_ERR_TRUNCATED: return "a message was longer than the buffer that waited for it";
    case WEFT_ERR_VERSION:
        return "a peer or file has a version that this one does not serve; upgrade one of them";
    case WEFT_ERR_AUTH: return "the job secret is wrong or missing; give every process the same one";
    case WEFT_ERR_PEER_LOST:
        return "a process of the job died or its connection broke; start a new membership";
    case WEFT_ERR_UNREACHABLE: return "no connection could be made; check address, port and firewall";
    case WEFT_ERR_MISMATCH: return "ranks called differently; make kind, count, type and step agree";
    case WEFT_ERR_DIVERGED: return "replicas that must be equal are not; restore a snapshot";
    case WEFT_ERR_STALE: return "of an older epoch, incarnation or step; ignored";
    case WEFT_ERR_GREW:
        return "ranks are new: all ranks take the parameters from rank 0, then begin the step";
    case WEFT_ERR_SKIPPED:
        return "a gradient is NaN or infinite and no rank has taken the step; go on with the next batch or "
               "lower the loss scale";
    case WEFT_ERR_SHRUNK: return "ranks were lost and the job continues without them; run the step again";
    case WEFT_ERR_CLOSED: return "the object is closed or closing; open another";
    case WEFT_ERR_ABORTED: return "the job was aborted; the error text has the process and the cause";
    case WEFT_ERR_INTERNAL: return "a bug in weft; please report the error text";
    case WEFT_ERR_ROLLED_BACK:
        return "weights at shards are lost and the job begins again from its last snapshot; finalize, open a "
               "session, and begin the step that it names";
    }
    return "a status that this version does not know; compare the versions of both sides";
}
